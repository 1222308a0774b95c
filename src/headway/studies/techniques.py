"""All techniques that a recipe can name: their slot, what they are, their options; made from the registries themselves."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from headway import noise, optim, sampling, weighting
from headway.coupling import COUPLINGS
from headway.frameworks import momentum


@dataclass(frozen=True)
class Technique:
    """setting: how a recipe chooses it. about: formula and source in a line. options: its own, with their defaults."""

    setting: str
    about: str
    options: dict[str, Any]


def techniques() -> Iterator[Technique]:
    """Every technique, slot by slot."""
    for kind in (momentum.Released, momentum.LiteralTime, momentum.Propagated, momentum.Unit):
        yield Technique(f"framework.momentum={kind.kind}", _first_line(kind), {})
    for name, builder in noise.DENSITIES.items():
        yield Technique(f"noise={name}", _first_line(builder), noise.options(name))
    for name, coupling in COUPLINGS.items():
        yield Technique(f"noise.coupling={name}", _first_line(coupling), {})
    yield Technique("noise.draws=stratified", _first_line(noise.stratified), {})
    for name, weight in weighting.WEIGHTS.items():
        yield Technique(f"weight={name}", _first_line(weight), _options(weight, ("snr", "prediction", "sigma_data")))
    for name, law in optim.LAWS.items():
        yield Technique(f"optim.law={name}", _first_line(law), _options(law, ("tau", "b0")))
    for name, solver in sampling.SOLVERS.items():
        yield Technique(f"sampling.solver={name}", _first_line(solver.run), solver.options)


def listing() -> str:
    """The techniques as text, one to a paragraph."""
    lines = []
    for technique in techniques():
        options = ", ".join(f"{key}={value}" for key, value in technique.options.items())
        lines.append(f"{technique.setting}{f'   ({options})' if options else ''}\n    {technique.about}")
    return "\n".join(lines)


def _options(function: Callable[..., Any], without: tuple[str, ...]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    return {name: parameter.default for name, parameter in parameters.items() if name not in without}


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").splitlines()[0]
