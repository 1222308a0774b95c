"""The training loop: resumable to the bit, the same whatever the cut, honest about failures."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import headway
from headway.errors import HeadwayError
from headway.training import Run, train
from headway.training.loop import MAX_SKIPPED_IN_A_ROW, Trainer

BATCH = 32
SMALL = [
    f"batch={BATCH}",
    f"train.images={BATCH * 12}",
    "log.samples=0",
    f"log.tick={BATCH}",
    f"checkpoint={BATCH * 3}",
]


def quiet(*arguments, **options):
    return train(*arguments, progress=False, tell=lambda message: None, **options)


def files(run: Path) -> dict[str, dict[str, torch.Tensor]]:
    newest = Run(run).newest_checkpoint()
    return {file.stem: load_file(file) for file in newest.glob("*.safetensors")}


def equal(a, b) -> bool:
    return a.keys() == b.keys() and all(
        a[f].keys() == b[f].keys() and all(torch.equal(a[f][k], b[f][k]) for k in a[f]) for f in a
    )


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param([], id="plain"),
        pytest.param(["accumulation=4"], id="accumulation"),
        pytest.param(
            [
                "accumulation=2",
                "dropout=0.1",
                "augment=0.5",
                "xflip=true",
                "labels=true",
                "momentum=released",
                "ema=[64, 500]",
            ],
            id="everything",
        ),
    ],
)
def test_resuming_is_not_noticed_to_the_bit(tmp_path, extra):
    settings = [*SMALL, *extra]
    whole = quiet("digits-edm", tmp_path / "whole", overrides=settings)
    first = quiet("digits-edm", tmp_path / "parts", overrides=settings, stop_after=BATCH * 5)
    assert (first.nimg, first.finished) == (BATCH * 5, False)
    second = quiet("digits-edm", tmp_path / "parts", overrides=settings)
    assert whole.finished
    assert second.finished
    assert equal(files(tmp_path / "whole"), files(tmp_path / "parts"))
    strip = [
        [{k: r[k] for k in ("nimg", "loss", "mse", "bands", "lr", "grad_norm")} for r in run.run.metrics()]
        for run in (whole, second)
    ]
    assert strip[0] == strip[1]


def test_accumulation_changes_rounding_only(tmp_path):
    for steps in (1, 4, 5):  # 5 does not divide the batch
        quiet("digits-edm", tmp_path / str(steps), overrides=[*SMALL, f"accumulation={steps}"])
    one, four, five = (files(tmp_path / str(steps))["model"] for steps in (1, 4, 5))
    for name in one:
        torch.testing.assert_close(one[name], four[name], rtol=1e-3, atol=2e-5)
        torch.testing.assert_close(one[name], five[name], rtol=1e-3, atol=2e-5)


def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path, monkeypatch):
    settings = [*SMALL]
    whole = quiet("digits-edm", tmp_path / "whole", overrides=settings)
    original = Trainer._step

    def dies(self, bands):
        if self.state.nimg == BATCH * 7:
            raise RuntimeError("killed")
        return original(self, bands)

    monkeypatch.setattr(Trainer, "_step", dies)
    with pytest.raises(RuntimeError, match="killed"):
        quiet("digits-edm", tmp_path / "run", overrides=settings)
    monkeypatch.setattr(Trainer, "_step", original)
    # Seven batches were recorded, six are in the checkpoint: the seventh's record must not appear twice.
    with Run(tmp_path / "run").metrics_file.open("a") as stream:
        stream.write('{"nimg": 9')
    again = quiet("digits-edm", tmp_path / "run", overrides=settings)
    assert equal(files(tmp_path / "whole"), files(tmp_path / "run"))
    assert [r["nimg"] for r in again.run.metrics()] == [r["nimg"] for r in whole.run.metrics()]


def test_an_interrupt_writes_a_checkpoint_and_says_how_to_go_on(tmp_path, monkeypatch):
    original = Trainer._step

    def interrupted(self, bands):
        if self.state.nimg == BATCH * 2:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, bands)

    monkeypatch.setattr(Trainer, "_step", interrupted)
    before = signal.getsignal(signal.SIGINT)
    messages: list[str] = []
    stopped = train("digits-edm", tmp_path, overrides=SMALL, progress=False, tell=messages.append)
    assert stopped.interrupted
    assert stopped.nimg == BATCH * 3
    assert Run(tmp_path).newest_checkpoint().name == f"{BATCH * 3:09d}"
    assert "The same command goes on from there." in messages[-1]
    assert signal.getsignal(signal.SIGINT) is before


def test_another_recipe_or_other_data_is_refused(tmp_path):
    quiet("digits-edm", tmp_path, overrides=SMALL, stop_after=BATCH)
    with pytest.raises(HeadwayError, match=r"another recipe \(optim\.lr: 0\.002 there, 0\.5 now"):
        quiet("digits-edm", tmp_path, overrides=[*SMALL, "lr=0.5"])
    with pytest.raises(HeadwayError, match=r"data\.fingerprint"):
        quiet("digits-edm", tmp_path, overrides=[*SMALL, "data.heldout=0.5"])
    quiet("digits-edm", tmp_path, overrides=[*SMALL, "log.keep=1"], stop_after=2 * BATCH)


def test_a_damaged_newest_checkpoint_falls_back(tmp_path):
    quiet("digits-edm", tmp_path, overrides=SMALL)
    newest = Run(tmp_path).newest_checkpoint()
    (newest / "model.safetensors").write_bytes(b"")
    messages: list[str] = []
    again = train("digits-edm", tmp_path, overrides=SMALL, progress=False, tell=messages.append)
    assert again.finished
    assert "is damaged" in messages[0]
    assert f"({BATCH * 9} of {BATCH * 12} images)" in messages[1]


def test_two_trainings_into_one_folder_are_refused(tmp_path):
    from headway.training.guards import locked

    with locked(tmp_path), pytest.raises(HeadwayError, match="Another process is training into"):
        quiet("digits-edm", tmp_path, overrides=SMALL)


def test_the_records_add_up(tmp_path):
    run = quiet("digits-edm", tmp_path, overrides=[*SMALL, f"lr_ramp={BATCH * 4}"]).run
    records = run.metrics()
    assert [r["nimg"] for r in records] == [BATCH * i for i in range(1, 13)]
    for record in records:
        assert sum(band["n"] for band in record["bands"]) == BATCH
        mean = sum(band["n"] * band["loss"] for band in record["bands"] if band["n"]) / BATCH
        assert record["loss"] == pytest.approx(mean)
    assert [r["lr"] for r in records[:5]] == pytest.approx([0.0005, 0.001, 0.0015, 0.002, 0.002])
    assert records[-1]["skipped"] == 0


def test_the_loss_falls_and_the_average_differs_from_the_weights(tmp_path):
    run = quiet(
        "digits-edm", tmp_path, overrides=["batch=64", "train.images=6400", "log.samples=0", "log.tick=640"]
    ).run
    mse = [r["mse"] for r in run.metrics()]
    assert mse[-1] < 0.7 * mse[0]
    averaged, raw = headway.load(tmp_path), headway.load(tmp_path, ema="raw")
    assert any(not torch.equal(a, b) for a, b in zip(averaged.parameters(), raw.parameters(), strict=True))
    with pytest.raises(HeadwayError, match="keeps no weight average of half-life 7"):
        headway.load(tmp_path, ema=7)


def test_steps_that_are_not_finite_are_skipped_counted_and_at_last_fatal(tmp_path, monkeypatch):
    original = Trainer._step
    bad = {BATCH * 2}

    def poisoned(self, bands):
        weight = next(self.state.network.parameters())
        hook = weight.register_hook(lambda g: g * float("nan")) if self.state.nimg in bad else None
        try:
            return original(self, bands)
        finally:
            if hook:
                hook.remove()

    monkeypatch.setattr(Trainer, "_step", poisoned)
    run = quiet("digits-edm", tmp_path / "one", overrides=SMALL).run
    assert run.metrics()[-1]["skipped"] == 1
    assert [r["grad_norm"] is None for r in run.metrics()] == [i == 2 for i in range(12)]
    assert "NaN" not in run.metrics_file.read_text()
    assert all(w.isfinite().all() for w in files(tmp_path / "one")["model"].values())
    bad |= {BATCH * i for i in range(100)}
    with pytest.raises(HeadwayError, match=f"not finite in {MAX_SKIPPED_IN_A_ROW} steps in a row"):
        quiet("digits-edm", tmp_path / "all", overrides=[*SMALL, f"train.images={BATCH * 40}"])


def test_grids_come_from_the_same_seeds(tmp_path):
    settings = ["batch=32", "train.images=64", "log.samples=32", "sampling.steps=2", "labels=true"]
    quiet("digits-edm", tmp_path, overrides=settings)
    grids = sorted(p.name for p in (tmp_path / "samples").iterdir())
    assert grids == ["000000032.png", "000000064.png"]


def test_class_labels_must_be_there(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((20, 8, 8), np.uint8))
    with pytest.raises(HeadwayError, match="has none: use sub-folders"):
        quiet("edm", tmp_path / "run", data=tmp_path / "x.npy", overrides=["labels=true"])
    assert not (tmp_path / "run").exists()


def test_fp16_needs_a_gpu(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(HeadwayError, match="fp16 needs a GPU"):
        quiet("digits-edm", tmp_path, overrides=["precision=fp16"])


def test_bf16_runs_on_a_cpu_when_asked(tmp_path):
    run = quiet("digits-edm", tmp_path, overrides=["precision=bf16", "batch=8", "train.images=16", "log.samples=0"]).run
    assert all(w.dtype == torch.float32 for w in files(tmp_path)["model"].values())
    assert np.isfinite(run.metrics()[-1]["loss"])


def test_tensorboard(tmp_path):
    quiet("digits-edm", tmp_path, overrides=[*SMALL, "tensorboard=true"])
    assert list((tmp_path / "tensorboard").iterdir())


def test_checkpoints_hold_only_tensors_and_json(tmp_path):
    quiet("digits-edm", tmp_path, overrides=SMALL, stop_after=BATCH)
    newest = Run(tmp_path).newest_checkpoint()
    names = {p.name for p in newest.iterdir()}
    assert {"model.safetensors", "optimizer.safetensors", "state.json", "COMPLETE"} < names
    assert all(name.endswith((".safetensors", ".json")) or name == "COMPLETE" for name in names)
    assert json.loads((newest / "state.json").read_text())["nimg"] == BATCH
