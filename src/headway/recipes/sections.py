"""The sections of a recipe: their keys, defaults and ranges, and the checks that need one section only."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from headway import noise
from headway.errors import HeadwayError, refuse_unknown_options, unknown
from headway.optim import check_owner, law
from headway.sampling import find_solver
from headway.weighting import WEIGHTS, Uncertainty, weight_for

Auto = Literal["auto"]
Positive = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
# The name of a folder, too; what reading.py says of a wrong one is this pattern in words.
Title = Annotated[str, Field(pattern=r"^[\w][\w .-]*$")]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]

_EXTRACTORS = ("auto", "classifier", "orientation", "inception")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Named(Section):
    """A section that is about its ``name``; ``noise: clts`` is short for ``noise: {name: clts}``."""

    name: str

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given


class FrameworkSection(Named):
    """Which diffusion framework, and its momentum (FDM)."""

    name: Literal["vp", "ve", "edm", "flow"] = "edm"
    momentum: Literal["released", "literal", "propagated", "unit"] | None = None
    multiplier: PositiveFloat | None = None
    zeta: PositiveFloat = 1.0
    prediction: Literal["eps", "x0", "v"] | None = None
    sigma_data: PositiveFloat | Auto = "auto"
    density: Literal["base", "momentum"] = "base"


class Technique(Named):
    """A section whose ``name`` chooses a technique, whose own options stand beside it."""

    model_config = ConfigDict(extra="allow")

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
    """Who owns w(sigma) (docs/weights.md), and FDM's warm-up of it. ``uncertainty`` is the framework's, with EDM2's learnt factor.

    ``warmup`` is its length in images; ``auto``: 5 % of the budget with momentum, none without.
    """

    name: str = "framework"
    warmup: Natural | Auto = "auto"
    smooth: bool = False

    @model_validator(mode="after")
    def _check(self) -> WeightSection:
        if self.name == "uncertainty":
            refuse_unknown_options("weight 'uncertainty'", self.options, ["features"])
            Uncertainty(**self.options)
        elif self.name in WEIGHTS:
            weight_for(self.name, **self.options)
        elif self.name != "framework":
            raise unknown("weight", self.name, ["framework", "uncertainty", *WEIGHTS])
        elif self.options:
            raise HeadwayError(f"the framework's own weight has no options, got {', '.join(self.options)}")
        return self


class OptimSection(Technique):
    """The optimiser, and the law of its learning rate and beta1 (docs/laws.md). ``name`` is the optimiser's.

    The ramp multiplies every law. Options beside these are the law's.
    """

    name: Literal["adamw", "sgd", "muon", "schedulefree"] = "adamw"
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
    width: Positive | None = None
    depth: Positive | None = None
    heads: Positive | None = None
    init: Literal["xavier", "orthogonal", "torch"] | None = None

    @field_validator("preset")
    @classmethod
    def _known_preset(cls, name: str) -> str:
        if name != "auto":
            from headway.backbones import PRESETS  # imports diffusers: only where a network is named

            if name not in PRESETS:
                raise unknown("network preset", name, PRESETS)
        return name


class TrainSection(Section):
    """The budget. Every length is in images seen, the only clock."""

    images: Positive = 400_000
    batch: Positive = 128
    accumulation: Positive = 1
    seed: Natural = 0
    precision: Literal["fp32", "bf16", "fp16"] | Auto = "auto"
    ema: tuple[Positive | Share, ...] | Auto = Field(
        default="auto", description="half-lives in images, or below 1 as shares of the budget; auto: one of 0.01"
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
