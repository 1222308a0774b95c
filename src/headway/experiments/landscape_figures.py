"""The pictures of the experiment on loss landscapes: lines, planes, spectra, and how they change in training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from headway.experiments.landscape_verdict import Results, gans, last_row, references
from headway.landscape import Spectrum

Picture = tuple[str, Figure]
COLOURS = {"diffusion": "tab:blue", "generator": "tab:orange", "discriminator": "tab:green"}
BANDS = ("tab:purple", "tab:cyan", "tab:red", "tab:olive", "tab:pink")
LEVELS = 14
WIDTH = 0.02  # of the density's blur, in units of the highest eigenvalue


def lines(results: Results) -> list[Picture]:
    """Losses on the lines, each scaled to its own range; a colour a landscape, a line a model."""
    found = []
    captions = {
        "initial to trained": "From initial (0) to trained (1) weights",
        "to the next model": "From one model (0) to another seed's (1)",
        "random 1": "A random direction, filter-normalised",
    }
    for line, caption in captions.items():
        figure = _figure()
        axes = figure.subplots()
        for landscape, model in _compared(results):
            if line in model["lines"].get(landscape, {}):
                _scaled(axes, model["lines"][landscape][line], color=COLOURS[landscape], label=landscape)
        axes.set(xlabel="alpha", ylabel="loss, scaled to 0 .. 1")
        found.append((caption, figure, axes))
    return _finished(found)


def band_lines(results: Results) -> list[Picture]:
    """The same of the reference diffusion models by band of sigma."""
    found = []
    for line in ("initial to trained", "random 1"):
        figure = _figure()
        axes = figure.subplots()
        for model in references(results).values():
            own = {k: v for k, v in model["lines"].get("diffusion", {}).items() if k.startswith(f"{line}, ")}
            for colour, (name, curve) in zip(BANDS, own.items(), strict=False):
                _scaled(axes, curve, color=colour, label=name.partition(", ")[2])
        axes.set(xlabel="alpha", ylabel="loss, scaled to 0 .. 1")
        found.append((f"Diffusion by band of sigma: {line}", figure, axes))
    return _finished(found)


def planes(results: Results) -> list[Picture]:
    """Contours and surface of the random plane and contours of the path's plane, of the first model of each kind."""
    found: list[Picture] = []
    for landscape, name, model in _first(results):
        own = model["planes"].get(landscape, {})
        title = name if landscape == "diffusion" else f"{name}, {landscape}"
        if "random" in own:
            found.append((f"{title}: random plane", _contours(own["random"])))
            found.append((f"{title}: the same as a surface", _surface(own["random"])))
        if "path" in own:
            found.append((f"{title}: plane of the training path", _contours(own["path"])))
    return found


def spectra(results: Results) -> list[Picture]:
    """Densities of the eigenvalues, and by share of training the highest eigenvalue and the share of the stable step."""
    density, highest, edge = _figure(), _figure(), _figure()
    left, middle, right = density.subplots(), highest.subplots(), edge.subplots()
    for landscape, model in _compared(results):
        style: dict[str, Any] = {"color": COLOURS[landscape], "label": landscape, "lw": 1.0}
        row = last_row(model, landscape)
        if row is None:
            continue
        top = row["top"][0]
        spectrum = Spectrum(np.array(row["nodes"]) / top, np.array(row["weights"]))
        grid = np.linspace(spectrum.nodes.min() - 0.1, max(1.0, spectrum.nodes.max()) + 0.1, 400)
        left.plot(grid, spectrum.density(grid, WIDTH), **style)
        rows = [r for r in model["curvature"][landscape] if r["band"] == "all"]
        at = [r["nimg"] / model["images"] for r in rows]
        middle.plot(at, [r["top"][0] for r in rows], "o-", ms=3, **style)
        right.plot(at, [np.nan if r["edge"] is None else r["edge"] for r in rows], "o-", ms=3, **style)
    left.set(xlabel="eigenvalue / highest eigenvalue", ylabel="density", yscale="log", ylim=(1e-4, 1e2))
    middle.set(xlabel="share of training", ylabel="highest eigenvalue", yscale="log")
    right.set(xlabel="share of training", ylabel="share of the stable step", yscale="log")
    right.axhline(1, c="gray", ls=":", lw=1)
    return _finished(
        [
            ("Density of the eigenvalues, trained models", density, left),
            ("Highest eigenvalue in training", highest, middle),
            ("Share of the stable step in training (1: the edge)", edge, right),
        ]
    )


def _compared(results: Results) -> Iterator[tuple[str, Any]]:
    for model in references(results).values():
        yield "diffusion", model
    for model in gans(results).values():
        yield "generator", model
        yield "discriminator", model


def _first(results: Results) -> Iterator[tuple[str, str, Any]]:
    for name, model in list(references(results).items())[:1]:
        yield "diffusion", name, model
    for name, model in list(gans(results).items())[:1]:
        yield "generator", name, model
        yield "discriminator", name, model


def _scaled(axes: Any, line: Mapping[str, Any], **style: Any) -> None:
    losses = np.array(line["losses"], dtype=np.float64)
    low, high = np.nanmin(losses), np.nanmax(losses)
    axes.plot(line["alphas"], (losses - low) / ((high - low) or 1.0), lw=1.0, alpha=0.8, **style)


def _contours(surface: Mapping[str, Any]) -> Figure:
    """Filled contours whose levels part the losses into equal shares, the path drawn in."""
    figure = _figure()
    axes = figure.subplots()
    losses = np.ma.masked_invalid(np.array(surface["losses"], dtype=np.float64))
    levels = np.unique(np.quantile(losses.compressed(), np.linspace(0, 1, LEVELS)))
    if len(levels) > 1:
        filled = axes.contourf(surface["xs"], surface["ys"], losses, levels, cmap="viridis")
        axes.contour(surface["xs"], surface["ys"], losses, levels, colors="k", linewidths=0.3)
        figure.colorbar(filled, format="%.3g")
    path = np.array(surface.get("path", [[0.0, 0.0]]))
    axes.plot(path[:, 0], path[:, 1], "o-", c="tab:red", ms=3, lw=1.2)
    axes.plot(0, 0, "*", c="tab:red", ms=10)
    return figure


def _surface(surface: Mapping[str, Any]) -> Figure:
    figure = _figure()
    axes = figure.add_subplot(projection="3d")
    x, y = np.meshgrid(surface["xs"], surface["ys"])
    axes.plot_surface(x, y, np.array(surface["losses"], dtype=np.float64), cmap="viridis", lw=0.1, edgecolor="k")
    axes.view_init(35, -60)
    return figure


def _figure() -> Figure:
    return Figure(figsize=(5.2, 3.8), layout="constrained")


def _finished(pictures: list[tuple[str, Figure, Any]]) -> list[Picture]:
    """Grid and legend, each label once; pictures without a line are left out."""
    found = []
    for caption, figure, axes in pictures:
        if axes.lines:
            axes.grid(alpha=0.3)
            named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
            axes.legend(named.values(), named.keys(), fontsize=7)
            found.append((caption, figure))
    return found
