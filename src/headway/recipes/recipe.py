"""The recipe: everything that decides a training run, as a strict schema.

Unknown keys and values are refused with the nearest right one. ``auto`` values are decided by :func:`Recipe.resolved` from the
data, and the run folder keeps the resolved recipe, in which nothing is left to decide.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from headway import noise
from headway.errors import HeadwayError, unknown
from headway.optim import check_owner, law
from headway.sampling import find_solver
from headway.weighting import weight_for

if TYPE_CHECKING:
    from headway.data import ImageSet

Auto = Literal["auto"]
Positive = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


# What may change when a run goes on: where the same images lie, and what is written or measured about the run.
_FREE_TO_CHANGE: Any = {
    **dict.fromkeys(("name", "about", "published", "log", "sampling", "evaluation"), True),
    "data": {"source", "skip_broken"},
}


_EXTRACTORS = ("auto", "classifier", "orientation", "inception")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class FrameworkSection(Section):
    """Which diffusion framework, and its momentum (FDM)."""

    name: Literal["vp", "ve", "edm", "flow"] = "edm"
    momentum: Literal["released", "literal", "propagated", "unit"] | None = None
    multiplier: PositiveFloat | None = None
    zeta: PositiveFloat = 1.0
    prediction: Literal["eps", "x0", "v"] | None = None
    sigma_data: PositiveFloat | Auto = "auto"
    density: Literal["base", "momentum"] = "base"


class Technique(Section):
    """A section whose ``name`` chooses a technique, whose own options stand beside it; ``noise: clts`` is short for the name."""

    model_config = ConfigDict(extra="allow")
    name: str

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given

    @property
    def options(self) -> dict[str, Any]:
        """The technique's own options, as far as they are given."""
        return dict(self.model_extra or {})


class NoiseSection(Technique):
    """Who owns p(sigma): the framework, a curriculum on top of it, or another density (docs/density.md)."""

    name: str = "framework"
    draws: Literal["plain", "stratified"] = "plain"
    coupling: Literal["independent", "immiscible"] = "independent"
    importance: bool = Field(default=False, description="weigh draws so that the mean loss is the framework density's")

    @model_validator(mode="after")
    def _check(self) -> NoiseSection:
        noise.build(self.name, noise.LogNormal(), **self.options)
        return self


class WeightSection(Technique):
    """Who owns w(sigma) (docs/weights.md), and FDM's warm-up of it.

    ``warmup`` is its length in images; ``auto``: 5 % of the budget with momentum, none without.
    """

    name: str = "framework"
    warmup: Natural | Auto = "auto"
    smooth: bool = False

    @model_validator(mode="after")
    def _check(self) -> WeightSection:
        if self.name != "framework":
            weight_for(self.name, **self.options)
        elif self.options:
            raise HeadwayError(f"the framework's own weight has no options, got {', '.join(self.options)}")
        return self


class OptimSection(Technique):
    """The optimiser, and the law of its learning rate and beta1 (docs/laws.md). ``name`` is the optimiser's.

    The ramp multiplies every law. Options beside these are the law's.
    """

    name: Literal["adamw", "sgd", "muon"] = "adamw"
    law: str = "constant"
    lr: PositiveFloat = 1e-3
    lr_ramp: Natural | Auto = "auto"
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    clip: PositiveFloat | None = 1.0

    @model_validator(mode="after")
    def _check(self) -> OptimSection:
        check_owner(self.name, self.law)
        law(self.law, **self.options)(0.5, self.betas[0])
        return self


class DataSection(Section):
    """Which images, and how they are read. ``auto`` size and channels are the images' own."""

    source: str | None = None
    size: Positive | tuple[Positive, Positive] | Auto = "auto"
    channels: Literal[1, 3] | Auto = "auto"
    labels: bool | str = Field(
        default=False, description="train class-conditionally; a string names a JSON map of labels"
    )
    classes: Natural | Auto = "auto"
    heldout: Annotated[float, Field(gt=0, lt=1)] = 0.1
    skip_broken: bool = False
    xflip: bool = False
    augment: Annotated[float, Field(ge=0, le=1)] = 0.0
    fingerprint: str | None = Field(default=None, description="of the images; filled in when the data are read")


class NetworkSection(Section):
    """Which network; see ``headway info`` for the presets. What is None is the preset's own."""

    preset: str = "auto"
    patch: Positive | None = None
    dropout: Fraction = 0.0
    model_channels: Positive | None = None
    channel_mult: tuple[Positive, ...] | None = None
    blocks: Positive | None = None
    attention: tuple[Natural, ...] | None = None
    embedding: Literal["positional", "fourier"] | None = None


class TrainSection(Section):
    """The budget. Every length is in images seen, the only clock."""

    images: Positive = 400_000
    batch: Positive = 128
    accumulation: Positive = 1
    seed: Natural = 0
    precision: Literal["fp32", "bf16", "fp16"] | Auto = "auto"
    ema: tuple[Positive, ...] | Auto = Field(
        default="auto", description="half-lives in images; auto: one, 1 % of the budget"
    )
    ema_rampup: Annotated[float, Field(ge=0, le=1)] = 0.05
    label_drop: Fraction = 0.1


class LogSection(Section):
    """What a run leaves behind, and how often (in images). It may change when a run goes on; the rest may not."""

    tick: Positive | Auto = "auto"
    samples: Natural | Auto = "auto"
    checkpoint: Positive | Auto = "auto"
    keep: Positive = 2
    tensorboard: bool = False


class SamplingSection(Section):
    """How the run's own grids and its evaluation are sampled."""

    solver: str = "heun"
    steps: Positive = 18
    guidance: Annotated[float, Field(ge=0)] = 1.0

    @field_validator("solver")
    @classmethod
    def _known_solver(cls, name: str) -> str:
        find_solver(name)
        return name


class EvaluationSection(Section):
    """What ``headway evaluate`` measures by default."""

    extractor: str = Field(default="auto", description="auto: classifier where there are labels, else orientation")
    samples: Positive | Auto = "auto"

    @field_validator("extractor")
    @classmethod
    def _known_extractor(cls, name: str) -> str:
        if name not in _EXTRACTORS and ":" not in name:
            raise unknown("extractor", name, [*_EXTRACTORS, "package.module:Factory"])
        return name


class Recipe(Section):
    """One training run, decided. ``Recipe.load`` reads a file or preset, ``with_overrides`` applies ``section.key=value``."""

    name: str = "edm"
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
        values = self.model_dump() | {
            "framework": decide(self.framework, sigma_data=images.std()),
            "weight": decide(self.weight, warmup=batches(0.05) if momentum else 0),
            "data": decide(
                self.data, size=images.size, channels=images.channels, classes=classes, fingerprint=images.fingerprint
            ),
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
