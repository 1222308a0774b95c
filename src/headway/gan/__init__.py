"""A GAN trained on the same data, by the same clock, into the same run folders: the opponent of the stability studies."""

from headway.gan.losses import LOSSES, AdversarialLoss, r1_penalty
from headway.gan.networks import Discriminator, Generator, build
from headway.gan.recipe import GanRecipe, is_gan, load_recipe
from headway.gan.state import load, load_checkpoint, load_pair
from headway.gan.training import train

__all__ = [
    "LOSSES",
    "AdversarialLoss",
    "Discriminator",
    "GanRecipe",
    "Generator",
    "build",
    "is_gan",
    "load",
    "load_checkpoint",
    "load_pair",
    "load_recipe",
    "r1_penalty",
    "train",
]
