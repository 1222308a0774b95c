"""The modifier of any weight w(sigma): a ceiling that rises while training begins (FDM, Wu et al. 2023)."""

from __future__ import annotations

import math

from torch import Tensor

from headway.errors import HeadwayError

WARMUP_START, WARMUP_END = 5.0, 500.0


def warmup_ceiling(nimg: int, length: int, *, smooth: bool = False) -> float:
    """The ceiling on the loss weight after ``nimg`` training images: 5 * 100^(nimg / length) (FDM's released code).

    As published the ceiling is lifted at once when it has reached 500, after ``length`` images; weights above 500 then jump.
    ``smooth`` lets it go on growing at the same rate, so that it passes every weight without a jump. The published length is
    counted in calls of the loss; ours in images, so it neither restarts on resume nor changes with gradient accumulation.

    Args:
        nimg: images seen before this batch, >= 0. length: images the ceiling takes from 5 to 500; 0 = no warm-up.

    Returns:
        A factor >= 5, or inf where there is no ceiling.
    """
    if nimg < 0 or length < 0:
        raise HeadwayError(f"The weight warm-up needs nimg >= 0 and length >= 0, got {nimg} and {length}.")
    if length == 0 or (nimg >= length and not smooth):
        return math.inf
    exponent = nimg / length * math.log(WARMUP_END / WARMUP_START)
    return WARMUP_START * math.exp(exponent) if exponent < 600 else math.inf


def warmed_up(weight: Tensor, nimg: int, length: int, *, smooth: bool = False) -> Tensor:
    """``weight`` (any shape) under the ceiling of :func:`warmup_ceiling`."""
    return weight.clamp(max=warmup_ceiling(nimg, length, smooth=smooth))
