"""The learning rate as a function of images seen."""

from __future__ import annotations

from headway.errors import HeadwayError


def learning_rate(nimg: int, base: float, ramp: int) -> float:
    """A linear ramp to ``base`` over ``ramp`` images, constant afterwards (Karras et al. 2022, appendix F).

    Args:
        nimg: images seen when this step is done, so that the first step's rate is not zero. ramp: 0 for none.
    """
    if nimg <= 0 or ramp < 0:
        raise HeadwayError(f"The learning rate needs nimg > 0 and ramp >= 0, got {nimg} and {ramp}.")
    return base * min(1.0, nimg / ramp) if ramp else base
