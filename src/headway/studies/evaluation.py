"""Measuring a run: sample its model, judge the samples beside real held-out images and the pixel Gaussian."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from headway.errors import HeadwayError
from headway.gan import load_recipe
from headway.metrics import Judge, extractor_for
from headway.studies.drawing import open_drawer
from headway.training import Run, open_data
from headway.training.processes import Processes
from headway.training.run import append_record

# Seeds of evaluation images start here: never those of the grids people look at while they tune.
FIRST_SEED = 1_000_000
CHUNK = 512


def evaluate(
    run: str | Path,
    *,
    n: int | None = None,
    extractor: str | None = None,
    weights: Path | None = None,
    solver: str | None = None,
    steps: int | None = None,
    guidance: float | None = None,
    ema: int | Literal["raw"] | None = None,
    at: int | None = None,
    batch: int = 128,
    data: str | None = None,
    processes: Processes | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    judge: Judge | None = None,
    figures: bool = False,
) -> dict[str, Any]:
    """Measure a checkpoint of a run and add the record to its ``evaluations.jsonl``.

    All processes sample their share of the seeds; the statistics are summed. What is None is the recipe's.

    Args:
        n: samples. at: the checkpoint, by its images seen; the newest by default. data: where the images lie now, if not where
            the recipe says. progress: called with (images done, of).
        judge: one that was built before for the same data, to save its reference being measured again.
        figures: the further figures too (kernel distances, overlap, copies); a judge that is given must have them.

    Returns:
        The record: metric name and value, floor, ceiling, classes found, further figures and their floor, solver, NFE,
        seconds, images seen.
    """
    processes = processes or Processes()
    folder = Run.existing(run)
    recipe = load_recipe(folder.recipe_file)
    found = folder.newest_checkpoint() if at is None else folder.checkpoint_at(at)
    drawer = open_drawer(
        recipe, found, processes.device, solver=solver, steps=steps, guidance=guidance, ema=ema, batch=batch
    )  # what makes no sense is refused before minutes are spent
    n = int(recipe.evaluation.samples) if n is None else n
    if n < 2:
        raise HeadwayError(f"A quality figure needs at least 2 samples, got n={n}.")
    if judge is not None and figures and not judge.figures:
        raise HeadwayError("The judge given was built without the further figures; build it with figures=True.")
    if judge is None:
        with processes.accelerator.main_process_first():
            judge = make_judge(
                run, n, extractor=extractor, weights=weights, data=data, processes=processes, figures=figures
            )
            judge.prepare()
    cost = {"nfe": 0, "seconds": 0.0}

    def chunks() -> Iterator[Tensor]:
        mine = range(FIRST_SEED + processes.rank, FIRST_SEED + n, processes.count)
        for first in range(0, len(mine), CHUNK):
            seeds = mine[first : first + CHUNK]
            drawn = drawer.draw(seeds, "cycle" if drawer.classes else None)
            cost["nfe"], cost["seconds"] = drawn.nfe, cost["seconds"] + drawn.seconds
            progress(min(n, (first + len(seeds)) * processes.count), n)
            yield drawn.images

    quality = judge.quality(chunks())
    record = asdict(quality) | {
        **{key: drawer.settings[key] for key in ("solver", "steps", "guidance", "ema")},
        "nfe": cost["nfe"],
        "sampling_seconds": round(cost["seconds"], 2),
        "nimg": int(found.name),
    }
    if processes.main:
        append_record(folder.evaluations_file, record)
    return record


def make_judge(
    run: str | Path,
    n: int,
    *,
    extractor: str | None = None,
    weights: Path | None = None,
    data: str | None = None,
    processes: Processes,
    figures: bool = False,
) -> Judge:
    """The judge for a run's data: reference, floor and ceiling under one extractor, with the further figures or without."""
    recipe = load_recipe(Run.existing(run).recipe_file)
    try:
        images, heldout = open_data(recipe if data is None else recipe.with_data(data))
    except HeadwayError as error:
        if data is not None:
            raise
        raise HeadwayError(f"{error} If the training images moved, say where they are with --data.") from None
    if images.fingerprint != recipe.data.fingerprint:
        raise HeadwayError(
            f"{recipe.data.source} no longer holds the images this run was trained on: give them with --data."
        )
    chosen = extractor_for(
        extractor or recipe.evaluation.extractor, images, heldout, weights=weights, device=processes.device
    )
    return Judge(
        images,
        heldout,
        chosen,
        n=n,
        reduce=processes.sum,
        figures=figures,
        gather=processes.gather,
    )
