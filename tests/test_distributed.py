"""Two processes on gloo: the same curve up to rounding, shared sampling and evaluation, no hanging on uneven counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

SETTINGS = [
    "train.images=320",
    "train.batch=32",
    "log.samples=160",
    "log.tick=32",
    "sampling.steps=3",
    "evaluation.samples=33",
]


def launch(processes: int, *arguments: object) -> str:
    return torchrun(processes, "-m", "headway", *arguments)


def torchrun(processes: int, *what: object) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    command += map(str, what)
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same recipe by one process and by two."""
    folder = tmp_path_factory.mktemp("runs")
    for processes in (1, 2):
        launch(processes, "train", "digits-edm", *SETTINGS, "train.accumulation=2", "--out", folder / str(processes))
    return folder / "1", folder / "2"


def test_the_same_curve_up_to_rounding(runs):
    one, two = ([json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in runs)
    assert [r["nimg"] for r in one] == [r["nimg"] for r in two]
    for a, b in zip(one, two, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-3)
        assert [band["n"] for band in a["bands"]] == [band["n"] for band in b["bands"]]
    for stem in ("model", "ema-"):
        weights = [load_file(next((run / "checkpoints").glob(f"*320/{stem}*.safetensors"))) for run in runs]
        assert weights[0].keys() == weights[1].keys()
        for name in weights[0]:
            torch.testing.assert_close(weights[0][name], weights[1][name], rtol=1e-2, atol=1e-4)


def test_one_process_goes_on_where_two_stopped(runs, tmp_path):
    launch(2, "train", "digits-edm", *SETTINGS, "--out", tmp_path / "x")
    out = launch(1, "train", "digits-edm", *SETTINGS, "--out", tmp_path / "x")
    assert "is finished: 320 images" in out


def test_uneven_counts_do_not_hang(runs, tmp_path):
    out = launch(2, "evaluate", runs[1])
    assert out.count("fd-classifier@33") == 1
    out = launch(2, "sample", runs[1], "--count", 3, "--out", tmp_path / "three")
    assert len(list((tmp_path / "three").glob("0*.png"))) == 3
    launch(2, "sample", runs[1], "--count", 1, "--out", tmp_path / "one")
    one, three = (tmp_path / name / "000000.png" for name in ("one", "three"))
    assert one.read_bytes() == three.read_bytes()


def test_an_odd_batch_is_cut_unevenly(tmp_path):
    launch(2, "train", "digits-edm", "train.images=66", "train.batch=33", "log.samples=0", "--out", tmp_path / "x")
    records = [json.loads(line) for line in (tmp_path / "x" / "metrics.jsonl").read_text().splitlines()]
    assert sum(band["n"] for record in records for band in record["bands"]) == 66


AT_THE_END = """
import atexit
import torch.distributed as dist
atexit.register(lambda: print("open" if dist.is_initialized() else "closed", flush=True))
from headway.training.processes import Processes
processes = Processes()
Processes()
assert processes.count == 2 and dist.is_initialized()
"""


def test_the_processes_part_before_they_end(tmp_path):
    """Else a thread of the group may outlive the interpreter, and the process ends by an abort with all its work done."""
    script = tmp_path / "end.py"
    script.write_text(AT_THE_END, encoding="utf-8")
    assert torchrun(2, script).count("closed") == 2


def test_evaluation_by_two_equals_evaluation_by_one(runs):
    values = []
    for processes in (1, 2):
        launch(processes, "evaluate", runs[0])
        values.append(json.loads((runs[0] / "evaluations.jsonl").read_text().splitlines()[-1])["value"])
    assert values[0] == pytest.approx(values[1], rel=1e-3)


def test_the_learnt_weight_is_the_same_on_one_process_and_two(tmp_path):
    for processes in (1, 2):
        out = tmp_path / str(processes)
        launch(processes, "train", "digits-edm", *SETTINGS, "weight=uncertainty", "log.samples=0", "--out", out)
    found = [load_file(next((tmp_path / n / "checkpoints").glob("*320/uncertainty.safetensors"))) for n in ("1", "2")]
    assert found[0]["weight"].abs().max() > 0
    torch.testing.assert_close(found[0]["weight"], found[1]["weight"], rtol=1e-2, atol=1e-5)
