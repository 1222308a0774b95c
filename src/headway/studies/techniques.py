"""All techniques that a recipe can name: their slot, what they are, their options; made from the registries themselves."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from headway import noise, optim, sampling, weighting
from headway.coupling import COUPLINGS
from headway.frameworks import momentum
from headway.studies.overhead import Overhead

_OPTIMIZERS = {
    "adamw": "Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv 1711.05101); the default.",
    "sgd": "Stochastic gradient descent whose momentum is an average of gradients, as in Adam.",
    "muon": "Orthogonalised momentum for matrices (Jordan 2024; Liu et al. 2025, arXiv 2502.16982), AdamW for the rest.",
    "schedulefree": "Schedule-Free AdamW (Defazio et al. 2024, arXiv 2405.15682): an average of weights in place of a schedule.",
}


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
    yield Technique(
        "weight=uncertainty", _first_line(weighting.Uncertainty), _options(weighting.Uncertainty, ("seed",))
    )
    yield Technique("weight.warmup", _first_line(weighting.warmup_ceiling), {})
    for name, law in optim.LAWS.items():
        yield Technique(f"optim.law={name}", _first_line(law), _options(law, ("tau", "b0")))
    for name in optim.OPTIMIZERS:
        yield Technique(f"optim.name={name}", _OPTIMIZERS[name], {})
    for name, solver in sampling.SOLVERS.items():
        yield Technique(f"sampling.solver={name}", _first_line(solver.run), solver.options)


def listing(costs: Iterable[Overhead] = ()) -> str:
    """The techniques as text, one to a paragraph, with what they cost in a training step where ``costs`` says it."""
    by_setting = {cost.setting: cost for cost in costs}
    lines = []
    for technique in techniques():
        options = ", ".join(f"{key}={value}" for key, value in technique.options.items())
        lines.append(f"{technique.setting}{f'   ({options})' if options else ''}\n    {technique.about}")
        if cost := by_setting.get(technique.setting):
            lines.append(f"    {1000 * cost.seconds:.2g} ms, {100 * cost.share:.2g} % of a step")
    return "\n".join(lines)


def _options(function: Callable[..., Any], without: tuple[str, ...]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    return {name: parameter.default for name, parameter in parameters.items() if name not in without}


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").splitlines()[0]
