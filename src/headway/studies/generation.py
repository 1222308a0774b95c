"""Images from a run as PNG files, in a folder that says what made them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch

from headway.errors import HeadwayError
from headway.gan import load_recipe
from headway.images import tile, write_png
from headway.sampling import Samples
from headway.studies.drawing import open_drawer
from headway.training import Run
from headway.training.processes import Processes
from headway.training.run import write_text


def generate(
    run: str | Path,
    count: int,
    *,
    seed: int = 0,
    out: Path | None = None,
    solver: str | None = None,
    steps: int | None = None,
    grid: str | None = None,
    label: int | None = None,
    guidance: float | None = None,
    ema: int | Literal["raw"] | None = None,
    batch: int = 64,
    processes: Processes | None = None,
    progress: bool = False,
) -> tuple[Path, Samples]:
    """Sample a run's newest checkpoint into SEED.png, grid.png and sampling.json (what made them). What is None is the recipe's.

    Args:
        count: images, with seeds ``seed`` and up. label: of all images; None for all classes in turn.
        out: default RUN/generated/CHECKPOINT-SOLVER-STEPS. It may hold images of the same settings, which seeds then add to.

    Raises:
        HeadwayError: a folder that holds images of other settings, and all that :func:`headway.sample` refuses.
    """
    processes = processes or Processes()
    folder = Run.existing(run)
    found = folder.newest_checkpoint()
    drawer = open_drawer(
        load_recipe(folder.recipe_file),
        found,
        processes.device,
        solver=solver,
        steps=steps,
        grid=grid,
        guidance=guidance,
        ema=ema,
        batch=batch,
        progress=progress and processes.main,
    )
    settings: dict[str, Any] = {"nimg": int(found.name), **drawer.settings, "label": label}
    where = out or folder.folder / "generated" / f"{found.name}-{settings['solver']}-{settings['steps']}"
    _refuse_other_settings(where, settings)
    labels = None
    if label is not None:
        labels = torch.full((count,), label)
    elif drawer.classes:
        labels = (
            torch.arange(seed, seed + count) % drawer.classes
        )  # of the seed, whichever images are asked for with it
    drawn = processes.deal(drawer.draw, range(seed, seed + count), labels)
    if processes.main:
        where.mkdir(parents=True, exist_ok=True)
        write_text(where / "sampling.json", json.dumps(settings, indent=1) + "\n")
        for one, number in zip(drawn.uint8().permute(0, 2, 3, 1).numpy(), drawn.seeds, strict=True):
            write_png(one, where / f"{number:06d}.png")
        write_png(tile(drawn.images, gap=2), where / "grid.png")
    return where, drawn


def _refuse_other_settings(folder: Path, settings: dict[str, Any]) -> None:
    if folder.exists() and not folder.is_dir():
        raise HeadwayError(f"{folder} is a file: choose another --out for the images.")
    note = folder / "sampling.json"
    if note.is_file() and (there := json.loads(note.read_text(encoding="utf-8"))) != settings:
        other = ", ".join(f"{key} {there.get(key)}" for key in settings if there.get(key) != settings[key])
        raise HeadwayError(f"{folder} holds images of other settings ({other}): choose another --out, or delete it.")
