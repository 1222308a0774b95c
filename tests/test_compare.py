"""Studies: the file and its fairness, cells that resume and fail, figures from known curves, launchers, page and record."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from headway.compare import Study, analyse, compare, run_study
from headway.compare.analysis import read_cells
from headway.compare.launchers import Job, find_launcher
from headway.compare.report import answer, build_page
from headway.compare.run import Estimate
from headway.compare.statistics import NO_MODEL
from headway.data import load
from headway.errors import HeadwayError
from headway.recipes import Recipe

TINY = """
name: tiny
question: Is the curriculum faster?
base: digits-edm
set: [train.images=1024, train.batch=64, log.tick=256]
baseline: plain
arms:
  plain: []
  clts:
    set: [noise=clts]
    controls: [warm]
  warm: [weight.warmup=128]
seeds: [0, 1]
curve: {steps: 2, samples: 20, points: 2}
final: {samplers: [{solver: heun, steps: 3}, {solver: heun, steps: 2}], samples: 24, figures: false, averages: [raw]}
"""
REPOSITORY = Path(__file__).parents[1]


def study_file(folder: Path, text: str = TINY) -> Path:
    file = folder / "study.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def quiet(message: str) -> None:
    pass


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A whole tiny study: the folder, and what was said."""
    folder = tmp_path_factory.mktemp("study")
    said: list[str] = []
    found = compare(study_file(folder), folder / "out", jobs=2, tell=said.append)
    return folder, found, said


def test_arms_and_seeds_are_trained_and_measured(finished):
    folder, found, said = finished
    assert {arm: [cell["seed"] for cell in cells] for arm, cells in found.cells.items()} == {
        arm: [0, 1] for arm in ("plain", "clts", "warm")
    }
    cell = found.cells["clts"][0]
    assert [point["nimg"] for point in cell["curve"]] == [512, 1024]
    assert [(f["solver"], f["nfe"], f["ema"]) for f in cell["finals"]] == [
        ("heun", 5, 64),
        ("heun", 3, 64),
        ("heun", 5, "raw"),
    ]
    assert cell["seconds"]["train"] > 0
    assert any("Estimate: 6 cells left, 2 at a time" in line for line in said)
    assert any("clts: against plain: noise.name framework -> clts" in line for line in said)
    # Only the newest checkpoint is kept.
    assert [p.name for p in (folder / "out" / "runs" / "clts-0" / "checkpoints").iterdir()] == ["000001024"]


def test_the_arms_of_a_seed_share_weights_data_and_noise(finished):
    """With one learning step of rate nearly 0 all arms would be equal; here: the same recipes but for what the arm sets."""
    _, found, _ = finished
    one, other = found.study.recipe("plain", 1), found.study.recipe("clts", 1)
    assert one.train == other.train
    assert one.noise != other.noise


def test_a_second_run_measures_nothing_again_and_gives_the_same(finished):
    folder, found, _ = finished
    said: list[str] = []
    again = compare(folder / "study.yaml", folder / "out", jobs=2, tell=said.append)
    assert again.cells == found.cells
    assert not any("Estimate" in line for line in said)


def test_more_seeds_may_be_asked_for_but_not_another_study(finished):
    folder, _, _ = finished
    changed = TINY.replace("train.images=1024", "train.images=2048")
    with pytest.raises(HeadwayError, match="holds a study that differs in set"):
        compare(study_file(folder / "out" / "cells", changed), folder / "out", tell=quiet)


def test_the_page_answers_and_the_record_holds_it(finished, tmp_path):
    folder, found, _ = finished
    record = tmp_path / "records" / "2026-01-02-tiny"
    page = run_study(folder / "study.yaml", folder / "out", record=record, command="headway compare x", tell=quiet)
    text = page.read_text(encoding="utf-8")
    assert "Indicative only (2 seeds" in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    for wanted in (
        "Is the curriculum faster?",
        "noise.name: framework -&gt; clts",
        "headway compare x",
        "data:image/png",
    ):
        assert wanted in text
    assert sorted(p.name for p in record.iterdir() if p.suffix != ".png") == [
        "README.md",
        "report.html",
        "results.jsonl",
        "study.yaml",
    ]
    assert len((record / "results.jsonl").read_text().splitlines()) == 6
    assert Study.load(record / "study.yaml") == found.study
    markdown = (record / "README.md").read_text(encoding="utf-8")
    for picture in record.glob("*.png"):
        assert f"({picture.name})" in markdown
    index = (record.parent / "INDEX.md").read_text(encoding="utf-8")
    assert index.count("2026-01-02-tiny/README.md") == 1
    run_study(folder / "study.yaml", folder / "out", record=record, tell=quiet)
    assert (record.parent / "INDEX.md").read_text(encoding="utf-8").count("2026-01-02-tiny/README.md") == 1


def test_a_failing_arm_does_not_stop_the_others_and_is_shown(tmp_path):
    text = TINY.replace("warm: [weight.warmup=128]", "warm: [optim.lr=1e30, optim.lr_ramp=0]").replace("[0, 1]", "[0]")
    text = text.replace("train.images=1024", "train.images=4096")  # long enough to be given up
    found = compare(study_file(tmp_path, text), tmp_path / "out", jobs=2, tell=quiet)
    assert [len(found.cells[arm]) for arm in ("plain", "clts", "warm")] == [1, 1, 0]
    assert "seed 0" in found.failed["warm"][0]
    assert "not finite" in found.failed["warm"][0] or "NaN" in found.failed["warm"][0]
    page = build_page(found, tmp_path / "out", "command", "versions").html()
    assert "<h2>Failed</h2>" in page
    assert "Failed in some seed: <b>warm</b>" in page


def test_a_cell_may_span_processes(tmp_path):
    text = TINY[: TINY.index("  clts:")] + TINY[TINY.index("  warm:") :].replace("[0, 1]", "[0]")
    alone, two = (
        compare(study_file(tmp_path, text), tmp_path / str(n), processes=n, tell=quiet).cells["plain"][0]
        for n in (1, 2)
    )
    assert [p["nimg"] for p in alone["curve"]] == [p["nimg"] for p in two["curve"]]
    for one, other in zip(alone["finals"], two["finals"], strict=True):
        assert one["value"] == pytest.approx(other["value"], rel=0.05)


def test_killed_and_started_again_it_continues(tmp_path):
    text = TINY.replace("[0, 1]", "[0]")
    command = [
        sys.executable,
        "-m",
        "headway",
        "compare",
        str(study_file(tmp_path, text)),
        "--out",
        str(tmp_path / "out"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    deadline = time.monotonic() + 240
    while not list((tmp_path / "out" / "cells").glob("*.json")):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stdout.read().decode()
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (kept,) = (tmp_path / "out" / "cells").glob("*.json")
    before = kept.stat().st_mtime_ns
    again = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert again.returncode == 0, again.stderr
    assert "Estimate: 2 cells left" in again.stdout
    assert kept.stat().st_mtime_ns == before
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.parametrize(
    ("arm", "sentence"),
    [
        ("[network.preset=small]", "Arm 'warm' is not comparable with 'plain': network.preset is small, there auto"),
        ("[train.images=2048]", "train.images is 2048, there 1024"),
        ("[train.batch=32]", "train.batch is 32, there 64"),
        ("[data.size=4]", "data.size is 4, there auto"),
        ("{set: [noise=clts], against: plane}", "Did you mean 'plain'"),
        ("{set: [noise=clts], controls: [cts]}", "Did you mean 'clts'"),
        ("{sett: [noise=clts]}", "sett"),
        ("[noise=cltss]", "Arm 'warm': "),
        ("[noise=cltss]", "Did you mean 'clts'"),
        ("{set: weight.warmup=128}", "arms.warm = 'weight.warmup=128': expected a list such as [weight.warmup=128]"),
    ],
)
def test_an_unfair_or_wrong_arm_is_refused_in_a_sentence(tmp_path, arm, sentence):
    text = TINY.replace("[weight.warmup=128]", arm)
    with pytest.raises(HeadwayError) as error:
        Study.load(study_file(tmp_path, text))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("baseline: plain", ""), "missing: baseline. Add it."),
        (("question:", "qestion:"), "unknown key 'qestion'. Did you mean 'question'?"),
        (("name: tiny", ""), "missing: name. Add it."),
    ],
)
def test_a_missing_key_is_named(tmp_path, change, sentence):
    with pytest.raises(HeadwayError) as error:
        Study.load(study_file(tmp_path, TINY.replace(*change)))
    assert str(error.value).endswith(f": {sentence}")


def test_a_study_may_say_that_the_difference_is_the_question(tmp_path):
    text = TINY.replace("[weight.warmup=128]", "{set: [train.batch=32], differs: [train.batch]}")
    study = Study.load(study_file(tmp_path, text))
    assert study.differences("warm") == {"train.batch": (64, 32)}


def cell(seed: int, factor: float, *, speed: float = 1.0, end: float = 0.0) -> dict:
    """A curve whose distance falls as a power of the images; ``factor``: how much sooner it is anywhere."""
    images = np.linspace(10_000, 100_000, 10)
    curve = [{"nimg": int(n), "seconds": n / 1000 / speed, "value": 1e6 / (n * factor)} for n in images]
    finals = [
        {
            "solver": "heun",
            "steps": s,
            "nfe": 2 * s - 1,
            "ema": 1000,
            "value": 1e6 / (1e5 * factor) + 100 / s,
            "floor": 1.0,
        }
        | {"ceiling": 1e3, "figures": {}, "figures_floor": {}, "warnings": [], "name": "fd@24"}
        for s in (18, 5, 9, 40)
    ]
    return {
        "arm": "",
        "seed": seed,
        "curve": curve,
        "finals": finals,
        "seconds": {"train": 100 / speed, "curve": 1.0, "final": 1.0},
        "memory_mb": 1,
        "parameters": 1,
        "bands": [{"sigma": [0.0, 1.0], "n": 5, "loss": 1.0, "mse": 1.0}],
    }


def synthetic(seeds: int, factors: dict[str, float], noise: float = 0.02, **options: float):
    rng = np.random.default_rng(0)
    text = TINY.replace("[0, 1]", str(list(range(seeds))))
    text += "target: {share: 0.5}\n"
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        study = Study.load(study_file(Path(folder), text))
    cells = {
        arm: [
            cell(s, f * float(np.exp(noise * rng.standard_normal())), **(options if arm == "clts" else {}))
            for s in range(seeds)
        ]
        for arm, f in factors.items()
    }
    return analyse(study, cells, {})


def test_known_ratios_come_out():
    found = synthetic(5, {"plain": 1.0, "clts": 1.5, "warm": 1.0}, noise=0.0, speed=0.8)
    ratio = {name: m.comparisons["clts"].ratio for name, m in found.measures.items()}
    # Log-linear between measured points 10 % apart is near the curve, not on it.
    assert ratio["images"] == pytest.approx(1.5, rel=0.02)
    assert ratio["seconds"] == pytest.approx(1.5 * 0.8, rel=0.02)
    assert ratio["equal images"] == pytest.approx((10 + 100 / 18) / (10 / 1.5 + 100 / 18))
    assert ratio["equal seconds"] == pytest.approx(1.5 * 0.8, rel=0.02)
    assert ratio["NFE heun"] > 1
    assert found.measures["images"].comparisons["warm"].ratio == pytest.approx(1)
    assert found.explained["clts"]["warm"].part == pytest.approx(0, abs=1e-9)


def test_words_need_five_seeds():
    few, many = (synthetic(n, {"plain": 1.0, "clts": 1.5, "warm": 1.0}) for n in (3, 5))
    assert answer(few).startswith("Indicative only (3 seeds")
    assert "Faster: **clts** 1." in answer(many)
    assert "No difference shown: **warm**" in answer(many)


def test_an_arm_that_never_reaches_the_target_gives_a_bound():
    found = synthetic(5, {"plain": 1.0, "clts": 0.3, "warm": 1.0})
    comparison = found.measures["images"].comparisons["clts"]
    assert comparison.ratio is None
    assert comparison.bounds[0].direction == "at most"
    assert "Bound only: **clts**" in answer(found)


def test_of_two_failures_none_is_called_better():
    # The pixel Gaussian's distance is 1,000: at a hundredth of the speed neither the baseline nor warm is below it.
    found = synthetic(5, {"plain": 0.01, "clts": 1.0, "warm": 0.009})
    assert {m.comparisons["warm"].verdict for m in found.measures.values()} == {NO_MODEL}
    assert "Neither beats the pixel Gaussian: **warm**." in answer(found)
    assert found.measures["equal images"].comparisons["clts"].verdict == "better"
    assert "warm" not in found.ratios


def test_the_estimate_counts_rounds_of_jobs():
    cost = Estimate(60, 10, 20, cells=5)
    assert cost.seconds(2) == 3 * 90
    assert cost.evaluation_share == pytest.approx(1 / 3)


@pytest.mark.parametrize(("launcher", "package"), [("local", None), ("slurm", "submitit"), ("ray", "ray")])
def test_every_launcher_runs_all_jobs_and_tells_their_codes(launcher, package, tmp_path):
    if package:
        pytest.importorskip(package)
    jobs = [
        Job(
            f"job-{code}",
            (sys.executable, "-c", f"print('said {code}'); raise SystemExit({code})"),
            tmp_path / f"{code}.log",
        )
        for code in (0, 3, 0 + 1)
    ]
    ended = {job.name: code for job, code in find_launcher(launcher)(jobs, 2, 1)}
    assert ended == {"job-0": 0, "job-3": 3, "job-1": 1}
    assert "said 3" in jobs[1].log.read_text()


def test_an_unknown_launcher_is_named():
    with pytest.raises(HeadwayError, match="Did you mean 'slurm'"):
        find_launcher("slum")


# The other files are experiments on consistency and landscapes, each loaded by its own test.
STUDIES = [file for file in sorted((REPOSITORY / "studies").glob("*.yaml")) if "\narms:" in file.read_text("utf-8")]


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_the_studies_of_this_repository_are_fair(file):
    study = Study.load(file)
    assert all(study.recipe(arm, seed) for arm in study.arms for seed in study.seeds)
    assert study.differences(study.baseline) == {}


def test_the_readme_s_table_is_the_index_of_records():
    check = subprocess.run([sys.executable, str(REPOSITORY / "records" / "readme.py"), "--check"], check=False)
    assert check.returncode == 0, "run: python records/readme.py"


def test_every_record_is_in_the_index_and_can_be_done_again():
    index = (REPOSITORY / "records" / "INDEX.md").read_text(encoding="utf-8")
    for folder in (p for p in (REPOSITORY / "records").iterdir() if p.is_dir() and not p.name.startswith("_")):
        assert f"({folder.name}/README.md)" in index
        [command] = re.findall(r"ommand: `(.*?)`", (folder / "README.md").read_text(encoding="utf-8"))
        assert " /" not in command  # no folder of the machine that it was made on


def test_the_preset_headway_is_what_won():
    [folder] = (REPOSITORY / "records").glob("*-combination-final")
    study = Study.load(folder / "study.yaml")
    verdict = (folder / "README.md").read_text(encoding="utf-8")
    won = re.findall(r"\*\*(.*?)\*\*", verdict.partition("Faster: ")[2].partition(". ")[0])
    assert len(won) == 1
    winner = study.recipe(won[0], study.seeds[0])
    ours = Recipe.load("headway").with_overrides([*study.set])
    images, heldout = load("digits", heldout=0.3)
    one, other = (
        r.with_overrides(["data.source=digits"]).resolved(images, len(heldout), "fp32") for r in (winner, ours)
    )
    assert [one.framework, one.noise, one.weight, one.optim] == [
        other.framework,
        other.noise,
        other.weight,
        other.optim,
    ]
    assert one.train.ema[0] == pytest.approx(other.train.ema[0], rel=0.01)


def test_dry_run_says_what_would_run(tmp_path):
    said: list[str] = []
    assert compare(study_file(tmp_path), tmp_path / "out", dry_run=True, tell=said.append) is None
    assert not (tmp_path / "out").exists()
    assert any("3 arms x 2 seeds" in line for line in said)


def test_results_are_read_back_from_the_folder(finished):
    folder, found, _ = finished
    assert read_cells(found.study, folder / "out") == found.cells
    for file in (folder / "out" / "cells").glob("*.json"):
        json.loads(file.read_text())
