"""Which noise goes with which image: permutations of the noise inside blocks of images.

A coupling is a function (images, noise, labels) -> permutation (n,): image i gets noise[permutation[i]]. Each noise is used
once, so a batch's noise as a whole stays Gaussian.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headway.errors import HeadwayError, unknown

Coupling = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def independent(images: Tensor, noise: Tensor, labels: Tensor | None = None) -> Tensor:
    """Each image keeps its own noise."""
    return torch.arange(len(images), device=images.device)


def immiscible(images: Tensor, noise: Tensor, labels: Tensor | None = None, block: int = 64) -> Tensor:
    """Noise near its image: least sum of squared distances by linear assignment (Li et al. 2024, arXiv 2406.12303).

    The assignment is made within blocks of ``block`` consecutive images, so its O(block^3) cost is bounded and it depends on the
    block alone: start the batch, and cut it into parts, at multiples of ``block`` and neither changes who gets what.

    Args:
        images, noise: (n, ...) of one shape. labels: (n,) class labels; noise then moves between images of one class only, so
            that the noise given the label stays Gaussian. block: at least 1.

    Returns:
        (n,) int64 on the images' device: noise[permutation] is the noise of the images.
    """
    # Imported here: sampling and evaluation never need it.
    from scipy.optimize import linear_sum_assignment

    if images.shape != noise.shape:
        raise HeadwayError(f"Images and noise must have one shape, got {tuple(images.shape)} and {tuple(noise.shape)}.")
    if labels is not None and labels.shape != images.shape[:1]:
        raise HeadwayError(
            f"There must be one class label for each of {len(images)} images, got {tuple(labels.shape)}."
        )
    if block < 1:
        raise HeadwayError(f"A block must hold at least 1 image, got {block}.")
    permutation = torch.arange(len(images))
    for start in range(0, len(images), block):
        x, eps = (part[start : start + block].flatten(1).float() for part in (images, noise))
        # |x - eps|^2 = |x|^2 + |eps|^2 - 2 x eps, and the first two add up to the same in every permutation.
        gain = (x @ eps.T).cpu()
        if labels is None:
            groups = [torch.arange(len(x))]
        else:
            own = labels[start : start + block].cpu()
            groups = [(own == label).nonzero().flatten() for label in torch.unique(own)]
        for group in groups:
            _, best = linear_sum_assignment(gain[group][:, group].numpy(), maximize=True)
            permutation[start + group] = start + group[torch.from_numpy(best)]
    return permutation.to(images.device)


COUPLINGS: dict[str, Coupling] = {"independent": independent, "immiscible": immiscible}


def find_coupling(name: str) -> Coupling:
    """The coupling of that name; an unknown one is refused with the nearest right one."""
    if name not in COUPLINGS:
        raise unknown("coupling", name, COUPLINGS)
    return COUPLINGS[name]
