"""The field's loss weights, each by its paper's formula: as a multiplier for anyone's loss, and by name as w(sigma).

Every function takes SNR = alpha^2 / sigma^2 (1 / sigma^2 in Headway's sigma; alpha_bar / (1 - alpha_bar) in DDPM's terms) of any
shape and returns the multiplier of the squared error of ``prediction``: "x0", "eps", "v", "flow" or "edm" (with sigma_data).
See :func:`headway.weighting.algebra.convert` for what happens at SNR 0 and infinity. All are functions of SNR alone: no state.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from headway.errors import HeadwayError, refuse_unknown_options, unknown
from headway.weighting.algebra import Prediction, convert


def min_snr(
    snr: Tensor | float, gamma: float = 5.0, prediction: Prediction = "eps", *, sigma_data: float = 0.5
) -> Tensor:
    """Min-SNR-gamma: min(SNR, gamma) on x0 (Hang et al. 2023, arXiv 2303.09556)."""
    _positive("min-snr", gamma=gamma)
    return convert(lambda r: r.clamp(max=gamma), snr, prediction, sigma_data=sigma_data, name="min-snr")


def soft_min_snr(
    snr: Tensor | float, gamma: float = 4.0, prediction: Prediction = "eps", *, sigma_data: float = 0.5
) -> Tensor:
    """gamma SNR / (SNR + gamma) on x0 (Crowson et al. 2024, arXiv 2401.11605). gamma = 1 / sigma_data^2 is k-diffusion's."""
    _positive("soft-min-snr", gamma=gamma)
    return convert(lambda r: gamma * r / (r + gamma), snr, prediction, sigma_data=sigma_data, name="soft-min-snr")


def p2(
    snr: Tensor | float,
    k: float = 1.0,
    gamma: float = 1.0,
    prediction: Prediction = "eps",
    *,
    sigma_data: float = 0.5,
) -> Tensor:
    """P2: SNR / (k + SNR)^gamma on x0, so 1 / (k + SNR)^gamma on eps (Choi et al. 2022, arXiv 2204.00227)."""
    _positive("p2", k=k, gamma=gamma)
    return convert(lambda r: r / (k + r) ** gamma, snr, prediction, sigma_data=sigma_data, name="p2")


def debiased(snr: Tensor | float, prediction: Prediction = "eps", *, sigma_data: float = 0.5) -> Tensor:
    """Debiased estimation: sqrt(SNR) on x0, so 1 / sqrt(SNR) on eps (Yu et al. 2023, arXiv 2310.08442)."""
    return convert(torch.sqrt, snr, prediction, sigma_data=sigma_data, name="debiased")


def speed(
    snr: Tensor | float,
    lam: float = 0.6,
    tau: float = 1.0,
    prediction: Prediction = "eps",
    *,
    sigma_data: float = 0.5,
) -> Tensor:
    """SpeeD's change-aware weight (Wang et al. 2024, arXiv 2405.17403): on eps, the speed at which noise comes in, rescaled.

    That speed is d(1 - alpha_bar)/dt of the linear VP process, brought to [1 - lam, lam] over t in [0, 1]. Reconstructed from the
    paper's description and code; see docs/weights.md.

    Args:
        lam: in [0.5, 1]. tau: from this VP time on the weight is 1, as in the released code with 0.7; 1 for nowhere.
    """
    if not (0.5 <= lam <= 1 and 0 < tau <= 1):
        raise HeadwayError(f"Weight speed needs lam in [0.5, 1] and tau in (0, 1], got {lam} and {tau}.")
    end = _vp_decay(tau)

    def weight(r: Tensor) -> Tensor:
        decay = r.reciprocal().log1p()
        beta = (_BETA_MIN**2 + 2 * _BETA_D * decay).sqrt()
        slope = beta * (-decay).exp()
        on_eps = (1 - lam) + (2 * lam - 1) / (_FASTEST - _SLOWEST) * (slope - _SLOWEST).clamp(min=0)
        return r * (on_eps if tau == 1 else torch.where(decay < end, on_eps, 1.0))

    return convert(weight, snr, prediction, sigma_data=sigma_data, name="speed")


# The linear VP process, alpha_bar(t) = exp(-decay(t)) with decay = beta_d t^2 / 2 + beta_min t (Song et al. 2021), and
# d(1 - alpha_bar)/dt where it is largest (beta(t)^2 = beta_d) and at t = 1, where it is smallest.
_BETA_MIN, _BETA_D = 0.1, 19.9
_FASTEST = math.sqrt(_BETA_D) * math.exp((_BETA_MIN**2 / _BETA_D - 1) / 2)
_SLOWEST = (_BETA_MIN + _BETA_D) * math.exp(-(_BETA_MIN + _BETA_D / 2))


def _vp_decay(t: float) -> float:
    return 0.5 * _BETA_D * t**2 + _BETA_MIN * t


def _positive(name: str, **values: float) -> None:
    for option, value in values.items():
        if not 0 < value < float("inf"):
            raise HeadwayError(f"Weight {name} needs {option} > 0, got {value}.")


WEIGHTS: dict[str, Callable[..., Tensor]] = {
    "min-snr": min_snr,
    "soft-min-snr": soft_min_snr,
    "p2": p2,
    "debiased": debiased,
    "speed": speed,
}


def weight_for(name: str, **options: float) -> Callable[[Tensor], Tensor]:
    """w(sigma) on x0-prediction, by name: ``weight_for("min-snr", gamma=5)``. sigma > 0 of any shape.

    Raises:
        HeadwayError: an unknown name or option, naming the nearest right one; a value out of range.
    """
    if name not in WEIGHTS:
        raise unknown("weight", name, WEIGHTS)
    known = [p for p in inspect.signature(WEIGHTS[name]).parameters if p not in ("snr", "prediction", "sigma_data")]
    refuse_unknown_options(f"weight {name!r}", options, known)
    multiplier: Callable[..., Tensor] = partial(WEIGHTS[name], prediction="x0", **options)
    multiplier(1.0)  # judges the options

    def weight(sigma: Tensor) -> Tensor:
        return multiplier(sigma.double().square().reciprocal()).to(sigma.dtype)

    return weight
