"""All surfaces of the experiment in one interactive page: turned by hand, two side by side, with neither network nor library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from headway.experiments.landscape_verdict import Results
from headway.training.run import write_text


def surfaces(results: Results) -> list[dict[str, Any]]:
    """Every plane of every model, as the page takes it: name, grid, losses with four digits, path, a sentence."""
    return list(_surfaces(results))


def write_surfaces(results: Results, file: Path) -> None:
    """The page; beside the first surface it shows the first of a GAN."""
    found = surfaces(results)
    gans = [i for i, surface in enumerate(found) if surface["gan"]]
    template = resources.files("headway.experiments").joinpath("landscape_surfaces.html").read_text(encoding="utf-8")
    data = json.dumps(found, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    write_text(file, template.replace("OPPONENT", str(gans[0] if gans else 1)).replace("SURFACES", data))


def _surfaces(results: Results) -> Iterator[dict[str, Any]]:
    for name, model in results["models"].items():
        gan = model["kind"] == "gan"
        for landscape, planes in model["planes"].items():
            for plane, surface in planes.items():
                about = "Filter-normalised random directions."
                if "path" in surface:
                    first, second = surface["explained"]
                    about = f"The directions hold {first:.0%} and {second:.0%} of the path's variance."
                yield {
                    "name": f"{name}{f', {landscape}' if gan else ''}: {plane} plane",
                    "gan": gan,
                    "xs": [_short(x) for x in surface["xs"]],
                    "ys": [_short(y) for y in surface["ys"]],
                    "losses": [[_short(z) for z in row] for row in surface["losses"]],
                    "path": [[_short(x) for x in point] for point in surface.get("path", [])],
                    "about": about,
                }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
