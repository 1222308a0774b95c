"""The kernel distance (KID): the maximum mean discrepancy of features under a cubic kernel.

Source: Binkowski et al. 2018, arXiv 1801.01401.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headway.errors import HeadwayError
from headway.metrics.mmd import unbiased_mmd2


def kernel_distance(
    samples: Tensor, reference: Tensor, *, degree: int = 3, gamma: float | None = None, coef: float = 1.0
) -> float:
    """Unbiased MMD^2 under the kernel (gamma x.y + coef)^degree, over all features (n, d) and (m, d), n, m >= 2.

    `gamma` is 1/d by default, as in the source. The expectation does not depend on n and m, and is zero for equal
    distributions; values a little below zero are such noise. Symmetric in the two sets.
    """
    scale = 1 / samples.shape[-1] if gamma is None else gamma

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y.T).mul_(scale).add_(coef).pow_(degree)

    return unbiased_mmd2(samples, reference, kernel)


def kernel_distance_over_subsets(
    samples: Tensor, reference: Tensor, generator: torch.Generator, *, subsets: int = 100, size: int = 1000
) -> tuple[float, float]:
    """Mean and standard deviation (over `subsets`) of `kernel_distance` of random subsets of `size` rows of each set.

    This is the way of torchmetrics and torch-fidelity, and of published figures. The deviation is that of one subset: it
    is no error bar of the mean, since subsets share rows. `generator` is a CPU generator.
    """
    least = min(len(samples), len(reference))
    if not 2 <= size <= least or subsets < 1:
        raise HeadwayError(
            f"Expected 1 or more subsets of 2 to {least} rows (the smaller set), got {subsets} subsets of {size}."
        )
    values = torch.empty(subsets, dtype=torch.float64)
    for i in range(subsets):
        theirs, ours = (torch.randperm(len(x), generator=generator)[:size].to(x.device) for x in (reference, samples))
        values[i] = kernel_distance(samples[ours], reference[theirs])
    return float(values.mean()), float(values.std(correction=0))
