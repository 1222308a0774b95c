"""What a GAN's checkpoint holds, and the trained networks back from it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from torch import nn

from headway.gan.networks import Discriminator, Generator, build
from headway.gan.recipe import GanRecipe
from headway.optim import WeightAverage, make_optimizer
from headway.training import Run, checkpoint
from headway.training.run import choose_average, restore_network


class GanState:
    """The state of one run in memory, saved and restored whole; the rest is a function of ``nimg``.

    Attributes:
        nimg: real images seen by the discriminator. seconds: spent training.
    """

    def __init__(self, recipe: GanRecipe, device: torch.device) -> None:
        train, optim = recipe.train, recipe.optim
        generator, discriminator = build_networks(recipe)
        self.generator, self.discriminator = generator.to(device), discriminator.to(device)
        half_lives = train.ema if isinstance(train.ema, tuple) else ()
        self.averages = [WeightAverage(self.generator, half_life, train.ema_rampup) for half_life in half_lives]

        def optimizer(network: nn.Module, lr: float) -> torch.optim.Optimizer:
            fused = {"fused": True} if device.type == "cuda" and optim.name in ("adamw", "sgd") else {}
            return make_optimizer(optim.name, network.parameters(), lr=lr, betas=optim.betas, eps=optim.eps, **fused)

        self.optimizers = {
            "generator": optimizer(self.generator, optim.lr),
            "discriminator": optimizer(self.discriminator, float(optim.lr_discriminator)),
        }
        self.networks = {"generator": self.generator, "discriminator": self.discriminator}
        self.nimg = 0
        self.seconds = 0.0

    def averaged(self) -> Generator:
        """The generator to sample from: the first average, its statistics measured, or the weights as trained."""
        if not self.averages:
            return self.generator
        return _settled(self.averages[0])

    def save(self, folder: Path, keep: int) -> None:
        """Write a checkpoint; see :func:`headway.training.checkpoint.save`."""
        tensors = {stem: network.state_dict() for stem, network in self.networks.items()}
        for average in self.averages:
            tensors[f"ema-{average.half_life}"] = _settled(average).state_dict()
        for stem, optimizer in self.optimizers.items():
            tensors[f"optimizer-{stem}"] = checkpoint.optimizer_tensors(optimizer, _names(self.networks[stem]))
        half_lives = [average.half_life for average in self.averages]
        state = {"nimg": self.nimg, "seconds": self.seconds, "ema": half_lives, "torch": torch.__version__}
        checkpoint.save(folder, self.nimg, tensors, state, keep)

    def restore(self, found: Path) -> None:
        """Become what a checkpoint holds."""
        for stem, network in self.networks.items():
            restore_network(network, found, stem)
            tensors = checkpoint.load_tensors(found, f"optimizer-{stem}")
            checkpoint.restore_optimizer(self.optimizers[stem], _names(network), tensors)
        for average in self.averages:
            restore_network(average.network, found, f"ema-{average.half_life}")
        values = checkpoint.load_state(found)
        self.nimg, self.seconds = values["nimg"], values["seconds"]


def _settled(average: WeightAverage) -> Generator:
    """The averaged generator, with statistics of its own until the next update copies the trained one's."""
    generator = average.network
    assert isinstance(generator, Generator)
    generator.settle()
    return generator


def _names(network: nn.Module) -> dict[torch.Tensor, str]:
    return {parameter: name for name, parameter in network.named_parameters()}


def build_networks(recipe: GanRecipe) -> tuple[Generator, Discriminator]:
    """The untrained networks of a resolved recipe, in training mode."""
    return build(recipe.image_shape, seed=recipe.train.seed, **recipe.network.model_dump())


def load(run: str | Path, ema: int | Literal["raw"] | None = None, device: str | torch.device = "cpu") -> Generator:
    """The trained generator of a run, from its newest complete checkpoint, in eval mode.

    Args:
        run: the run folder. ema: None = the run's first weight average; a half-life in images = that one; "raw" = the weights
            as trained, without averaging.

    Raises:
        HeadwayError: no run, a run of another kind, no complete checkpoint, no such average.
    """
    folder = Run.existing(run)
    return load_checkpoint(GanRecipe.load(folder.recipe_file), folder.newest_checkpoint(), ema, device)


def load_checkpoint(
    recipe: GanRecipe, found: Path, ema: int | Literal["raw"] | None = None, device: str | torch.device = "cpu"
) -> Generator:
    """:func:`load` for one given checkpoint of a resolved recipe."""
    ema = choose_average(found, ema)
    generator, _ = build_networks(recipe)
    restore_network(generator, found, "generator" if ema == "raw" else f"ema-{ema}")
    return generator.to(device).eval().requires_grad_(False)


def load_pair(
    run: str | Path, at: int | None = None, device: str | torch.device = "cpu"
) -> tuple[Generator, Discriminator]:
    """Both networks of a run as they were trained against each other (no average), in training mode.

    In training mode batch normalisation uses the batch, and spectral normalisation steps its power iteration: a study that
    needs the same function at every call puts the discriminator in eval mode.

    Args:
        at: the checkpoint, by the images it has seen; None = the newest.
    """
    folder = Run.existing(run)
    found = folder.newest_checkpoint() if at is None else folder.checkpoint_at(at)
    generator, discriminator = build_networks(GanRecipe.load(folder.recipe_file))
    restore_network(generator, found, "generator")
    restore_network(discriminator, found, "discriminator")
    return generator.to(device), discriminator.to(device)
