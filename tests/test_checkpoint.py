"""Checkpoints: complete or not there, whatever happens in between."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from headway.errors import HeadwayError
from headway.training import checkpoint

TENSORS = {"model": {"w": torch.arange(6.0).reshape(2, 3).T}, "optimizer": {"step/w": torch.tensor(3.0)}}


def test_round_trip_and_keep(tmp_path):
    for nimg in (100, 200, 1000):
        checkpoint.save(tmp_path, nimg, TENSORS, {"nimg": nimg}, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000000200", "000001000"]
    newest = checkpoint.newest(tmp_path)
    assert newest is not None
    assert checkpoint.load_state(newest) == {"nimg": 1000}
    assert torch.equal(checkpoint.load_tensors(newest, "model")["w"], TENSORS["model"]["w"])
    assert sorted(p.name for p in newest.iterdir()) == [
        "COMPLETE",
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    ]


@pytest.mark.parametrize(
    "harm", ["truncate", "flip", "remove", "no marker", "marker broken", "marker empty", "marker a list", "empty"]
)
def test_a_damaged_checkpoint_is_passed_over_with_a_message(tmp_path, harm):
    checkpoint.save(tmp_path, 1, TENSORS, {}, keep=3)
    bad = checkpoint.save(tmp_path, 2, TENSORS, {}, keep=3)
    model, marker = bad / "model.safetensors", bad / "COMPLETE"
    match harm:
        case "truncate":
            model.write_bytes(model.read_bytes()[:-1])
        case "flip":
            data = bytearray(model.read_bytes())
            data[-1] ^= 1
            model.write_bytes(data)
        case "remove":
            model.unlink()
        case "no marker":
            marker.unlink()
        case "marker broken":
            marker.write_text("{")
        case "marker empty":
            marker.write_text("{}")
        case "marker a list":
            marker.write_text("[1]")
        case "empty":
            for file in bad.iterdir():
                file.unlink()
    messages: list[str] = []
    found = checkpoint.newest(tmp_path, messages.append)
    assert found is not None
    assert found.name == "000000001"
    assert len(messages) == 1
    assert "000000002 is damaged" in messages[0]


def test_when_all_are_damaged_nothing_begins_anew_unasked(tmp_path):
    bad = checkpoint.save(tmp_path, 2, TENSORS, {}, keep=3)
    (bad / "model.safetensors").unlink()
    with pytest.raises(HeadwayError, match="no older one is complete: to begin anew, delete the run folder"):
        checkpoint.newest(tmp_path)
    assert checkpoint.newest(tmp_path / "empty") is None


def test_names_outgrow_their_digits(tmp_path):
    for nimg in (999_999_936, 1_000_000_064, 1_000_000_192):
        checkpoint.save(tmp_path, nimg, TENSORS, {}, keep=2)
    assert sorted(int(p.name) for p in tmp_path.iterdir()) == [1_000_000_064, 1_000_000_192]
    assert checkpoint.newest(tmp_path).name == "1000000192"


def test_a_killed_save_is_cleared_away(tmp_path):
    (tmp_path / ".000000001.partial").mkdir()
    checkpoint.save(tmp_path, 2, TENSORS, {}, keep=2)
    assert [p.name for p in tmp_path.iterdir()] == ["000000002"]


def test_a_failed_save_leaves_the_old_one_and_no_rubbish(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, TENSORS, {}, keep=1)

    def full_disk(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full_disk)
    with pytest.raises(HeadwayError, match="No space left on device; earlier checkpoints are untouched"):
        checkpoint.save(tmp_path, 2, TENSORS, {}, keep=1)
    assert [p.name for p in tmp_path.iterdir()] == ["000000001"]


def test_saving_again_replaces(tmp_path):
    checkpoint.save(tmp_path, 5, TENSORS, {"run": 1}, keep=1)
    found = checkpoint.save(tmp_path, 5, TENSORS, {"run": 2}, keep=1)
    assert json.loads((found / "state.json").read_text()) == {"run": 2}


def test_optimizer_state_survives_by_name(tmp_path):
    def stepped():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.1)
        return network, optimizer, {p: n for n, p in network.named_parameters()}

    def step(network, optimizer):
        optimizer.zero_grad()
        network(torch.ones(5, 3)).square().mean().backward()
        optimizer.step()

    network, optimizer, names = stepped()
    step(network, optimizer)
    found = checkpoint.save(tmp_path, 1, {"optimizer": checkpoint.optimizer_tensors(optimizer, names)}, {}, keep=1)
    assert "exp_avg/0.weight" in load_file(found / "optimizer.safetensors")
    twin, again, twin_names = stepped()
    twin.load_state_dict(network.state_dict())
    checkpoint.restore_optimizer(again, twin_names, checkpoint.load_tensors(found, "optimizer"))
    step(network, optimizer)
    step(twin, again)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), twin.parameters(), strict=True))
