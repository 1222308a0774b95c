"""Small tensors on disk that can be made again: safetensors files that are whole and of the right recipe, or ignored."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from headway.data.cache import replacing


def load(path: Path, recipe: dict[str, Any]) -> dict[str, Tensor] | None:
    """The tensors stored under exactly this recipe, or None; a damaged file is reported and counts as absent."""
    if not path.exists():
        return None
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            facts = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except (safetensors.SafetensorError, OSError):
        facts, tensors = {}, {}
    if facts.get("content") != _content(tensors):
        warnings.warn(f"{path} is damaged and will be made again.", stacklevel=2)
        return None
    return tensors if facts["recipe"] == json.dumps(recipe, sort_keys=True) else None


def save(path: Path, recipe: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Store tensors so that the file appears whole or not at all."""
    tensors = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    facts = {"recipe": json.dumps(recipe, sort_keys=True), "content": _content(tensors)}
    with replacing(path) as file:
        file.write(safetensors.torch.save(tensors, metadata=facts))


def _content(tensors: dict[str, Tensor]) -> str:
    return hashlib.sha256(safetensors.torch.save(tensors)).hexdigest()
