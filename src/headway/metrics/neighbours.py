"""Distances between all rows of two feature matrices, block by block: nearest neighbours in little memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headway.errors import HeadwayError

BLOCK = 2048
"""Most rows of each side at a time: a block of pairs is at most 32 MB in float64, however large the sets are."""
VALUES = 2**24
"""Most values at a time, 128 MB in float64: of rows longer than 8,192 values fewer are taken."""


def check(a: Tensor, b: Tensor, least: int) -> None:
    """Refuse what is not two finite matrices (n, d), (m, d) on one device with at least `least` rows each."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise HeadwayError(
            f"Expected two feature matrices (n, d) and (m, d), got {tuple(a.shape)} and {tuple(b.shape)}; "
            "flatten each image to a row and use one extractor for both sets."
        )
    if min(len(a), len(b)) < least:
        raise HeadwayError(f"Expected at least {least} rows a side, got {len(a)} and {len(b)}; give more images.")
    if not (a.isfinite().all() and b.isfinite().all()):
        raise HeadwayError("Some features are NaN or infinite; look at the images they come from.")


def squared_distances(a: Tensor, b: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """(rows of a, rows of b, their squared distances float64 (n', m')) for all pairs of blocks, a's block by block.

    Taken as |x|^2 + |y|^2 - 2 x.y about the mean of b, so equal rows may come out as rounding error above zero.
    """
    centre = b.mean(dim=0, dtype=torch.float64)
    for rows in slices(a):
        x = a[rows].double() - centre
        for columns in slices(b):
            y = b[columns].double() - centre
            pairs = torch.addmm(y.square().sum(dim=1), x, y.T, alpha=-2)
            yield rows, columns, pairs.add_(x.square().sum(dim=1, keepdim=True)).clamp_(min=0)


def nearest(queries: Tensor, points: Tensor, k: int = 1, *, same: bool = False) -> tuple[Tensor, Tensor]:
    """The k nearest of the points (m, d) to each query (n, d): distances float64 and indices int64, (n, k), nearest first.

    With `same` the queries are the points, row by row, and no point is its own neighbour. Distances are Euclidean and
    those of the neighbours found are taken from the difference itself: that of a copy is exactly zero.
    """
    check(queries, points, 0)
    if same and len(queries) != len(points):
        raise HeadwayError(f"With same=True both sets are one, but they have {len(queries)} and {len(points)} rows.")
    available = len(points) - same
    if not 1 <= k <= available:
        raise HeadwayError(
            f"Asked for {k} nearest neighbours among {available} points; ask for 1 to {available} or give more."
        )
    best = torch.full((len(queries), k), torch.inf, dtype=torch.float64, device=queries.device)
    found = torch.zeros(len(queries), k, dtype=torch.int64, device=queries.device)
    for rows, columns, pairs in squared_distances(queries, points):
        if same and rows == columns:
            pairs.fill_diagonal_(torch.inf)
        near, where = pairs.topk(min(k, pairs.shape[1]), dim=1, largest=False)
        values = torch.cat([best[rows], near], dim=1)
        indices = torch.cat([found[rows], where + columns.start], dim=1)
        best[rows], chosen = values.topk(k, dim=1, largest=False)
        found[rows] = indices.gather(1, chosen)
    for rows in slices(queries, k):
        gaps = points[found[rows]].double() - queries[rows, None].double()
        best[rows], order = gaps.square().sum(dim=2).sqrt().sort(dim=1)
        found[rows] = found[rows].gather(1, order)
    return best, found


def slices(rows: Tensor, copies: int = 1) -> Iterator[slice]:
    """Slices that cover the rows (n, d), of a size whose float64 copies, so many of each, take little memory."""
    size = max(1, min(BLOCK, VALUES // max(1, rows.shape[1])) // copies)
    for start in range(0, len(rows), size):
        yield slice(start, min(start + size, len(rows)))
