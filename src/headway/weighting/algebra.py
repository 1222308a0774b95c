"""One algebra for loss weights: stated on x0-prediction, w |x0 - D|^2, and restated for whatever the network predicts.

With SNR = 1 / sigma^2 in x = x0 + sigma eps, the squared error of a prediction is a known multiple of that of x0; dividing w by
that multiple leaves the loss what it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from headway.errors import HeadwayError, unknown

Prediction = Literal["x0", "eps", "v", "flow", "edm"]
PREDICTIONS: tuple[Prediction, ...] = ("x0", "eps", "v", "flow", "edm")

# SNR beyond these counts as 0 and infinity; between them the weights stay within the range of float64.
_LOW, _HIGH = 1e-100, 1e100
_PROBES = torch.tensor([_LOW, 1e20 * _LOW, 1e-20 * _HIGH, _HIGH], dtype=torch.float64, device="cpu")


def squared_error(snr: Tensor, prediction: Prediction, sigma_data: float = 0.5) -> Tensor:
    """The squared error of a prediction as a multiple of that of x0, for 0 < SNR < inf.

    eps: SNR. v = (eps - sigma x0) / sqrt(1 + sigma^2): SNR + 1. flow = eps - x0: 1 / t^2 with t = sigma / (1 + sigma). edm, the
    network's output F in D = c_skip x + c_out F of Karras et al. 2022: 1 / c_out^2 = SNR + 1 / sigma_data^2.
    """
    match prediction:
        case "x0":
            return torch.ones_like(snr)
        case "eps":
            return snr
        case "v":
            return snr + 1
        case "flow":
            return (snr.sqrt() + 1).square()
        case "edm":
            return snr + sigma_data**-2
    raise unknown("prediction", prediction, PREDICTIONS)


def convert(
    weight: Callable[[Tensor], Tensor],
    snr: Tensor | float,
    prediction: Prediction,
    *,
    sigma_data: float = 0.5,
    name: str = "this",
) -> Tensor:
    """The multiplier of a prediction's squared error that weighs the x0 behind it by ``weight``.

    At SNR 0 and infinity it is the limit, never 0/0. NaN and negative SNR give NaN.

    Args:
        weight: w on x0-prediction as a function of SNR, for float64 tensors of any shape with 0 < SNR < inf; towards both ends it
            must go like a power of SNR. snr: any shape, >= 0, inf allowed. prediction: "x0", "eps", "v", "flow" or "edm".
        sigma_data: for "edm". name: of the weight, for errors.

    Returns:
        A tensor of snr's shape, device and floating dtype (float64 for a number).

    Raises:
        HeadwayError: SNR is 0 or infinite somewhere and the multiplier has no finite limit there.
    """

    def multiplier(snr: Tensor) -> Tensor:
        return weight(snr) / squared_error(snr, prediction, sigma_data)

    if not sigma_data > 0:
        raise HeadwayError(f"sigma_data must be a positive number (the data's standard deviation), got {sigma_data}.")
    given = snr if isinstance(snr, Tensor) else torch.tensor(float(snr), dtype=torch.float64)
    exact = given.double()
    result = multiplier(exact.clamp(_LOW, _HIGH))
    beyond_low, low, high, beyond_high = multiplier(_PROBES).tolist()
    for end, there, beyond, near in (
        ("0", exact <= _LOW, beyond_low, low),
        ("infinity", exact >= _HIGH, beyond_high, high),
    ):
        # Both are far out: a multiplier with a limit other than 0 has the same value at both, any other power of SNR has not.
        if math.isclose(beyond, near, rel_tol=1e-9):
            limit = beyond
        elif beyond < near:
            limit = 0.0
        elif bool(there.any()):
            raise HeadwayError(
                f"The {name} weight on {prediction}-prediction is infinite at SNR {end}: keep the noise level away "
                "from that end, or choose another weight or prediction."
            )
        else:
            continue
        result = result.masked_fill(there, limit)
    result = result.masked_fill(exact < 0, torch.nan)
    return result.to(given.dtype) if given.is_floating_point() else result
