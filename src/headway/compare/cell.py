"""One cell of a study: one arm and one seed, trained and measured; what is done already is not done again."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from headway.compare.study import Sampler, Study
from headway.errors import HeadwayError
from headway.images import tile, write_png
from headway.metrics import Judge
from headway.studies.evaluation import evaluate, make_judge
from headway.training import Run, checkpoint, train
from headway.training.processes import Processes
from headway.training.run import choose_average, load_checkpoint, write_text

GRID = 32  # images of the grid


def run_folder(out: Path, arm: str, seed: int) -> Path:
    return out / "runs" / f"{arm}-{seed}"


def grid_file(out: Path, arm: str, seed: int) -> Path:
    return run_folder(out, arm, seed) / "samples" / "final.png"


def result_file(out: Path, arm: str, seed: int) -> Path:
    return out / "cells" / f"{arm}-{seed}.json"


def run_cell(study: Study, out: Path, arm: str, seed: int) -> None:
    """Train and measure, and write the cell's result, unless it is there."""
    if result_file(out, arm, seed).is_file():
        return
    folder = run_folder(out, arm, seed)
    trained = train(study.recipe(arm, seed), folder, progress=False)
    if not trained.finished:
        raise HeadwayError(f"{folder} was interrupted at {trained.nimg:,} images.")
    processes = Processes()
    result = _measured(study, Run(folder), arm, processes)
    _save_grid(study, Run(folder), arm, grid_file(out, arm, seed), processes)
    if processes.main:
        _drop_all_but_newest(Run(folder))
        result_file(out, arm, seed).parent.mkdir(parents=True, exist_ok=True)
        write_text(result_file(out, arm, seed), json.dumps({"arm": arm, "seed": seed} | result) + "\n")


def _measured(study: Study, run: Run, arm: str, processes: Processes) -> dict[str, Any]:
    since = time.perf_counter()
    choice = study.arms[arm]
    judge = prepared_judge(run, study.curve.samples, processes)
    curve = []
    for point in run.complete_checkpoints():
        record = _once(run, study.curve, study.curve.samples, int(point.name), choice.ema, judge, processes)
        seconds = checkpoint.load_state(point)["seconds"]
        curve.append({"nimg": record["nimg"], "seconds": seconds, "value": record["value"]})
    curve_seconds = time.perf_counter() - since
    final, samples = study.final, study.final.samples
    judge = prepared_judge(run, samples, processes, figures=final.figures)
    newest = int(run.newest_checkpoint().name)
    finals = []
    for average in dict.fromkeys([choice.ema, *final.averages]):
        for sampler in final.samplers if average == choice.ema else final.samplers[:1]:
            finals.append(_once(run, sampler, samples, newest, average, judge, processes))
    last = run.metrics()[-1]
    return {
        "curve": curve,
        "finals": finals,
        "seconds": {
            "train": round(last["seconds"], 2),
            "curve": round(curve_seconds, 2),
            "final": round(time.perf_counter() - since - curve_seconds, 2),
        },
        "memory_mb": last["memory_mb"],
        "bands": _late_bands(run.metrics()),
        "parameters": sum(t.numel() for t in checkpoint.load_tensors(run.newest_checkpoint(), "model").values()),
    }


def prepared_judge(run: Run, n: int, processes: Processes, *, figures: bool = False) -> Judge:
    """The judge of a run's data, measured by one process first."""
    with processes.accelerator.main_process_first():
        judge = make_judge(run.folder, n, processes=processes, figures=figures)
        judge.prepare()
    return judge


def _once(
    run: Run, sampler: Sampler, n: int, nimg: int, ema: Any, judge: Judge, processes: Processes
) -> dict[str, Any]:
    """One measurement, or the one that a killed cell made before."""
    asked = {"solver": sampler.solver, "steps": sampler.steps, "n": n, "nimg": nimg}
    asked["ema"] = choose_average(run.checkpoint_at(nimg), ema)
    for record in run.evaluations():
        if all(record[key] == value for key, value in asked.items()) and (record["figures"] or not judge.figures):
            return record
    return evaluate(
        run.folder,
        n=n,
        solver=sampler.solver,
        steps=sampler.steps,
        ema=ema,
        at=nimg,
        judge=judge,
        processes=processes,
        figures=judge.figures,
    )


def _save_grid(study: Study, run: Run, arm: str, file: Path, processes: Processes) -> None:
    """Samples of the finished model from the same noises in every arm."""
    denoiser = load_checkpoint(run.recipe(), run.newest_checkpoint(), study.arms[arm].ema, processes.device)
    labels = torch.arange(GRID) % denoiser.classes if denoiser.classes else None
    sampler = study.final.samplers[0]
    drawn = processes.sample(denoiser, range(GRID), labels, solver=sampler.solver, steps=sampler.steps)
    if processes.main:
        write_png(tile(drawn.images, columns=8, gap=2), file)


def _late_bands(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean loss and squared error by noise level over the last tenth of the run."""
    late = [r for r in records if r["nimg"] > 0.9 * records[-1]["nimg"]]
    bands = []
    for i, band in enumerate(late[0]["bands"]):
        parts = [r["bands"][i] for r in late if r["bands"][i]["n"]]
        n = sum(p["n"] for p in parts)
        means = {key: sum(p[key] * p["n"] for p in parts) / n if n else None for key in ("loss", "mse")}
        bands.append({"sigma": band["sigma"], "n": n} | means)
    return bands


def _drop_all_but_newest(run: Run) -> None:
    for old in run.complete_checkpoints()[:-1]:
        shutil.rmtree(old)
