"""Measuring a run: sample its model, judge the samples beside real held-out images and the pixel Gaussian."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from headway.errors import HeadwayError
from headway.metrics import Judge, extractor_for
from headway.sampling import find_solver, sample, sigma_grid
from headway.training import Run, open_data
from headway.training.processes import Processes
from headway.training.run import append_record, choose_average, load_checkpoint

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
    batch: int = 128,
    data: str | None = None,
    processes: Processes | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    judge: Judge | None = None,
) -> dict[str, Any]:
    """Measure a run's newest checkpoint and add the record to its ``evaluations.jsonl``.

    All processes sample their share of the seeds; the statistics are summed. What is None is the recipe's.

    Args:
        n: samples. data: where the images lie now, if not where the recipe says. progress: called with (images done, of).
        judge: one that was built before for the same data, to save its reference being measured again.

    Returns:
        The record: metric name and value, floor, ceiling, classes found, solver, NFE, seconds, images seen.
    """
    processes = processes or Processes()
    folder = Run.existing(run)
    recipe = folder.recipe()
    found = folder.newest_checkpoint()
    ema = choose_average(found, ema)
    denoiser = load_checkpoint(recipe, found, ema, processes.device)
    n = int(recipe.evaluation.samples) if n is None else n
    if n < 2:
        raise HeadwayError(f"A quality figure needs at least 2 samples, got n={n}.")
    solver = recipe.sampling.solver if solver is None else solver
    steps = recipe.sampling.steps if steps is None else steps
    guidance = recipe.sampling.guidance if guidance is None else guidance
    if guidance != 1 and not denoiser.classes:
        raise HeadwayError(f"guidance={guidance:g} needs a class-conditional model, and this run has no classes.")
    if batch < 1:
        raise HeadwayError(f"batch must be at least 1, got {batch}.")
    find_solver(solver)
    sigma_grid(denoiser.framework, steps)  # what makes no sense is refused before minutes are spent
    if judge is None:
        with processes.accelerator.main_process_first():
            judge = make_judge(run, n, extractor=extractor, weights=weights, data=data, processes=processes)
            judge.prepare()
    cost = {"nfe": 0, "seconds": 0.0}

    def chunks() -> Iterator[Tensor]:
        mine = range(FIRST_SEED + processes.rank, FIRST_SEED + n, processes.count)
        for first in range(0, len(mine), CHUNK):
            seeds = mine[first : first + CHUNK]
            drawn = sample(
                denoiser,
                seeds,
                solver=solver,
                steps=steps,
                batch=batch,
                labels="cycle" if denoiser.classes else None,
                guidance=guidance,
            )
            cost["nfe"], cost["seconds"] = drawn.nfe, cost["seconds"] + drawn.seconds
            progress(min(n, (first + len(seeds)) * processes.count), n)
            yield drawn.images

    quality = judge.quality(chunks())
    record = asdict(quality) | {
        "solver": solver,
        "steps": steps,
        "nfe": cost["nfe"],
        "guidance": guidance,
        "sampling_seconds": round(cost["seconds"], 2),
        "ema": ema,
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
) -> Judge:
    """The judge for a run's data: reference, floor and ceiling under one extractor."""
    recipe = Run.existing(run).recipe()
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
    return Judge(images, heldout, chosen, n=n, reduce=processes.sum)
