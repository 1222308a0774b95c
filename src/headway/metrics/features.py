"""What a feature extractor is, how the metric made from it is named, and how any torch module becomes one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import safetensors.torch
import torch
from torch import Tensor, nn

from headway.errors import HeadwayError


class Extractor(Protocol):
    """Turns images into the feature vectors whose distribution is compared."""

    @property
    def name(self) -> str:
        """Goes into the metric's name, so it says all that changes the number: network, weights if special, resize."""

    @property
    def identity(self) -> str:
        """The name and a digest of the weights: features of different identities must not be compared."""

    @property
    def dim(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def __call__(self, images: Tensor) -> Tensor:
        """Images (n, C, H, W) in [-1, 1] on any device to features float32 (n, dim) on `device`."""


class ModuleExtractor:
    """A frozen torch module as an extractor: evaluation mode, no gradients, float32 without TF32 or autocast.

    The module takes images float32 (n, C, H, W) in [-1, 1] and returns one tensor: (n, d, h, w) is averaged over
    space, anything else is flattened to (n, d). `shape` is (C, H, W); a blank image of it finds out `dim`.
    """

    def __init__(
        self, module: nn.Module, name: str, shape: tuple[int, int, int], device: torch.device | str = "cpu"
    ) -> None:
        self.module = module.to(device).eval().requires_grad_(False)
        self.name = name
        self.identity = f"{name}-{weights_digest(module)[:12]}"
        self.device = torch.device(device)
        self.dim = self(torch.zeros(1, *shape)).shape[1]

    def __call__(self, images: Tensor) -> Tensor:
        with torch.no_grad(), full_float32(self.device):
            features = self.module(images.to(self.device, torch.float32))
        if not isinstance(features, Tensor) or len(features) != len(images):
            got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise HeadwayError(f"Extractor {self.name!r} must return a tensor with a row an image, but returned {got}.")
        return (features.mean(dim=(2, 3)) if features.ndim == 4 else features.flatten(1)).float()


@contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """float32 as it says: no autocast, no TF32, so that a number does not depend on how fast someone trains."""
    knobs = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)  # type: ignore[attr-defined]
    before = [knob.fp32_precision for knob in knobs]
    try:
        for knob in knobs:
            knob.fp32_precision = "ieee"
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        for knob, precision in zip(knobs, before, strict=True):
            knob.fp32_precision = precision


def weights_digest(module: nn.Module) -> str:
    """SHA-256, in hex, of names and values of all parameters and buffers."""
    state = {key: value.detach().cpu().clone().contiguous() for key, value in module.state_dict().items()}
    return hashlib.sha256(safetensors.torch.save(state)).hexdigest()


def metric_name(extractor: str, n: int) -> str:
    """The one name of a Fréchet distance: extractor (with its resize) and sample count, as in "fd-classifier@5k".

    Distances of different names must not be compared. The name "fid" is kept for the published network and weights.
    """
    count = f"{n // 1000}k" if n and n % 1000 == 0 else str(n)
    return f"{extractor if extractor == 'fid' else f'fd-{extractor}'}@{count}"
