"""Running a study: the estimate, the cells wherever they run, what was found, the page and the record."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headway.compare.analysis import Analysis, analyse, read_cells
from headway.compare.cell import prepared_judge, result_file, run_folder
from headway.compare.launchers import Job, cell_command, find_launcher
from headway.compare.record import Entry, images_of, keep, versions
from headway.compare.report import answer, build_page
from headway.compare.study import Study
from headway.denoiser import Denoiser, expand
from headway.errors import HeadwayError
from headway.recipes import Recipe
from headway.sampling import find_solver
from headway.training import Run, open_data
from headway.training.guards import locked
from headway.training.processes import Processes, automatic_precision
from headway.training.run import build_framework, build_network, write_text

BATCH = 128


@dataclass(frozen=True)
class Estimate:
    """Seconds that one cell takes on an idle machine, part by part, and how many cells are left to run."""

    train: float
    curve: float
    final: float
    cells: int

    @property
    def evaluation_share(self) -> float:
        return (self.curve + self.final) / (self.train + self.curve + self.final)

    def seconds(self, jobs: int) -> float:
        return (self.train + self.curve + self.final) * -(-self.cells // jobs)


def run_study(
    file: str | Path,
    out: str | Path | None = None,
    *,
    record: Path | None = None,
    command: str = "",
    tell: Callable[[str], None] = print,
    **options: Any,
) -> Path | None:
    """:func:`compare`, then the page and the results: in ``out`` (default runs/NAME), and in ``record`` if that is given.

    Returns:
        The page; None after a dry run.
    """
    out = Path("runs") / Study.load(file).name if out is None else Path(out)
    found = compare(file, out, tell=tell, **options)
    if found is None:
        return None
    page = build_page(found, out, command, versions())
    results = "".join(json.dumps(cell) + "\n" for cells in found.cells.values() for cell in cells)
    write_text(out / "results.jsonl", results)
    written = keep(page, out, ("study.yaml", "results.jsonl"), record, _entry(found))
    tell(answer(found).replace("**", ""))
    return written


def _entry(found: Analysis) -> Entry:
    study = found.study
    recipe = study.recipe(study.baseline, study.seeds[0])
    data = f"{images_of(recipe.data)}, {recipe.train.images:,} images, {len(study.seeds)} seeds"
    return Entry(study.question, data, "; ".join(study.arms), answer(found))


def compare(
    file: str | Path,
    out: str | Path,
    *,
    jobs: int = 1,
    launcher: str = "local",
    processes: int = 1,
    dry_run: bool = False,
    tell: Callable[[str], None] = print,
) -> Analysis | None:
    """Run, or go on with, a study: every arm with every seed, measured; then what was found.

    Args:
        file: the study. out: folder for its runs and results. jobs: cells at a time. launcher: "local", "slurm" or "ray".
        processes: of each cell; more than one by torchrun, a GPU each. dry_run: say what would run and how long, and stop.
        tell: where messages for people go.

    Raises:
        HeadwayError: a study that is not fair or not possible; a folder that holds another study; no cell finished.
    """
    study, out = Study.load(file), Path(out)
    launch = find_launcher(launcher)
    tell(plan(study))
    left = [(arm, seed) for seed in study.seeds for arm in study.arms if not result_file(out, arm, seed).is_file()]
    if left:
        tell(describe(estimate(study, len(left)), jobs))
    if dry_run:
        return None
    for folder in (out / "cells", out / "runs", out / "logs"):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(out):
        _keep_study(study, out)
        if left:
            _prepare(study, out, *left[0], tell)
        errors = {}
        pending = [_job(study, out, arm, seed, processes) for arm, seed in left]
        names = {job.name: cell for job, cell in zip(pending, left, strict=True)}
        done, since = len(study.arms) * len(study.seeds) - len(left), time.perf_counter()
        for job, code in launch(pending, jobs, processes) if pending else ():
            arm, seed = names[job.name]
            done += 1
            if code or not result_file(out, arm, seed).is_file():
                errors[arm, seed] = last_words(job.log)
                tell(f"{job.name} failed: {errors[arm, seed]} (all of it: {job.log})")
            minutes = (time.perf_counter() - since) / 60
            tell(f"{done} of {len(study.arms) * len(study.seeds)} cells, {minutes:.1f} min: {job.name}")
        cells = read_cells(study, out)
        if not any(cells.values()):
            raise HeadwayError(
                f"No cell of the study finished; the last words of each are above, the rest in {out / 'logs'}."
            )
        return analyse(study, cells, errors)


def plan(study: Study) -> str:
    """Arms and what each changes, for people."""
    lines = [f"{study.question}", f"{len(study.arms)} arms x {len(study.seeds)} seeds:"]
    for arm in study.arms:
        other = study.against(arm)
        changes = "; ".join(f"{key} {theirs} -> {mine}" for key, (theirs, mine) in study.differences(arm).items())
        lines.append(
            f"  {arm}: " + ("the baseline" if other is None else f"against {other}: {changes or 'no difference'}")
        )
    return "\n".join(lines)


def estimate(study: Study, cells: int) -> Estimate:
    """What a cell takes, from three timed training steps and evaluations of the baseline's network."""
    recipe = study.recipe(study.baseline, study.seeds[0])
    training, sampling = timed(recipe)
    curve, final = study.curve, study.final
    nfe = [find_solver(sampler.solver).nfe(sampler.steps) for sampler in final.samplers]
    return Estimate(
        training * recipe.train.images,
        sampling * curve.points * curve.samples * find_solver(curve.solver).nfe(curve.steps),
        sampling * final.samples * (sum(nfe) + len(final.averages) * nfe[0]),
        cells,
    )


def timed(recipe: Recipe) -> tuple[float, float]:
    """Seconds an image of a training step, and of one evaluation of the network: of a recipe with data, on this machine."""
    images, heldout = open_data(recipe)
    recipe = recipe.resolved(images, len(heldout), automatic_precision())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = build_network(recipe).to(device).train()
    framework = build_framework(recipe)
    denoiser = Denoiser(network, framework, shape=recipe.image_shape, classes=recipe.classes)
    x0 = torch.randn(BATCH, *recipe.image_shape, device=device)
    labels = torch.zeros(BATCH, dtype=torch.long, device=device) if recipe.classes else None
    sigma = framework.density.icdf(torch.rand(BATCH, dtype=torch.float64), 0.5).to(device)

    def forward() -> torch.Tensor:
        estimate: torch.Tensor = denoiser(x0 + expand(sigma, x0).float() * torch.randn_like(x0), sigma, labels)
        return estimate

    def step() -> None:
        torch.autograd.backward(forward().square().mean())

    training = _seconds(step, device)
    with torch.no_grad():
        return training / BATCH, _seconds(forward, device) / BATCH


def describe(cost: Estimate, jobs: int) -> str:
    hours, minutes = divmod(round(cost.seconds(jobs) / 60), 60)
    whole = f"{f'{hours} h ' if hours else ''}{minutes} min"
    return (
        f"Estimate: {cost.cells} cells left, {jobs} at a time, about {whole} on an idle machine ({cost.train:.0f} s training, "
        f"{cost.curve:.0f} s curve, {cost.final:.0f} s final evaluation a cell: {cost.evaluation_share:.0%} evaluation)."
    )


def last_words(log: Path) -> str:
    """What a job said last: its error."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("Error:")]
    return (said or lines or ["it said nothing"])[-1].removeprefix("Error:").strip()


def _keep_study(study: Study, out: Path) -> None:
    kept = out / "study.yaml"
    if kept.is_file() and kept.read_text(encoding="utf-8") != study.to_yaml():
        before = Study.load(kept)
        # More arms or seeds, or other words, leave what was measured as it is.
        same = ("base", "set", "curve", "final")
        changed = [key for key in same if getattr(before, key) != getattr(study, key)]
        changed += [
            f"arm {arm}" for arm in before.arms if arm in study.arms and before.arms[arm].set != study.arms[arm].set
        ]
        if changed:
            raise HeadwayError(
                f"{out} holds a study that differs in {', '.join(changed)}: choose another --out, or give the same study."
            )
    write_text(kept, study.to_yaml())


def _prepare(study: Study, out: Path, arm: str, seed: int, tell: Callable[[str], None]) -> None:
    """Decode the data, train the extractor and measure the reference once: the cells would all do so at the same time."""
    tell("Preparing the reference (data, extractor, floor and ceiling) ...")
    recipe = study.recipe(arm, seed)
    images, heldout = open_data(recipe)
    folder = out / "reference"
    folder.mkdir(exist_ok=True)
    write_text(folder / "recipe.yaml", recipe.resolved(images, len(heldout), automatic_precision()).to_yaml())
    one = Processes()
    prepared_judge(Run(folder), study.curve.samples, one)
    prepared_judge(Run(folder), study.final.samples, one, figures=study.final.figures)


def _job(study: Study, out: Path, arm: str, seed: int, processes: int) -> Job:
    name = run_folder(out, arm, seed).name
    return Job(name, cell_command(out / "study.yaml", out, arm, seed, processes), out / "logs" / f"{name}.log")


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    call()
    times = []
    for _ in range(3):
        since = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - since)
    return min(times)  # whatever else runs here can only add
