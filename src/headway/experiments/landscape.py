"""The experiment on loss landscapes as a file: which models, which lines, planes and spectra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from headway.experiments.landscape_frozen import EVERY_SIGMA, Band
from headway.experiments.models import Experiment
from headway.recipes.sections import Natural, Positive, PositiveFloat, Section

PLAYERS = ("generator", "discriminator")


def _grid(low: float, high: float, points: int) -> list[float]:
    """Evenly spaced, with 0 and 1 met exactly where they are on the grid."""
    return [float(x) for x in np.round(np.linspace(low, high, points), 12)]


class Lines(Section):
    """1-D: ``points`` losses a line; interpolations go ``beyond`` both ends, random ``directions`` from -reach to reach."""

    points: Annotated[int, Field(ge=5)] = 41
    beyond: PositiveFloat = 0.5
    directions: Positive = 2
    reach: PositiveFloat = 1.0

    @model_validator(mode="after")
    def _check(self) -> Lines:
        if not {0.0, 1.0} <= set(self.between):
            raise ValueError(
                f"a line's points must meet both of its ends: {self.points} points from {-self.beyond:g} to "
                f"{1 + self.beyond:g} do not; beyond 0.5 takes 5, 9, 13, ... points"
            )
        if self.points % 2 == 0:
            raise ValueError(f"a random line has the checkpoint in its middle: take an odd number, not {self.points}")
        return self

    @property
    def between(self) -> list[float]:
        """Alphas of an interpolation: 0 is its start, 1 its end."""
        return _grid(-self.beyond, 1 + self.beyond, self.points)

    @property
    def around(self) -> list[float]:
        """Alphas of a random line, whose middle is the checkpoint."""
        return _grid(-self.reach, self.reach, self.points)


class Planes(Section):
    """2-D: ``points`` a side. ``bands``: the random plane by band of sigma as well."""

    points: Annotated[int, Field(ge=3)] = 21
    reach: PositiveFloat = 1.0
    bands: bool = False

    @model_validator(mode="after")
    def _check(self) -> Planes:
        if self.points % 2 == 0:
            raise ValueError(f"a plane has the checkpoint in its middle: take an odd number, not {self.points}")
        return self

    @property
    def around(self) -> list[float]:
        return _grid(-self.reach, self.reach, self.points)


class Curvature(Section):
    """At ``stages`` of the checkpoints: the ``top`` eigenvalues, the density by ``probes`` x ``steps`` of Lanczos.

    ``rotation`` probes of a GAN's game. ``tol``: relative, of eigenvalues.
    """

    stages: Positive = 3
    top: Annotated[int, Field(ge=5)] = 5
    probes: Annotated[int, Field(ge=2)] = 4
    steps: Annotated[int, Field(ge=3)] = 40
    rotation: Annotated[int, Field(ge=2)] = 8
    tol: PositiveFloat = 1e-3


class LandscapeExperiment(Experiment):
    """All that decides the experiment. Models of one kind that differ in a word other than "seed" are techniques.

    Attributes:
        batch, seed: of the frozen draws, the same for all models. bands: name -> (from, to) of sigma; null for no upper end.
        samples: of the Frechet distance that says how good each model is.
    """

    batch: Positive = 256
    seed: Natural = 0
    bands: dict[str, tuple[float, float | None]] = {"low": (0.0, 0.15), "middle": (0.15, 1.0), "high": (1.0, None)}  # noqa: RUF012
    lines: Lines = Lines()
    planes: Planes = Planes()
    curvature: Curvature = Curvature()
    samples: Annotated[int, Field(ge=2)] = 1000

    @model_validator(mode="after")
    def _check(self) -> LandscapeExperiment:
        if taken := {"all", "reference"} & set(self.bands):
            raise ValueError(f"a band cannot be called {min(taken)!r}: that is the name of a whole")
        for name, (low, high) in self.bands.items():
            if low < 0 or (high is not None and high <= low):
                raise ValueError(f"band {name!r} must be [from, to] with 0 <= from < to, got {[low, high]}")
        return self

    def origin(self, name: str) -> tuple[Any, ...]:
        """With the word that says whether it is a reference, for that decides its bands and stages."""
        return *super().origin(name), self.models[name].differs

    def band(self, name: str | None) -> Band:
        """Ends of a band of sigma; of None the whole range."""
        if name is None:
            return EVERY_SIGMA
        low, high = self.bands[name]
        return low, EVERY_SIGMA[1] if high is None else high

    def is_reference(self, name: str) -> bool:
        """Whether a diffusion model is one of those that techniques are compared with."""
        return self.models[name].differs == "seed"

    def partner(self, name: str, gans: Mapping[str, bool]) -> str | None:
        """The next model that differs from this one in its seed alone, in a circle; None if there is none.

        Args:
            gans: of the models that are there, which are GANs.
        """
        like = [n for n in gans if gans[n] == gans[name] and self.models[n].differs == self.models[name].differs]
        return like[(like.index(name) + 1) % len(like)] if len(like) > 1 else None

    def bands_of(self, name: str, gan: bool) -> list[str]:
        """The bands in which a model is looked at: reference diffusion models are, others as a whole."""
        return list(self.bands) if self.is_reference(name) and not gan else []

    def stages_of(self, name: str, gan: bool) -> int:
        """At how many stages of training a model's curvature is measured: techniques when they are trained only."""
        return self.curvature.stages if gan or self.is_reference(name) else 1

    def line_names(self, bands: Sequence[str], partner: bool) -> list[tuple[str, str | None]]:
        """(line, band) of one landscape."""
        whole = ["initial to trained", *(["to the next model"] if partner else []), *self.random_lines]
        return [(line, None) for line in whole] + [
            (line, b) for b in bands for line in (whole[0], self.random_lines[0])
        ]

    @property
    def random_lines(self) -> list[str]:
        return [f"random {i + 1}" for i in range(self.lines.directions)]

    def plane_names(self, bands: Sequence[str]) -> list[tuple[str, str | None]]:
        """(plane, band) of one landscape."""
        return [("random", None), ("path", None), *(("random", band) for band in bands if self.planes.bands)]
