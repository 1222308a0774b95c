"""The further figures of a judge: those of the plain functions, beside a floor, in one process or several, or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import numpy as np
import pytest
import torch
from torch import nn

from headway.data import load
from headway.errors import HeadwayError
from headway.metrics import (
    Judge,
    figures,
    find_copies,
    gaussian_mmd2,
    kernel_distance,
    median_bandwidth,
    module_extractor,
    overlap,
)

KEYS = ["kid", "precision", "recall", "density", "coverage", "mmd", "copies", "nearest_ratio"]


class Pixels(nn.Module):
    """Every other pixel, and a count of the images looked at."""

    seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Pixels.seen += len(x)
        return x[:, 0, ::2, ::2].flatten(1)


@pytest.fixture(scope="module")
def digits():
    return load("digits", heldout=0.3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("judge")


@pytest.fixture
def make(digits, folder):
    def judge(n: int, **options) -> Judge:
        return Judge(*digits, module_extractor(Pixels(), (1, 8, 8)), n=n, cache=folder, **options)

    return judge


def noisy(images, n: int, sigma: float = 0.1) -> torch.Tensor:
    return images.pixels(range(n)) + sigma * torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def rounded(images: torch.Tensor) -> torch.Tensor:
    return Pixels()((images * 127.5 + 127.5).round().clamp(0, 255) / 127.5 - 1)


def test_they_are_those_of_the_plain_functions(make, digits):
    train, heldout = digits
    samples = noisy(heldout, 300)
    quality = make(300, figures=True).quality(samples)
    assert list(quality.figures) == list(quality.figures_floor) == KEYS
    mine, real, held = rounded(samples), rounded(train.pixels()), rounded(heldout.pixels())
    assert quality.figures["kid"] == pytest.approx(kernel_distance(mine, real), rel=1e-4)
    assert quality.figures["mmd"] == pytest.approx(gaussian_mmd2(mine, real), rel=1e-4)
    copies = find_copies(mine, real, held)
    assert quality.figures["copies"] == copies.share
    assert quality.figures["nearest_ratio"] == pytest.approx(copies.ratio, rel=1e-5)
    chosen = real[np.random.default_rng(0).permutation(len(real))[:300]]
    near = overlap(mine, chosen, 5)
    for key in ("precision", "recall", "density", "coverage"):
        assert quality.figures[key] == pytest.approx(getattr(near, key), abs=0.01)
    assert quality.figures_setup == {
        "reference_n": len(train),
        "neighbours_k": 5,
        "neighbours_n": 300,
        "mmd_sigma": pytest.approx(median_bandwidth(real), rel=0.02),
        "copy_distance": pytest.approx(copies.threshold, rel=1e-5),
    }
    json.dumps([quality.figures, quality.figures_floor, quality.figures_setup])


def test_real_images_do_better_than_noise_and_about_as_the_floor(make, digits):
    _, heldout = digits
    judge = make(300, figures=True)
    real, poor = judge.quality(noisy(heldout, 300, 0)), judge.quality(noisy(heldout, 300, 1.0))
    for key in ("kid", "mmd"):
        assert abs(real.figures[key]) < 0.1 * poor.figures[key]
        assert abs(real.figures_floor[key]) < 0.1 * poor.figures[key]
    for key in ("precision", "density", "coverage"):
        assert poor.figures[key] < 0.5 * real.figures[key]
        assert real.figures[key] == pytest.approx(real.figures_floor[key], rel=0.2)
    assert real.figures_floor["nearest_ratio"] == pytest.approx(1, abs=0.1)
    assert real.figures_floor["copies"] == pytest.approx(0.01, abs=0.02)
    assert poor.figures["nearest_ratio"] > 1.2


def test_without_them_nothing_changes(make, digits):
    samples = noisy(digits[1], 300)
    plain, full = make(300).quality(samples), make(300, figures=True).quality(samples)
    assert plain.figures == plain.figures_floor == plain.figures_setup == {}
    assert plain.warnings == ()
    assert replace(full, warnings=(), figures={}, figures_floor={}, figures_setup={}) == plain


def test_several_processes_give_the_figures_of_one(make, digits):
    samples = noisy(digits[1], 301)
    alone = make(301, figures=True).quality(samples)
    barrier, shared = Barrier(3, timeout=30), [torch.empty(0)] * 3

    def meet(rank, join):
        def met(tensor):
            shared[rank] = tensor
            barrier.wait()
            result = join(shared)
            barrier.wait()
            return result

        return met

    def share(rank):
        judge = make(
            301, figures=True, reduce=meet(rank, lambda t: torch.stack(t).sum(0)), gather=meet(rank, torch.cat)
        )
        return judge.quality(samples[rank::3])

    with ThreadPoolExecutor(3) as pool:
        for quality in pool.map(share, range(3)):
            assert quality.figures == pytest.approx(alone.figures, rel=1e-9)
            assert quality.figures_floor == alone.figures_floor


def test_the_data_set_is_looked_at_once(digits, tmp_path):
    train, heldout = digits

    def judged() -> tuple[dict[str, float], int]:
        extractor = module_extractor(Pixels(), (1, 8, 8))
        before = Pixels.seen
        quality = Judge(train, heldout, extractor, n=200, cache=tmp_path, figures=True).quality(noisy(heldout, 200))
        return quality.figures | {f"floor {key}": value for key, value in quality.figures_floor.items()}, (
            Pixels.seen - before
        )

    first, images = judged()
    second, fewer = judged()
    assert first == second
    assert fewer == 8 + 200
    assert images == 8 + 2 * len(train) + len(heldout) + 3 * 200


def test_the_reference_is_capped_and_says_so(make, digits, tmp_path, monkeypatch):
    train, heldout = digits
    monkeypatch.setattr("headway.metrics.figures.REFERENCE", 250)
    monkeypatch.setattr("headway.metrics.judge.REFERENCE", 250)
    judge = make(300, figures=True)
    judge.cache = tmp_path
    samples = noisy(heldout, 300)
    samples[:40] = train.pixels(range(len(train) - 40, len(train)))  # copies are looked for among all training images
    quality = judge.quality(samples)
    assert quality.figures_setup["reference_n"] == quality.figures_setup["neighbours_n"] == 250
    assert quality.figures["copies"] >= 40 / 300
    assert any("near to a training image" in warning for warning in quality.warnings)


def test_training_images_among_the_samples_are_told(make, digits):
    train, heldout = digits
    samples = train.pixels(range(300))
    judge = make(300, figures=True)
    assert judge.quality(samples).warnings[-2].startswith("300 of 300 samples are training images")
    samples[200:] = noisy(heldout, 100, 0.3)
    assert judge.quality(samples).warnings[-2].startswith("200 of 300 samples are training images")
    samples[50:] = noisy(heldout, 250, 0.3)
    assert "as near to a training image as one held-out image in a hundred" in judge.quality(samples).warnings[-2]


def test_few_images_a_side_come_with_a_warning(make, digits, monkeypatch):
    _, heldout = digits
    assert "those of 300 images a side, and noisy" in make(300, figures=True).quality(noisy(heldout, 300)).warnings[0]
    monkeypatch.setattr(figures, "FEW", 300)
    assert make(300, figures=True).quality(noisy(heldout, 300)).warnings == ()
    more = make(600, figures=True).quality(torch.cat([noisy(heldout, 300), noisy(heldout, 300, 0.2)]))
    assert f"of the held-out images are those of {len(heldout)} a side, for 600" in more.warnings[-1]


def test_what_has_no_figures_is_refused(make):
    with pytest.raises(HeadwayError, match=r"more than 5 images of each kind.*and 5 samples"):
        make(5, figures=True)
    with pytest.raises(HeadwayError, match="give gather beside reduce"):
        make(300, figures=True, reduce=lambda t: t)


# Runs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    from headway.training import train

    run = tmp_path_factory.mktemp("figures") / "run"
    tiny = ["train.images=128", "train.batch=32", "log.samples=0", "sampling.steps=2", "evaluation.samples=33"]
    train("digits-edm", run, overrides=tiny)
    return run


def test_evaluate_prints_figures_beside_the_floors(run):
    from typer.testing import CliRunner

    from headway.cli.commands import app

    result = CliRunner().invoke(app, ["evaluate", str(run), "--figures"], catch_exceptions=False)
    assert result.exit_code == 0
    record = json.loads((run / "evaluations.jsonl").read_text().splitlines()[-1])
    assert list(record["figures"]) == KEYS
    for key in KEYS:
        line = f"{key}: {record['figures'][key]:.4g}   (real held-out images {record['figures_floor'][key]:.4g})"
        assert line in result.stdout
    assert record["figures_setup"]["neighbours_n"] == 33
    plain = CliRunner().invoke(app, ["evaluate", str(run)], catch_exceptions=False)
    assert "kid" not in plain.stdout
    again = json.loads((run / "evaluations.jsonl").read_text().splitlines()[-1])
    assert again["value"] == record["value"]
    assert again["figures"] == {}


def test_two_processes_of_uneven_share_give_the_figures_of_one(run):
    from headway.studies import evaluate

    one = evaluate(run, figures=True)["figures"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*launch, "-m", "headway", "evaluate", str(run), "--figures"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    two = json.loads((run / "evaluations.jsonl").read_text().splitlines()[-1])["figures"]
    assert one == pytest.approx(two, rel=1e-3, abs=1e-6)


def test_a_judge_without_figures_cannot_give_them(run):
    from headway.studies import evaluate
    from headway.studies.evaluation import make_judge
    from headway.training.processes import Processes

    judge = make_judge(run, 33, processes=Processes())
    with pytest.raises(HeadwayError, match="build it with figures=True"):
        evaluate(run, judge=judge, figures=True)
