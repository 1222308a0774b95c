"""The recipe: everything that decides a training run, as a strict schema.

Unknown keys and values are refused with the nearest right one. ``auto`` values are decided by :func:`Recipe.resolved` from the
data, and the run folder keeps the resolved recipe, in which nothing is left to decide.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from headway.errors import HeadwayError
from headway.recipes.base import RecipeBase, decided, decided_data, decided_evaluation
from headway.recipes.sections import (
    EvaluationSection,
    FrameworkSection,
    LogSection,
    NetworkSection,
    NoiseSection,
    OptimSection,
    SamplingSection,
    TrainSection,
    WeightSection,
)

if TYPE_CHECKING:
    from headway.data import ImageSet


class Recipe(RecipeBase):
    """One training run, decided. ``Recipe.load`` reads a file or preset, ``with_overrides`` applies ``section.key=value``."""

    framework: FrameworkSection = FrameworkSection()
    noise: NoiseSection = NoiseSection()
    weight: WeightSection = WeightSection()
    network: NetworkSection = NetworkSection()
    train: TrainSection = TrainSection()
    optim: OptimSection = OptimSection()
    sampling: SamplingSection = SamplingSection()
    evaluation: EvaluationSection = EvaluationSection()
    log: LogSection = LogSection()
    published: dict[str, Any] = Field(
        default_factory=dict, description="for reproduction presets: figures to compare with"
    )

    @model_validator(mode="after")
    def _check(self) -> Recipe:
        if self.framework.density == "momentum" and self.noise.name != "framework":
            raise ValueError(
                f"two owners of the noise density: framework.density=momentum and noise.name={self.noise.name}; leave one out"
            )
        if self.train.batch < self.train.accumulation:
            raise ValueError(
                f"train.batch ({self.train.batch}) must be at least train.accumulation ({self.train.accumulation})"
            )
        if self.optim.name == "schedulefree" and self.train.ema not in ("auto", ()):
            raise ValueError(
                f"two owners of the weight average: optim.name=schedulefree and train.ema={list(self.train.ema)}; leave one out"
            )
        return self

    @staticmethod
    def load(source: str | Path) -> Recipe:
        """A recipe from a YAML file, a run folder, or the name of a preset.

        Raises:
            HeadwayError: no such file or preset, broken YAML, an unknown key or a value out of range.
        """
        from headway.recipes.reading import load

        return load(source)

    @property
    def method(self) -> str:
        """The framework, and its momentum, in a few words."""
        return " + ".join(filter(None, (self.framework.name, self.framework.momentum)))

    @property
    def architecture(self) -> str:
        """The network in a word."""
        return self.network.preset

    @property
    def classes(self) -> int:
        """Number of class labels the network learns; 0 for an unconditional model. Until the data are read, 0 for auto."""
        return 0 if self.data.classes == "auto" else self.data.classes

    def resolved(self, images: ImageSet, heldout: int, precision: Literal["fp32", "bf16"]) -> Recipe:
        """This recipe with every ``auto`` decided.

        Args:
            images: the training images. heldout: how many are held out. precision: what ``auto`` means on this machine.
        """
        classes = images.classes if self.data.labels else 0
        if self.data.classes not in ("auto", classes):
            raise HeadwayError(
                f"data.classes says {self.data.classes}, but {images.name} gives {classes} classes to learn "
                f"(data.labels={self.data.labels})."
            )
        if self.data.fingerprint not in (None, images.fingerprint):
            raise HeadwayError(
                f"This recipe was decided for other images than {self.data.source}: give those, or set data.fingerprint=null, "
                f"data.classes=auto and framework.sigma_data=auto to use its other settings on these."
            )
        if self.sampling.guidance != 1 and not classes:
            raise HeadwayError(
                f"sampling.guidance={self.sampling.guidance:g} needs a class-conditional model: set data.labels=true."
            )
        train, momentum = self.train, self.framework.momentum is not None
        budget = math.ceil(train.images / train.batch) * train.batch

        def batches(share: float) -> int:
            return max(1, round(budget * share / train.batch)) * train.batch

        given = (() if self.optim.name == "schedulefree" else (0.01,)) if train.ema == "auto" else train.ema
        averages = tuple(dict.fromkeys(batches(each) if each < 1 else int(each) for each in given))
        side = max(images.size)
        preset = "tiny" if side <= 16 else "small" if side <= 48 else "base"
        sigma_data = images.std() if self.framework.sigma_data == "auto" else None  # reads every pixel
        values = self.model_dump() | {
            "framework": decided(self.framework, sigma_data=sigma_data),
            "weight": decided(self.weight, warmup=batches(0.05) if momentum else 0),
            "data": decided_data(self.data, images, classes),
            "network": decided(self.network, preset=preset),
            "train": decided(train, precision=precision) | {"ema": averages, "images": budget},
            "optim": decided(self.optim, lr_ramp=min(batches(0.05), budget - train.batch)),
            "log": decided(self.log, tick=batches(0.005), samples=batches(0.25), checkpoint=batches(0.1)),
            "evaluation": decided_evaluation(self.evaluation, images, heldout),
        }
        return Recipe.model_validate(values)
