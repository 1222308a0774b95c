"""The command line as a user meets it: a subprocess, its words and its exit code."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

HEADWAY = [sys.executable, "-m", "headway"]
TINY = ["train.images=256", "train.batch=32", "log.samples=0", "sampling.steps=3", "evaluation.samples=64"]


def inside(monkeypatch, capsys, *arguments: object) -> tuple[int, str, str]:
    """The same entry point within this process: exit code, stdout, stderr. Saves an import of torch a case."""
    from headway.cli import main

    monkeypatch.setattr(sys, "argv", ["headway", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    output = capsys.readouterr()
    return stopped.value.code or 0, output.out, output.err


def headway(*arguments: object, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    command = [*HEADWAY, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trained run, shared by the tests that only read it."""
    folder = tmp_path_factory.mktemp("runs") / "x"
    result = headway("train", "edm-fdm", *TINY, "--data", "digits", "--out", folder)
    assert result.returncode == 0, result.stderr
    assert "256 images. Page:" in result.stdout
    return folder


def test_help_imports_nothing_heavy():
    code = "import sys; from headway.cli import main; sys.argv = ['headway', '--help']\ntry: main()\nexcept SystemExit: pass\n"
    code += "heavy = {'torch', 'numpy', 'pydantic', 'diffusers', 'matplotlib'} & set(sys.modules); sys.exit(', '.join(heavy) or 0)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for command in ("train", "sample", "evaluate", "info", "report", "demo"):
        assert command in result.stdout


def test_a_second_run_says_it_is_finished(run):
    again = headway("train", "edm-fdm", *TINY, "--data", "digits", "--out", run)
    assert again.returncode == 0
    assert "is finished: 256 images" in again.stdout


def test_dry_run_prints_the_whole_recipe_and_writes_nothing(tmp_path):
    result = headway("train", "edm-fdm", "--data", "digits", "--out", tmp_path / "x", "--dry-run", "lr=3e-4")
    assert result.returncode == 0
    assert "auto" not in result.stdout
    assert "lr: 0.0003" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_sample_writes_one_png_a_seed_and_a_grid(run, tmp_path):
    result = headway("sample", run, "--count", 5, "--seed", 3, "--out", tmp_path, "--solver", "euler", "--steps", 4)
    assert result.returncode == 0, result.stderr
    assert "4 NFE an image" in result.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "000003.png",
        "000004.png",
        "000005.png",
        "000006.png",
        "000007.png",
        "grid.png",
        "sampling.json",
    ]
    one = headway(
        "sample", run, "--count", 1, "--seed", 6, "--out", tmp_path / "one", "--solver", "euler", "--steps", 4
    )
    assert one.returncode == 0
    pixels = [np.asarray(Image.open(f)).astype(int) for f in (tmp_path / "000006.png", tmp_path / "one" / "000006.png")]
    assert np.abs(pixels[0] - pixels[1]).max() <= 1


def test_a_folder_of_samples_never_mixes_two_settings(run, tmp_path, monkeypatch, capsys):
    def sampled(*options: object) -> str:
        monkeypatch.setattr(
            sys, "argv", ["headway", "sample", str(run), "--count", "1", "--out", str(tmp_path), *map(str, options)]
        )
        from headway.cli import main

        with pytest.raises(SystemExit) as stopped:
            main()
        return "" if not stopped.value.code else capsys.readouterr().err

    assert sampled("--steps", 2) == ""
    assert sampled("--steps", 2, "--seed", 1) == ""
    assert "holds images of other settings (steps 2)" in sampled("--steps", 3)


def test_a_run_folder_as_the_recipe_means_that_run(run):
    again = headway("train", run)
    assert again.returncode == 0, again.stderr
    assert "is finished: 256 images" in again.stdout


def test_a_strange_path_is_a_path(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "2024 #1: a"
    folder.mkdir()
    for i in range(20):
        Image.new("L", (8, 8), i).save(folder / f"{i}.png")
    code, out, _ = inside(monkeypatch, capsys, "train", "edm", "--data", folder, "--dry-run")
    assert code == 0
    assert f"{folder}" in out.replace("'", "")


def test_runs_that_cannot_be_compared_are_not(run, tmp_path, monkeypatch, capsys):
    for n, steps in ((64, 3), (32, 3)):
        twin = tmp_path / str(n)
        shutil.copytree(run, twin)
        (twin / "evaluations.jsonl").unlink(missing_ok=True)
        code, _, errors = inside(monkeypatch, capsys, "evaluate", twin, "--count", n, "--steps", steps)
        assert code == 0, errors
    inside(monkeypatch, capsys, "report", tmp_path / "64", tmp_path / "32", "--out", tmp_path / "page.html")
    assert "so not comparable" in (tmp_path / "page.html").read_text()


def test_evaluate_names_metric_floor_and_ceiling(run):
    result = headway("evaluate", run)
    assert result.returncode == 0, result.stderr
    assert "fd-classifier@64" in result.stdout
    assert "real held-out images" in result.stdout
    record = json.loads((run / "evaluations.jsonl").read_text().splitlines()[-1])
    assert record["n"] == 64
    assert record["floor"] < record["ceiling"]
    page = (run / "report.html").read_text()
    assert "fd-classifier@64" in page
    assert "<script" not in page
    assert "http" not in page


def test_info_of_a_run_and_of_presets(run):
    for what, expected in (
        (run, "256 of 256 images seen"),
        ("edm", "depends on the images"),
        ("digits-edm", "parameters"),
    ):
        result = headway("info", what)
        assert result.returncode == 0, result.stderr
        assert expected in result.stdout


def test_info_lists_every_technique_with_its_source_and_options(monkeypatch, capsys):
    from headway.noise import DENSITIES
    from headway.optim import LAWS
    from headway.weighting import WEIGHTS

    _, out, _ = inside(monkeypatch, capsys, "info", "--techniques")
    settings = [f"noise={n}" for n in DENSITIES] + [f"weight={n}" for n in WEIGHTS] + [f"optim.law={n}" for n in LAWS]
    for setting in [*settings, "framework.momentum=propagated", "noise.coupling=immiscible", "sampling.solver=heun"]:
        assert f"\n{setting}" in f"\n{out}"
    assert "horizon=0.7" in out
    assert "arXiv 2404.07946" in out


def test_report_puts_runs_side_by_side(run, tmp_path):
    result = headway("report", run, run, "--out", tmp_path / "both.html")
    assert result.returncode == 0
    assert (tmp_path / "both.html").read_text().count("<figcaption>") >= 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "edm", "--data", "/no/such/place"], "/no/such/place"),
        (["train", "edm"], "No images given"),
        (["train", "emd", "--data", "digits"], "Did you mean 'edm'"),
        (["train", "edm", "train.lrr=1", "--data", "digits"], "Did you mean 'optim.lr'"),
        (["train", "edm", "framework.zeta=-1", "--data", "digits"], "framework.zeta = -1"),
        (["train", "edm", "momentum=literal", "--data", "digits"], "use momentum='released'"),
        (["train", "edm", "network.preset=tinny", "--data", "digits"], "Did you mean 'tiny'"),
        (["train", "edm", "data.channels=4", "--data", "digits"], "data.channels = 4"),
        (["train", "edm", "sampling.solver=hein", "--data", "digits"], "Did you mean 'heun'"),
        (["sample", "/no/run"], "No run at /no/run"),
        (["sample", "RUN", "--count", "0"], "--count must be at least 1"),
        (["sample", "RUN", "--solver", "huen"], "Did you mean 'heun'"),
        (["sample", "RUN", "--steps", "0"], "steps"),
        (["sample", "RUN", "--grid", "karass"], "grid"),
        (["sample", "RUN", "--label", "3"], "label"),
        (["sample", "RUN", "--guidance", "3"], "guidance"),
        (["sample", "RUN", "--ema", "12"], "no weight average of half-life 12"),
        (["sample", "RUN", "--ema", "all"], "a half-life in images or 'raw'"),
        (["evaluate", "RUN", "--count", "0"], "--count must be at least 1"),
        (["evaluate", "RUN", "--count", "1"], "at least 2 samples"),
        (["evaluate", "RUN", "--steps", "0"], "steps"),
        (["evaluate", "RUN", "--solver", "huen"], "Did you mean 'heun'"),
        (["evaluate", "RUN", "--extractor", "inception"], "weights"),
        (["evaluate", "RUN", "--extractor", "no.such:Thing"], "no.such:Thing"),
        (["evaluate", "RUN", "--extractor", "klassifier"], "Did you mean 'classifier'"),
        (["info", "nothing"], "No recipe 'nothing'"),
        (["info"], "info needs a run folder"),
        (["report", "/no/run"], "No run at /no/run"),
        (["report", "RUN", "--out", "/tmp"], "/tmp is a folder"),
        (["evaluate", "RUN", "--guidance", "2"], "needs a class-conditional model"),
        (["evaluate", "RUN", "--batch", "0"], "batch must be at least 1"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(run, tmp_path, monkeypatch, capsys, arguments, sentence):
    out = ["--out", str(tmp_path / "out")] if arguments[0] in ("train", "sample") else []
    code, _, errors = inside(monkeypatch, capsys, *[run if a == "RUN" else a for a in arguments], *out)
    assert code == 2, errors
    assert sentence in errors
    assert len(errors.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_bad_input_to_the_real_process_shows_no_traceback(run):
    result = headway("sample", run, "--solver", "huen")
    assert result.returncode == 2
    assert result.stderr.startswith("headway: Unknown solver 'huen'")
    assert "Traceback" not in result.stderr


def test_bad_data_get_one_sentence(tmp_path, monkeypatch, capsys):
    folder, out = tmp_path / "pictures", tmp_path / "out"
    folder.mkdir()

    def fails(words: str) -> None:
        code, _, errors = inside(monkeypatch, capsys, "train", "edm", "--data", folder, "--out", out)
        assert code == 2
        assert words in errors.lower()

    fails("no image")
    (folder / "a.png").write_text("not a picture")
    fails("a.png")
    for name, size in (("a.png", 8), ("b.png", 9)):
        Image.new("L", (size, size)).save(folder / name)
    fails("size")
    assert not out.exists()


def test_a_broken_recipe_or_run_gets_one_sentence(run, tmp_path, monkeypatch, capsys):
    (tmp_path / "r.yaml").write_text("train: {lr: 1")
    code, _, errors = inside(monkeypatch, capsys, "train", tmp_path / "r.yaml", "--data", "digits")
    assert (code, "broken YAML" in errors) == (2, True)
    broken = tmp_path / "broken"
    shutil.copytree(run, broken)
    shutil.rmtree(broken / "checkpoints")
    code, _, errors = inside(monkeypatch, capsys, "sample", broken)
    assert (code, "has no complete checkpoint" in errors) == (2, True)


def test_ctrl_c_writes_a_checkpoint_and_the_same_command_goes_on(tmp_path):
    command = [
        *HEADWAY,
        "train",
        "digits-edm",
        "train.images=4M",
        "log.samples=0",
        "log.tick=128",
        "--out",
        str(tmp_path / "x"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "x" / "metrics.jsonl"
    deadline = time.time() + 200
    while time.time() < deadline and not (metrics.is_file() and metrics.stat().st_size):
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "The same command goes on from there." in output
    assert "Traceback" not in errors
    done = sorted((tmp_path / "x" / "checkpoints").iterdir())[-1]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while time.time() < deadline and len(metrics.read_text().splitlines()) < int(done.name) // 128 + 2:
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGKILL)  # no farewell this time
    output, _ = process.communicate(timeout=60)
    assert f"Going on from {done}" in output


def test_the_demo_at_a_small_budget(tmp_path):
    result = headway("demo", "--out", tmp_path, "--images", "512", timeout=400)
    assert result.returncode == 0, result.stderr
    assert "Page:" in result.stdout
    page = (tmp_path / "index.html").read_text()
    assert page.count("<img") == 4
    for run in ("edm", "edm-fdm"):
        assert (tmp_path / run / "recipe.yaml").is_file()
    again = headway("demo", "--out", tmp_path, "--images", "512")
    assert again.returncode == 0
    assert again.stdout.count("is finished") == 2
