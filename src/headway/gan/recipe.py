"""The recipe of a GAN: a strict schema of its own, read and overridden as a diffusion model's is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from headway.errors import HeadwayError
from headway.gan.networks import Init, Norm
from headway.recipes import Recipe, RecipeBase, parse, presets
from headway.recipes.base import decided, decided_data, decided_evaluation
from headway.recipes.reading import find, parse_as
from headway.recipes.sections import (
    Auto,
    EvaluationSection,
    Fraction,
    LogSection,
    Named,
    Natural,
    Positive,
    PositiveFloat,
    Section,
    Title,
)

if TYPE_CHECKING:
    from headway.data import ImageSet

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"gan": {"model": "gan", "name": "gan", "about": "A convolutional GAN, the diffusion models' opponent."}}
)


class LossSection(Named):
    """The adversarial loss, and gamma of the R1 penalty on it (headway.gan.losses)."""

    name: Literal["non-saturating", "hinge"] = "non-saturating"
    r1: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class GanNetworkSection(Section):
    """Both networks (headway.gan.networks)."""

    width: Positive = 16
    depth: Positive = 1
    latent: Positive = 64
    norm: Norm = "batch"
    spectral: bool = True
    init: Init = "orthogonal"


class GanTrainSection(Section):
    """The budget, in real images that the discriminator has seen. ``n_dis``: its steps, of one batch each, a generator's step."""

    images: Positive = 200_000
    batch: Positive = 64
    n_dis: Positive = 1
    seed: Natural = 0
    ema: tuple[Positive, ...] | Auto = Field(
        default="auto", description="half-lives in images; auto: one, 5 % of the budget"
    )
    ema_rampup: Annotated[float, Field(ge=0, le=1)] = 0.05


class GanOptimSection(Named):
    """Each network's optimiser. ``lr`` is the generator's.

    ``lr_discriminator`` auto: four times that under spectral normalisation, which slows a discriminator (Heusel et al. 2017;
    Zhang et al. 2019, section 3.2), else the same.
    """

    name: Literal["adamw", "sgd", "muon"] = "adamw"
    lr: PositiveFloat = 1e-3
    lr_discriminator: PositiveFloat | Auto = "auto"
    betas: tuple[Fraction, Fraction] = (0.5, 0.999)
    eps: PositiveFloat = 1e-8


class GanRecipe(RecipeBase):
    """One GAN training run, decided. ``GanRecipe.load`` reads a file or the preset ``gan``."""

    # Tells a GAN's recipe from a diffusion model's.
    model: Literal["gan"] = "gan"
    name: Title = "gan"
    network: GanNetworkSection = GanNetworkSection()
    loss: LossSection = LossSection()
    train: GanTrainSection = GanTrainSection()
    optim: GanOptimSection = GanOptimSection()
    evaluation: EvaluationSection = EvaluationSection()
    log: LogSection = LogSection()

    @model_validator(mode="after")
    def _check(self) -> GanRecipe:
        if self.data.labels:
            raise ValueError("a GAN here is unconditional: leave data.labels out")
        if self.data.augment:
            raise ValueError("a GAN would learn the augmentation: leave data.augment out (data.xflip is possible)")
        return self

    @staticmethod
    def load(source: str | Path) -> GanRecipe:
        """A GAN's recipe from a YAML file, a run folder, or the preset "gan".

        Raises:
            HeadwayError: as :meth:`headway.Recipe.load`, and for a diffusion model's recipe.
        """
        recipe = load_recipe(source)
        if not isinstance(recipe, GanRecipe):
            raise HeadwayError(f"{source}: this is the recipe of a diffusion model, not of a GAN.")
        return recipe

    @property
    def method(self) -> str:
        """The loss and its penalty in a few words."""
        return f"gan, {self.loss.name}" + (f" + R1 {self.loss.r1:g}" if self.loss.r1 else "")

    @property
    def architecture(self) -> str:
        """The networks in a few words."""
        network = self.network
        return f"width {network.width}, depth {network.depth}" + (", spectral norm" if network.spectral else "")

    def resolved(self, images: ImageSet, heldout: int) -> GanRecipe:
        """This recipe with every ``auto`` decided.

        Args:
            images: the training images. heldout: how many are held out.
        """
        if self.data.fingerprint not in (None, images.fingerprint):
            raise HeadwayError(
                f"This recipe was decided for other images than {self.data.source}: give those, or set data.fingerprint=null "
                "to use its other settings on these."
            )
        train, optim, log = self.train, self.optim, self.log
        turn = train.batch * train.n_dis
        budget = math.ceil(train.images / turn) * turn

        def turns(share: float) -> int:
            return max(1, round(budget * share / turn)) * turn

        values = self.model_dump() | {
            "data": decided_data(self.data, images, classes=0),
            "train": decided(train, ema=(turns(0.05),)) | {"images": budget},
            "optim": decided(optim, lr_discriminator=optim.lr * (4 if self.network.spectral else 1)),
            "log": decided(log, tick=turns(0.005), samples=turns(0.25), checkpoint=turns(0.1)),
            "evaluation": decided_evaluation(self.evaluation, images, heldout),
        }
        return GanRecipe.model_validate(values)


def load_recipe(source: str | Path) -> Recipe | GanRecipe:
    """The recipe of a file, a run folder or a preset, whichever kind of model it is for."""
    values, where = find(source, {**presets(), **PRESETS})
    if isinstance(values, dict) and values.get("model") == "gan":
        return parse_as(GanRecipe, values, where)
    return parse(values, where)


def is_gan(run: str | Path) -> bool:
    """Whether a run folder holds a GAN."""
    return isinstance(load_recipe(Path(run)), GanRecipe)
