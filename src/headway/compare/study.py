"""A study as a file: the question, the arms, the seeds, and how they are measured; refused where the comparison is not fair."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, field_validator, model_validator

from headway.errors import HeadwayError, suggest
from headway.recipes import Recipe
from headway.recipes.base import flat
from headway.recipes.reading import parse_as
from headway.recipes.sections import Natural, Positive, Section, Title
from headway.sampling import find_solver

# An arm that differs from its baseline here is not a fair comparison unless the study says that it means to.
FAIR = ("data", "network", "train.images", "train.batch", "train.precision", "evaluation")
Share = Annotated[float, Field(gt=0, le=1)]


class Arm(Section):
    """One side of the comparison; ``fdm: [momentum=released]`` is short for ``fdm: {set: [momentum=released]}``.

    Attributes:
        set: overrides of the base recipe, as on the command line. against: the arm it is compared with; None: the study's baseline.
        controls: arms that might explain its gain away. differs: what it may change although that is unfair (of ``FAIR``).
        tuning: what was spent on choosing its settings, in words. ema: which weights are measured; None: the first average.
    """

    set: tuple[str, ...] = ()
    against: str | None = None
    controls: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    tuning: str = "none"
    about: str = ""
    ema: int | Literal["raw"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        return {"set": given} if isinstance(given, list | tuple) else {} if given is None else given


class Sampler(Section):
    """A solver and its number of steps."""

    solver: str = "heun"
    steps: Positive = 18

    @field_validator("solver")
    @classmethod
    def _known(cls, name: str) -> str:
        find_solver(name)
        return name


class Curve(Sampler):
    """Quality over images: measured ``points`` times, by one cheap sampler."""

    solver: str = "dpmpp-2m"
    steps: Positive = 9
    samples: Positive = 1000
    points: Annotated[int, Field(ge=2)] = 10


class Final(Section):
    """Quality of the finished model: by every sampler, on the same seeds; ``figures``: all further figures, by the first one."""

    samplers: tuple[Sampler, ...] = (Sampler(),)
    samples: Positive = 2000
    figures: bool = True
    averages: tuple[int | Literal["raw"], ...] = ()


class Target(Section):
    """The quality to reach: a value, or the baseline's mean at a share of its budget."""

    share: Share = 0.8
    value: Annotated[float, Field(gt=0)] | None = None


class Study(Section):
    """All that decides a comparison."""

    name: Title
    question: str
    base: str = "edm"
    set: tuple[str, ...] = ()
    arms: dict[str, Arm]
    baseline: str
    seeds: tuple[Natural, ...]
    curve: Curve = Curve()
    final: Final = Final()
    target: Target = Target()

    @model_validator(mode="after")
    def _check(self) -> Study:
        if len(set(self.seeds)) < len(self.seeds) or not self.seeds:
            raise HeadwayError(f"seeds must be different numbers, and at least one; got {list(self.seeds)}.")
        if wrong := [name for name in self.arms if not name.replace("/", "").strip() or "/" in name]:
            raise HeadwayError(f"An arm's name is the name of a folder; it cannot be {wrong[0]!r}.")
        for owner, name in self._references():
            if name not in self.arms:
                raise HeadwayError(f"{owner} names the arm {name!r}, which is not there.{suggest(name, self.arms)}")
        return self

    def _references(self) -> list[tuple[str, str]]:
        named = [("baseline", self.baseline)]
        for name, arm in self.arms.items():
            named += [] if arm.against is None else [(f"arm {name!r} (against)", arm.against)]
            named += [(f"arm {name!r} (controls)", control) for control in arm.controls]
        return named

    @staticmethod
    def load(file: str | Path) -> Study:
        """A study from its YAML file.

        Raises:
            HeadwayError: no such file, broken YAML, an unknown key, an arm that is not fair.
        """
        path = Path(file)
        if not path.is_file():
            raise HeadwayError(f"No study {str(file)!r}: expected a YAML file (docs/compare.md shows one).")
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise HeadwayError(f"{path}: broken YAML: {str(error).splitlines()[0]}.") from None
        study = parse_as(Study, values, str(path))
        study.check_fairness()
        return study

    def against(self, arm: str) -> str | None:
        """The arm that ``arm`` is compared with; None for the baseline itself."""
        other = self.arms[arm].against or self.baseline
        return None if other == arm else other

    def recipe(self, arm: str, seed: int) -> Recipe:
        """What the run of one arm and seed is trained by."""
        recipe = Recipe.load(self.base).with_overrides([*self.set])
        points = self.curve.points
        every = -(-recipe.train.images // points)
        log = ["log.samples=0", f"log.checkpoint={every}", f"log.keep={points + 2}"]
        name = "".join(c if c.isalnum() or c in " .-_" else "-" for c in arm)
        try:
            return recipe.with_overrides([*self.arms[arm].set, *log, f"train.seed={seed}", f"name={name}"])
        except HeadwayError as error:
            raise HeadwayError(f"Arm {arm!r}: {error}") from None

    def differences(self, arm: str) -> dict[str, tuple[Any, Any]]:
        """Key -> (baseline's value, this arm's) of all that the two recipes decide differently."""
        other = self.against(arm)
        if other is None:
            return {}
        theirs, mine = (flat(self.recipe(name, 0).model_dump(mode="json", exclude={"name"})) for name in (other, arm))
        keys = dict.fromkeys([*theirs, *mine])
        return {k: (theirs.get(k), mine.get(k)) for k in keys if theirs.get(k) != mine.get(k)}

    def check_fairness(self) -> None:
        """Refuse arms that differ from their baseline in network, data or budget, unless they say so."""
        for name, arm in self.arms.items():
            for key, (theirs, mine) in self.differences(name).items():
                guarded = [f for f in FAIR if key == f or key.startswith(f"{f}.")]
                if guarded and not any(key == d or key.startswith(f"{d}.") for d in arm.differs):
                    raise HeadwayError(
                        f"Arm {name!r} is not comparable with {self.against(name)!r}: {key} is {mine}, there {theirs}. If that is "
                        f"the question, say so: differs: [{guarded[0]}]."
                    )

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)
