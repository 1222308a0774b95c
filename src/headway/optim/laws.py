"""Laws of the learning rate and of beta1 as pure functions of progress: momentum decay (MDLRC), its controls, its rivals.

A law maps (tau, b0) to a factor of the base learning rate and to beta1. tau in [0, 1] is the share of the budget done since the
end of the learning-rate warm-up (:func:`after_warmup`), b0 the optimiser's own beta1. The warm-up multiplies; it is no law.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from headway.errors import HeadwayError, refuse_unknown_options, unknown


class Rates(NamedTuple):
    """What a law says at one moment: a factor in [0, 1] of the base learning rate, and beta1 in [0, 1)."""

    factor: float
    beta1: float


Law = Callable[[float, float], Rates]


def after_warmup(done: float, total: float, warmup: float = 0) -> float:
    """tau: the share of what follows the warm-up that is done, clipped to [0, 1]. All three in steps, or all in images.

    Args:
        done: before this step, so that the first step has tau 0. total: the budget. warmup: of it, the learning-rate warm-up.
    """
    if not 0 <= warmup < total:
        raise HeadwayError(f"The warm-up must end before the budget does: got a warm-up of {warmup} in {total}.")
    return min(1.0, max(0.0, (done - warmup) / (total - warmup)))


def decayed_beta1(tau: float, b0: float, beta_end: float | None = None, floor: float = 0.0) -> float:
    """beta1 by the Demon rule, b0 (1 - tau) / (1 - b0 tau): the weight of past gradients, b1 / (1 - b1), falls linearly to 0.

    Args:
        beta_end: decay linearly from b0 to this instead. floor: beta1 goes no lower (Demon rule only); both in [0, b0].
    """
    if not (0 <= tau <= 1 and 0 <= b0 < 1):
        raise HeadwayError(f"A law needs tau in [0, 1] and beta1 in [0, 1), got {tau} and {b0}.")
    if beta_end is None:
        if not 0 <= floor <= b0:
            raise HeadwayError(f"floor must lie between 0 and beta1 = {b0}, got {floor}.")
        return min(b0, max(floor, b0 * (1 - tau) / (1 - b0 * tau)))
    if floor:
        raise HeadwayError(f"beta_end = {beta_end} is where beta1 stops: give it or floor = {floor}, not both.")
    if not 0 <= beta_end <= b0:
        raise HeadwayError(f"beta_end must lie between 0 and beta1 = {b0}, got {beta_end}.")
    return min(b0, beta_end + (b0 - beta_end) * (1 - tau))


def mdlrc(tau: float, b0: float, *, beta_end: float | None = None, floor: float = 0.0) -> Rates:
    """Momentum decay with learning-rate compensation (Xu et al. 2024, arXiv 2404.07946): the rate times (1 - b0) / (1 - b1).

    With the Demon rule that factor is exactly 1 - b0 tau. The rule and the end value are reconstructed, see docs/mdlrc.md.
    """
    beta1 = decayed_beta1(tau, b0, beta_end, floor)
    return Rates((1 - b0) / (1 - beta1), beta1)


def decay_only(tau: float, b0: float, *, beta_end: float | None = None, floor: float = 0.0) -> Rates:
    """Control: beta1 as in :func:`mdlrc`, the rate left alone."""
    return Rates(1.0, decayed_beta1(tau, b0, beta_end, floor))


def compensation_only(tau: float, b0: float, *, beta_end: float | None = None, floor: float = 0.0) -> Rates:
    """Control: the rate as in :func:`mdlrc`, beta1 left alone. By default a linear decay to 1 - b0."""
    return Rates(mdlrc(tau, b0, beta_end=beta_end, floor=floor).factor, b0)


def constant(tau: float, b0: float) -> Rates:
    """Neither changes."""
    return Rates(1.0, b0)


def cosine(tau: float, b0: float, *, end: float = 0.0) -> Rates:
    """The rate falls along half a cosine to the share ``end`` in [0, 1] (Loshchilov & Hutter 2017)."""
    if not 0 <= end <= 1:
        raise HeadwayError(f"The cosine's end must be a share of the rate in [0, 1], got {end}.")
    return Rates(end + (1 - end) * 0.5 * (1 + math.cos(math.pi * tau)), b0)


def inverse_sqrt(tau: float, b0: float, *, knee: float = 0.1) -> Rates:
    """The rate is constant until tau = ``knee`` in (0, 1], then falls as 1 / sqrt(tau / knee) (Karras et al. 2024, EDM2)."""
    if not 0 < knee <= 1:
        raise HeadwayError(f"The knee of the inverse square root must be a tau in (0, 1], got {knee}.")
    return Rates(1 / math.sqrt(max(tau / knee, 1.0)), b0)


LAWS: dict[str, Callable[..., Rates]] = {
    "constant": constant,
    "mdlrc": mdlrc,
    "decay-only": decay_only,
    "compensation-only": compensation_only,
    "cosine": cosine,
    "inverse-sqrt": inverse_sqrt,
}


def law(name: str, **options: Any) -> Law:
    """The law of that name with its options bound: a function of (tau, b0).

    Raises:
        HeadwayError: an unknown name or option, naming the nearest right one. Values are judged when the law is called.
    """
    if name not in LAWS:
        raise unknown("law", name, LAWS)
    known = [parameter for parameter in inspect.signature(LAWS[name]).parameters if parameter not in ("tau", "b0")]
    refuse_unknown_options(f"law {name!r}", options, known)
    return partial(LAWS[name], **options)
