"""Checkpoints: safetensors and JSON in a folder that is either complete or not there.

A checkpoint is written under a temporary name, flushed, checksummed (COMPLETE is the last file) and renamed. Whatever stops
the process in between, the earlier checkpoints stay; a damaged one is passed over with a message. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from headway.errors import HeadwayError

Tensors = dict[str, Tensor]


def save(folder: Path, nimg: int, tensors: Mapping[str, Tensors], state: Mapping[str, Any], keep: int) -> Path:
    """Write checkpoint ``nimg`` into ``folder`` and delete all but the newest ``keep``.

    Args:
        tensors: file stem -> named tensors, for example {"model": ..., "optimizer": ...}. state: JSON values.

    Raises:
        HeadwayError: when it cannot be written (full disk, no permission); what was there before is untouched.
    """
    target = folder / f"{nimg:09d}"
    temporary = folder / f".{target.name}.partial"
    try:
        for left in folder.glob(".*.partial"):  # by a process that was killed while saving
            shutil.rmtree(left, ignore_errors=True)
        temporary.mkdir(parents=True)
        for stem, named in tensors.items():
            # Contiguous copies: safetensors refuses views that share memory.
            save_file(
                {k: v.detach().cpu().contiguous().clone() for k, v in named.items()}, temporary / f"{stem}.safetensors"
            )
        (temporary / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")
        digests = {file.name: _flushed_digest(file) for file in sorted(temporary.iterdir())}
        (temporary / "COMPLETE").write_text(json.dumps(digests, indent=1), encoding="utf-8")
        _flushed_digest(temporary / "COMPLETE")
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
        _flush_folder(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        reason = getattr(error, "strerror", None) or str(error)
        raise HeadwayError(
            f"Could not write the checkpoint {target}: {reason}; earlier checkpoints are untouched. "
            "Make room, then run the same command again."
        ) from error
    for old in folders(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def newest(folder: Path, tell: Callable[[str], None] = lambda message: None) -> Path | None:
    """The newest complete checkpoint, or None where there is none at all.

    Damaged ones are passed over, each with a message to ``tell``.

    Raises:
        HeadwayError: there are checkpoints and all are damaged; to begin anew must be somebody's decision.
    """
    problem = None
    for candidate in reversed(folders(folder)):
        if problem is not None:
            tell(f"{problem}; going back to {candidate.name}.")
        fault = damage(candidate)
        if fault is None:
            return candidate
        problem = f"Checkpoint {candidate} is damaged ({fault})"
    if problem is not None:
        raise HeadwayError(
            f"{problem}, and no older one is complete: to begin anew, delete the run folder or choose another."
        )
    return None


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, or None: every file must be there with the checksum that COMPLETE states."""
    try:
        digests = dict(json.loads((checkpoint / "COMPLETE").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return "COMPLETE is missing"
    except (OSError, ValueError, TypeError):
        return "COMPLETE cannot be read"
    if "state.json" not in digests:
        return "COMPLETE does not list its files"
    for name, digest in digests.items():
        file = checkpoint / name
        if not file.is_file():
            return f"{name} is missing"
        if _digest(file) != digest:
            return f"{name} does not have its checksum"
    return None


def load_tensors(checkpoint: Path, stem: str) -> Tensors:
    """The named tensors of one file, on the CPU."""
    try:
        return load_file(checkpoint / f"{stem}.safetensors")
    except (OSError, SafetensorError) as error:
        raise HeadwayError(f"Cannot read {checkpoint / stem}.safetensors: {error}.") from error


def load_state(checkpoint: Path) -> dict[str, Any]:
    """The JSON state of a checkpoint."""
    state: dict[str, Any] = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
    return state


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> Tensors:
    """The optimiser's state as "exp_avg/<parameter name>" and so on. ``names``: parameter -> name."""
    return {
        f"{kind}/{names[parameter]}": torch.as_tensor(value)
        for parameter, state in optimizer.state.items()
        for kind, value in state.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str], tensors: Tensors) -> None:
    """The reverse of :func:`optimizer_tensors`."""
    by_name = {name: parameter for parameter, name in names.items()}
    for full, value in tensors.items():
        kind, _, name = full.partition("/")
        parameter = by_name[name]
        # torch keeps step counters on the CPU unless the optimiser is fused or capturable.
        group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
        on_device = kind != "step" or group.get("fused") or group.get("capturable")
        optimizer.state[parameter][kind] = value.to(parameter.device) if on_device else value


def folders(folder: Path) -> list[Path]:
    """The checkpoints in a run's folder of them, whole or not, oldest first."""
    found = [p for p in folder.glob("*") if p.is_dir() and p.name.isdigit()] if folder.is_dir() else []
    return sorted(found, key=lambda p: int(p.name))  # as numbers: names outgrow their nine digits


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _flushed_digest(file: Path) -> str:
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
    return _digest(file)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
