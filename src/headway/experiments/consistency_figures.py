"""The figures of a consistency experiment: models by noises, the score matrix, and the curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from torch import Tensor

from headway.experiments.consistency_analysis import Found
from headway.experiments.consistency_models import GAUSSIAN, Curve
from headway.images import tile

WIDTH = 5.2


def models_by_noises(rows: Sequence[tuple[str, Sequence[tuple[str, Tensor]]]]) -> Figure:
    """The paper's picture: a row a model, a column a noise. rows: titled blocks of (model, images (n, C, H, W))."""
    every = [row for _, block in rows for row in block]
    columns = len(every[0][1])
    height = WIDTH * 0.76 / columns  # of a row
    names = 0.06 * max(len(name) for name, _ in every)  # room for them
    figure = Figure(figsize=(0.8 * WIDTH + names, height * len(every) + 0.3 * len(rows)), layout="constrained")
    blocks = figure.subplots(len(rows), 1, squeeze=False, height_ratios=[len(block) for _, block in rows])[:, 0]
    for axes, (title, block) in zip(blocks, rows, strict=True):
        sheet = tile(torch.cat([images for _, images in block]), columns, gap=1)
        axes.imshow(sheet.squeeze(-1) if sheet.shape[2] == 1 else sheet, cmap="gray", vmin=0, vmax=255, aspect="equal")
        side = len(sheet) / len(block)
        axes.set_yticks([side * (i + 0.5) for i in range(len(block))], [name for name, _ in block], fontsize=7)
        axes.set_xticks([])
        axes.tick_params(length=0)
        axes.set_title(title, fontsize=8, loc="left", pad=3)
        axes.spines[:].set_visible(False)
    return figure


def matrix(found: Found, names: Sequence[str], at: str) -> Figure:
    """The score of every pair under one condition, with the Gaussian as the last column."""
    columns = [*names, GAUSSIAN]
    scores = [[found.score(a, b, at) for b in columns] for a in names]
    values = np.array([[math.nan if s is None else s.value for s in row] for row in scores])
    figure = Figure(figsize=(WIDTH, WIDTH * (len(names) + 2) / (len(names) + 4)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values, cmap="RdBu", vmin=-1, vmax=1)
    size = max(4, min(8, 60 / len(columns)))
    for (i, j), value in np.ndenumerate(values):
        if not math.isnan(value):
            axes.text(
                j, i, f"{value:z.2f}", ha="center", va="center", fontsize=size, color="w" if abs(value) > 0.6 else "k"
            )
    axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right", fontsize=size)
    axes.set_yticks(range(len(names)), names, fontsize=size)
    figure.colorbar(image, ax=axes, shrink=0.8).ax.tick_params(labelsize=6)
    return figure


def over_noise(
    curves: Mapping[str, Curve], ylabel: str = "score", high_first: bool = True, bottom: float | None = None
) -> Figure:
    """Curves over the noise level, from the sampler's start on the left."""
    figure, axes = _lines(curves)
    axes.set(xlabel="noise level sigma", ylabel=ylabel, xscale="log", ylim=(bottom, None))
    if high_first:
        axes.invert_xaxis()
    return figure


def over_training(curves: Mapping[str, Curve]) -> Figure:
    figure, axes = _lines({name: curve | {"at": curve["at"] / 1000} for name, curve in curves.items()})
    axes.set(xlabel="thousand images seen", ylabel="score")
    return figure


def _lines(curves: Mapping[str, Curve]) -> tuple[Figure, Any]:
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    axes = figure.subplots()
    for i, (name, curve) in enumerate(curves.items()):
        colour: Any = "black" if name == GAUSSIAN else colormaps["tab10" if len(curves) <= 10 else "tab20"](i)
        style = "--" if GAUSSIAN in name else "-"
        axes.plot(curve["at"], curve["value"], "o", ls=style, ms=3, lw=1.2, label=name, color=colour)
        axes.fill_between(curve["at"], curve["low"], curve["high"], color=colour, alpha=0.12, lw=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=6)
    return figure, axes
