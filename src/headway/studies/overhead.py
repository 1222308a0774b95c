"""What each technique costs: its own calls, timed alone, over the median training step of the `small` backbone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from torch import nn

from headway import backbones, noise, optim, weighting
from headway.coupling import COUPLINGS
from headway.denoiser import Denoiser, expand
from headway.frameworks import framework

BATCH, SHAPE = 128, (1, 28, 28)
SETUP = "network small, plain EDM, AdamW, a batch of 128 images of 28x28, median"
_BLOCK = 64


@dataclass(frozen=True)
class Overhead:
    """setting: how a recipe chooses the technique. seconds: its calls take in a step. share: of the step."""

    setting: str
    seconds: float
    share: float


def overheads(device: str = "cpu", repeats: int = 20, steps: int = 5) -> tuple[float, list[Overhead]]:
    """Seconds of a step (median; batch 128 of 28x28, plain EDM, AdamW), and what every technique's own calls take in one.

    What a technique replaces is not subtracted, so that a figure is an upper bound. The optimisers among them are replacements
    of AdamW, which the step contains: compare their figures with its own.
    """
    network = backbones.build("small", channels=SHAPE[0], size=SHAPE[1:], seed=0).to(device).train()
    step = _median(_step(network, device), steps, device)
    rows = []
    for setting, call in (*_calls(device), *_optimizers(network)):
        seconds = _median(call, repeats, device)
        rows.append(Overhead(setting, seconds, seconds / step))
    return step, rows


def _step(network: nn.Module, device: str) -> Callable[[], Any]:
    plain = framework("edm")
    denoiser = Denoiser(network, plain, shape=SHAPE)
    optimizer = optim.make_optimizer("adamw", network.parameters(), lr=1e-4)
    generator = torch.Generator(device).manual_seed(0)
    x0, eps = (torch.randn(BATCH, *SHAPE, device=device, generator=generator) for _ in range(2))
    quantiles = torch.rand(BATCH, dtype=torch.float64)

    def step() -> None:
        sigma = plain.density.icdf(quantiles, 0.5).to(device)
        weight = plain.weight(sigma).float()
        error = (denoiser(x0 + expand(sigma, x0).float() * eps, sigma) - x0).square().flatten(1).mean(1)
        (error * weight).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _calls(device: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every technique of the training loop by its setting, with the calls that a step makes to it."""
    generator = torch.Generator().manual_seed(0)
    quantiles = torch.rand(BATCH, dtype=torch.float64, generator=generator)
    x0, eps = (torch.randn(BATCH, *SHAPE, generator=generator).to(device) for _ in range(2))
    base = framework("edm")
    sigma = base.density.icdf(quantiles, 0.5)
    loss = torch.rand(BATCH, dtype=torch.float64, generator=generator)
    for kind in ("released", "propagated", "unit"):
        yield f"framework.momentum={kind}", partial(framework("edm", kind).c_in, sigma.to(device))
    # EDM has no time of its own, so the literal kind is VP's.
    yield "framework.momentum=literal", partial(framework("vp", "literal").c_in, sigma.to(device))
    for name in noise.DENSITIES:
        yield f"noise={name}", _drawn(noise.build(name, base.density, base.weight), quantiles, sigma, loss)
    for name, coupling in COUPLINGS.items():
        yield f"noise.coupling={name}", partial(coupling, x0, eps)
    uniforms = torch.rand(_BLOCK, 2, dtype=torch.float64, generator=generator)
    yield "noise.draws=stratified", lambda: [noise.stratified(uniforms) for _ in range(BATCH // _BLOCK)]
    for name in weighting.WEIGHTS:
        yield f"weight={name}", partial(weighting.weight_for(name), sigma)
    yield "weight=uncertainty", _learnt(sigma.to(device), loss.to(device))
    yield "weight.warmup", partial(weighting.warmed_up, base.weight(sigma), 50, 100)
    for name in optim.LAWS:
        yield f"optim.law={name}", _driven(name)


def _optimizers(network: nn.Module) -> Iterator[tuple[str, Callable[[], Any]]]:
    for name in optim.OPTIMIZERS:
        if name == "schedulefree" and find_spec("schedulefree") is None:
            continue
        parameters = [nn.Parameter(torch.zeros_like(p)) for p in network.parameters()]
        optimizer = optim.make_optimizer(name, parameters, lr=1e-4)
        if name == "schedulefree":
            optimizer.train()  # type: ignore[attr-defined]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        yield f"optim.name={name}", optimizer.step


def _drawn(
    density: noise.Density, quantiles: torch.Tensor, sigma: torch.Tensor, loss: torch.Tensor
) -> Callable[[], Any]:
    def call() -> None:
        density.icdf(quantiles, 0.5)
        if isinstance(density, noise.Online):
            density.observe(sigma, loss, loss)
            density.reduce()

    return call


def _learnt(sigma: torch.Tensor, loss: torch.Tensor) -> Callable[[], Any]:
    learnt = weighting.Uncertainty().to(sigma.device)
    return lambda: torch.autograd.backward(learnt.loss(loss, sigma).objective.mean())


def _driven(name: str) -> Callable[[], Any]:
    law = optim.law(name)
    optimizer = optim.make_optimizer("adamw", [torch.zeros(1, requires_grad=True)], lr=1e-3)

    def call() -> None:
        rates = law(optim.after_warmup(50, 100, 10), 0.9)
        optim.set_rates(optimizer, 1e-3 * rates.factor, rates.beta1)

    return call


def _median(call: Callable[[], Any], repeats: int, device: str) -> float:
    call()  # caches, tables and allocations are made once, not in every step
    seconds = []
    for _ in range(repeats):
        _synchronise(device)
        since = time.perf_counter()
        call()
        _synchronise(device)
        seconds.append(time.perf_counter() - since)
    return median(seconds)


def _synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
