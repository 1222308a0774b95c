"""What a seed stands for: the noise, and under "cycle" the label, of one image, whatever the batch it is sampled in."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from headway.errors import HeadwayError, unknown


def check_seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    """The seeds as a tuple, each a whole number in 0 .. 2^63 - 1, at least one."""
    try:
        checked = tuple(operator.index(seed) for seed in seeds)
    except TypeError as error:
        raise HeadwayError(f"seeds must be whole numbers in a list or range, like range(64), got {seeds!r}.") from error
    if not checked:
        raise HeadwayError("There are no seeds, so there is nothing to sample; give one per image, like range(64).")
    for seed in checked:
        if not 0 <= seed < 2**63:
            raise HeadwayError(f"A seed must lie in 0 .. 2^63 - 1, got {seed}.")
    return checked


def seed_noise(seeds: Sequence[int], shape: Sequence[int], index: int) -> Tensor:
    """Standard normal noise (len(seeds), *shape), float64 on the CPU: index 0 starts the image, k + 1 belongs to step k.

    Each image's noise is keyed by (seed, index) alone, with the counter-based generator Philox (Salmon et al. 2011). torch's
    CPU generator would not do: it keeps 32 bits of a seed.
    """
    noise = np.empty((len(seeds), *shape))
    for row, seed in zip(noise, seeds, strict=True):
        key = np.array([seed, index], dtype=np.uint64)
        np.random.Generator(np.random.Philox(key=key)).standard_normal(out=row)
    return torch.from_numpy(noise)


def choose_labels(
    labels: int | Sequence[int] | Tensor | str | None, seeds: Sequence[int], classes: int
) -> Tensor | None:
    """A label per seed, (N,) int64 in -1 .. classes - 1 (-1: no label), or None for a model without classes.

    Args:
        labels: one for all, one per seed, "cycle" (seed modulo classes) or None (no label).
    """
    if labels is None:
        return torch.full((len(seeds),), -1) if classes else None
    if not classes:
        raise HeadwayError("labels were given, but the model has no classes; leave them out.")
    if isinstance(labels, str):
        if labels != "cycle":
            raise unknown("labels", labels, ["cycle"])
        return torch.tensor([seed % classes for seed in seeds])
    chosen = torch.as_tensor(labels).cpu()
    if chosen.is_floating_point() or chosen.ndim > 1:
        raise HeadwayError(f"labels must be one whole number or a list of them, got {labels!r}.")
    if chosen.numel() != len(seeds) and chosen.ndim == 1:
        raise HeadwayError(f"labels must be one for all images or one per seed ({len(seeds)}), got {chosen.numel()}.")
    chosen = chosen.long().expand(len(seeds)).clone()
    wrong = chosen[(chosen < -1) | (chosen >= classes)]
    if len(wrong):
        raise HeadwayError(
            f"This model has labels 0 .. {classes - 1} (-1: no label), got {int(wrong[0])}; choose one of them."
        )
    return chosen
