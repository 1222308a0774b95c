"""The recipe: everything that decides a training run, as a strict schema.

Unknown keys and values are refused with the nearest right one. ``auto`` values are decided by :func:`Recipe.resolved` from the
data, and the run folder keeps the resolved recipe, in which nothing is left to decide.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import Field, model_validator

from headway.errors import HeadwayError
from headway.recipes.sections import (
    DataSection,
    EvaluationSection,
    FrameworkSection,
    LogSection,
    NetworkSection,
    NoiseSection,
    OptimSection,
    SamplingSection,
    Section,
    TrainSection,
    WeightSection,
)

if TYPE_CHECKING:
    from headway.data import ImageSet

# What may change when a run goes on: where the same images lie, and what is written or measured about the run.
_FREE_TO_CHANGE: Any = {
    **dict.fromkeys(("name", "about", "published", "log", "sampling", "evaluation"), True),
    "data": {"source", "skip_broken"},
}


class Recipe(Section):
    """One training run, decided. ``Recipe.load`` reads a file or preset, ``with_overrides`` applies ``section.key=value``."""

    name: str = Field(
        default="edm", pattern=r"^[\w][\w .-]*$", description="the run's title, and its folder's by default"
    )
    about: str = ""
    framework: FrameworkSection = FrameworkSection()
    noise: NoiseSection = NoiseSection()
    weight: WeightSection = WeightSection()
    data: DataSection = DataSection()
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
        return self

    @staticmethod
    def load(source: str | Path) -> Recipe:
        """A recipe from a YAML file, a run folder, or the name of a preset.

        Raises:
            HeadwayError: no such file or preset, broken YAML, an unknown key or a value out of range.
        """
        from headway.recipes.reading import load

        return load(source)

    def with_data(self, source: str | Path) -> Recipe:
        """This recipe for the images at ``source``: a path or a built-in name, taken as it is."""
        if not isinstance(source, str | Path):
            raise HeadwayError(f"data is a path or the name of a built-in set, got {type(source).__name__}.")
        return self.model_copy(update={"data": self.data.model_copy(update={"source": str(source)})})

    def with_overrides(self, overrides: list[str]) -> Recipe:
        """This recipe with ``section.key=value`` applied; values are YAML, and numbers may be written 1e-4, 200k, 2M."""
        from headway.recipes.reading import override

        return override(self, overrides)

    def to_yaml(self) -> str:
        """All of it, defaults spelled out."""
        return yaml.dump(self.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W), once the data have been read or the recipe says it."""
        size, channels = self.data.size, self.data.channels
        if size == "auto" or channels == "auto":
            raise HeadwayError(
                "The recipe does not say the images' size and channels: give data, or data.size and data.channels."
            )
        height, width = (size, size) if isinstance(size, int) else size
        return channels, height, width

    @property
    def classes(self) -> int:
        """Number of class labels the network learns; 0 for an unconditional model. Until the data are read, 0 for auto."""
        return 0 if self.data.classes == "auto" else self.data.classes

    def differences(self, other: Recipe) -> list[str]:
        """What ``other`` decides differently, as far as a run that goes on may not change it."""
        mine, theirs = (_flat(recipe.model_dump(mode="json", exclude=_FREE_TO_CHANGE)) for recipe in (self, other))
        return [
            f"{key}: {mine.get(key)} there, {theirs.get(key)} now" for key in theirs if mine.get(key) != theirs.get(key)
        ]

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

        def decide(section: Section, **decisions: object) -> dict[str, object]:
            values = section.model_dump()
            return values | {key: value for key, value in decisions.items() if values[key] in ("auto", None)}

        side = max(images.size)
        preset = "tiny" if side <= 16 else "small" if side <= 48 else "base"
        # A path is kept whole, so that the run can be measured from anywhere.
        source = self.data.source
        source = str(Path(source).resolve()) if source is not None and Path(source).exists() else source
        sigma_data = images.std() if self.framework.sigma_data == "auto" else None  # reads every pixel
        values = self.model_dump() | {
            "framework": decide(self.framework, sigma_data=sigma_data),
            "weight": decide(self.weight, warmup=batches(0.05) if momentum else 0),
            "data": decide(
                self.data, size=images.size, channels=images.channels, classes=classes, fingerprint=images.fingerprint
            )
            | {"source": source},
            "network": decide(self.network, preset=preset),
            "train": decide(train, ema=(batches(0.01),), precision=precision) | {"images": budget},
            "optim": decide(self.optim, lr_ramp=min(batches(0.05), budget - train.batch)),
            "log": decide(self.log, tick=batches(0.005), samples=batches(0.25), checkpoint=batches(0.1)),
            "evaluation": decide(
                self.evaluation,
                extractor="classifier" if images.labels is not None else "orientation",
                samples=min(5000, heldout),
            ),
        }
        return Recipe.model_validate(values)


class _Dumper(yaml.SafeDumper):
    """Mappings in blocks, lists in a line: [28, 28]."""


_Dumper.add_representer(
    list, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)
)


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in values.items():
        out |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return out
