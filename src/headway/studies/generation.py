"""Images from a run as PNG files, in a folder that says what made them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch

from headway.errors import HeadwayError
from headway.images import tile, write_png
from headway.sampling import Samples
from headway.training import Run
from headway.training.processes import Processes
from headway.training.run import choose_average, load_checkpoint, write_text


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
    sampling = folder.recipe().sampling
    found = folder.newest_checkpoint()
    settings: dict[str, Any] = {
        "nimg": int(found.name),
        "ema": choose_average(found, ema),
        "solver": sampling.solver if solver is None else solver,
        "steps": sampling.steps if steps is None else steps,
        "grid": grid,
        "label": label,
        "guidance": sampling.guidance if guidance is None else guidance,
    }
    where = out or folder.folder / "generated" / f"{found.name}-{settings['solver']}-{settings['steps']}"
    _refuse_other_settings(where, settings)
    denoiser = load_checkpoint(folder.recipe(), found, settings["ema"], processes.device)
    labels = None
    if label is not None:
        labels = torch.full((count,), label)
    elif denoiser.classes:
        labels = (
            torch.arange(seed, seed + count) % denoiser.classes
        )  # of the seed, whichever images are asked for with it
    options = {key: settings[key] for key in ("solver", "steps", "grid", "guidance")}
    drawn = processes.sample(
        denoiser, range(seed, seed + count), labels, batch=batch, progress=progress and processes.main, **options
    )
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
