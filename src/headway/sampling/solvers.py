"""Solvers: the steps from noise to image along a grid of noise levels, in the unscaled variable x = x0 + sigma eps.

Every solver is ``run(denoise, x, sigmas, noise) -> x``: denoise(x, sigma) estimates x0 (sigma a 0-dimensional tensor), sigmas
decrease and may end in 0, noise(k) is the standard normal noise of step k (only stochastic solvers ask for it). A step to 0
returns the estimate of x0 itself. With lambda = -ln sigma the probability flow is dx/dlambda = D(x) - x, so that from sigma
to sigma' an unchanging estimate D moves x to D + (sigma' / sigma) (x - D), exactly: the first-order step of them all.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from headway.errors import HeadwayError, unknown

Denoise = Callable[[Tensor, Tensor], Tensor]
Noise = Callable[[int], Tensor]


def _toward(x0: Tensor, x: Tensor, ratio: Tensor) -> Tensor:
    """The first-order step; ratio = sigma' / sigma."""
    return x0 + ratio * (x - x0)


def euler(denoise: Denoise, x: Tensor, sigmas: Tensor, noise: Noise) -> Tensor:
    """Euler's method in sigma, which is DDIM with eta = 0 (Song et al. 2021, arXiv 2010.02502) and DPM-Solver++ of order 1."""
    for sigma, after in pairwise(sigmas):
        x = _toward(denoise(x, sigma), x, after / sigma)
    return x


def _heun_step(denoise: Denoise, x: Tensor, sigma: Tensor, after: Tensor) -> Tensor:
    slope = (x - denoise(x, sigma)) / sigma
    end = x + (after - sigma) * slope
    if after > 0:
        slope_after = (end - denoise(end, after)) / after
        end = x + (after - sigma) * (slope + slope_after) / 2
    return end


def heun(denoise: Denoise, x: Tensor, sigmas: Tensor, noise: Noise) -> Tensor:
    """Heun's second-order method (Karras et al. 2022, arXiv 2206.00364, algorithm 1); a step to 0 is Euler's."""
    for sigma, after in pairwise(sigmas):
        x = _heun_step(denoise, x, sigma, after)
    return x


def dpmpp_2m(denoise: Denoise, x: Tensor, sigmas: Tensor, noise: Noise) -> Tensor:
    """DPM-Solver++(2M), multistep (Lu et al. 2022, arXiv 2211.01095, algorithm 2): extrapolates x0 from the step before.

    The first step and a step to 0 are of order 1.
    """
    before = x  # the estimate of the step before; not read in the first step
    for k, (sigma, after) in enumerate(pairwise(sigmas)):
        x0 = denoise(x, sigma)
        target = x0
        if k > 0 and after > 0:
            r = (sigmas[k - 1] / sigma).log() / (sigma / after).log()
            target = x0 + (x0 - before) / (2 * r)
        x = _toward(target, x, after / sigma)
        before = x0
    return x


def singlestep_orders(intervals: int) -> list[int]:
    """The orders of the third-order singlestep solver's steps; their sum, the evaluations they cost, is ``intervals``.

    As many threes as leave 1 or 2 over; where nothing is over, the last three become 2 and 1: "DPM-Solver-fast" (Lu et al.
    2022, arXiv 2206.00927).
    """
    threes, over = divmod(intervals, 3)
    if over:
        return [3] * threes + [over]
    return [3] * (threes - 1) + [2, 1] if threes else []


def dpmpp_3s(denoise: Denoise, x: Tensor, sigmas: Tensor, noise: Noise) -> Tensor:
    """DPM-Solver++, singlestep of order 3, with lower orders at the end.

    DPM-Solver-3 (Lu et al. 2022, arXiv 2206.00927, algorithm 2) restated in x0 as in DPM-Solver++ (arXiv 2211.01095).

    A step of order p spans p intervals of the grid and evaluates D at the p levels where they begin, so one evaluation is
    spent per interval, whatever the grid. :func:`singlestep_orders` says which orders; a step to 0 comes on top.
    """
    levels = sigmas[:-1] if sigmas[-1] == 0 else sigmas
    at = 0
    for order in singlestep_orders(len(levels) - 1):
        sigma, after = levels[at], levels[at + order]
        h = (sigma / after).log()
        x0 = denoise(x, sigma)
        end = _toward(x0, x, after / sigma)
        if order > 1:
            ratio_1 = levels[at + 1] / sigma
            r1 = -ratio_1.log() / h
            change_1 = denoise(_toward(x0, x, ratio_1), levels[at + 1]) - x0
            if order == 2:
                end = end + (1 - after / sigma) / (2 * r1) * change_1
            else:
                ratio_2 = levels[at + 2] / sigma
                r2 = -ratio_2.log() / h
                x_2 = _toward(x0, x, ratio_2) + r2 / r1 * _phi_2(r2 * h) * change_1
                end = end + _phi_2(h) / r2 * (denoise(x_2, levels[at + 2]) - x0)
        x = end
        at += order
    return x if levels is sigmas else denoise(x, levels[-1])


def _phi_2(h: Tensor) -> Tensor:
    """(1/h) times the integral over [0, h] of u e^(u - h): the weight of a slope of x0 in lambda."""
    return 1 + (-h).expm1() / h


def ancestral(denoise: Denoise, x: Tensor, sigmas: Tensor, noise: Noise) -> Tensor:
    """DDPM's ancestral sampling (Ho et al. 2020, arXiv 2006.11239, equations 6 and 7; DDIM with eta = 1), written in sigma.

    Draws x' at sigma' from q(x' | x, x0 = D): mean D + (sigma'/sigma)^2 (x - D), variance sigma'^2 (1 - (sigma'/sigma)^2).
    """
    for k, (sigma, after) in enumerate(pairwise(sigmas)):
        ratio = (after / sigma).square()
        x = _toward(denoise(x, sigma), x, ratio)
        if after > 0:
            x = x + after * (1 - ratio).sqrt() * noise(k)
    return x


def churn(
    denoise: Denoise,
    x: Tensor,
    sigmas: Tensor,
    noise: Noise,
    *,
    s_churn: float = 40.0,
    s_tmin: float = 0.05,
    s_tmax: float = 50.0,
    s_noise: float = 1.003,
) -> Tensor:
    """EDM's stochastic sampler (Karras et al. 2022, arXiv 2206.00364, algorithm 2): Heun steps after a little fresh noise.

    Args:
        s_churn: amount of noise, >= 0: where sigma is in [s_tmin, s_tmax] a step first raises sigma by the factor
            1 + min(s_churn / steps, sqrt(2) - 1). 0 is Heun.
        s_noise: factor on the fresh noise. The defaults are the paper's for ImageNet-64 (table 5).
    """
    gamma = min(s_churn / (len(sigmas) - 1), math.sqrt(2) - 1)
    for k, (sigma, after) in enumerate(pairwise(sigmas)):
        if gamma > 0 and s_tmin <= sigma <= s_tmax:
            raised = sigma * (1 + gamma)
            x = x + s_noise * (raised.square() - sigma.square()).sqrt() * noise(k)
            sigma = raised
        x = _heun_step(denoise, x, sigma, after)
    return x


@dataclass(frozen=True)
class Solver:
    """A solver and what is known of it.

    Attributes:
        run: the function. order: its order of convergence (of its deterministic part, for the stochastic ones).
        grid: the default kind of grid. evaluations: network evaluations per step; the last step, to 0, takes one.
        stochastic: whether it draws noise at every step.
    """

    run: Callable[..., Tensor]
    order: int
    grid: str = "edm"
    evaluations: int = 1
    stochastic: bool = False

    def nfe(self, steps: int) -> int:
        """Network evaluations per image of that many steps, without guidance."""
        return self.evaluations * (steps - 1) + 1

    @property
    def options(self) -> dict[str, float]:
        """Names and defaults of the solver's own options."""
        parameters = inspect.signature(self.run).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


SOLVERS: dict[str, Solver] = {
    "euler": Solver(euler, order=1),
    "heun": Solver(heun, order=2, evaluations=2),
    "dpmpp-2m": Solver(dpmpp_2m, order=2),
    "dpmpp-3s": Solver(dpmpp_3s, order=3, grid="singlestep"),
    "ancestral": Solver(ancestral, order=1, stochastic=True),
    "churn": Solver(churn, order=2, evaluations=2, stochastic=True),
}
_OTHER_NAMES = {"ddim": "euler", "ddpm": "ancestral", "edm": "heun", "dpm": "dpmpp-3s"}


def find_solver(name: str) -> Solver:
    """The solver of that name; the error for an unknown one knows the names others use."""
    if name in SOLVERS:
        return SOLVERS[name]
    other = _OTHER_NAMES.get(name.lower())
    if other:
        raise HeadwayError(f"Unknown solver {name!r}: it is called {other!r} here. All: {', '.join(SOLVERS)}.")
    raise unknown("solver", name, SOLVERS)


def steps_for_nfe(solver: str, nfe: int) -> int:
    """The most steps that spend at most ``nfe`` network evaluations per image, without guidance.

    Raises:
        HeadwayError: unknown solver, or nfe < 1.
    """
    chosen = find_solver(solver)
    if nfe < 1:
        raise HeadwayError(f"A sampler needs at least one network evaluation per image, got nfe={nfe}.")
    return (nfe - 1) // chosen.evaluations + 1
