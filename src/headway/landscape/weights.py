"""A network as a point: its weights as one vector, written and put back exactly.

The coordinates are the parameters that require a gradient, in the order of ``module.parameters()``, tied ones once: what
training moves is where the landscape is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headway.errors import HeadwayError

Loss = Callable[[Any], Tensor]
"""A module in, a scalar out. It must be deterministic: batch, noise level and noise are drawn once and kept, and another network
that it uses is in evaluation mode, because only the module's own buffers are put back between evaluations."""


def parameters(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that make up the vector: those that require a gradient."""
    found = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not found:
        raise HeadwayError(
            f"No parameter of this {type(module).__name__} requires a gradient, so there is nothing to move: call "
            "requires_grad_(True) on those that training moves (weight averages are kept without)."
        )
    return found


def flat(module: nn.Module, dtype: torch.dtype = torch.float64) -> Tensor:
    """The weights as a new vector (n,) on their device. float64 holds those of any smaller type exactly."""
    return torch.cat([weight.detach().reshape(-1).to(dtype) for weight in parameters(module)])


def shaped(weights: Sequence[Tensor], vector: Tensor) -> list[Tensor]:
    """The vector (n,) cut into views of the weights' shapes."""
    sizes = [weight.numel() for weight in weights]
    if vector.shape != (sum(sizes),):
        raise HeadwayError(
            f"These weights are a vector of shape ({sum(sizes)},), got {tuple(vector.shape)}: take it from a network of the "
            "same shape with the same parameters requiring a gradient."
        )
    return [piece.view(weight.shape) for piece, weight in zip(torch.split(vector, sizes), weights, strict=True)]


@contextmanager
def written(module: nn.Module, vector: Tensor) -> Iterator[None]:
    """Inside, the weights are the vector (n,), rounded to their types; afterwards all is as it was, bit for bit.

    That holds after an error and after Ctrl-C, and for what the block itself changes: weights, buffers (the statistics of
    BatchNorm), training or evaluation mode, requires_grad. Writing ``flat(module)`` changes no bit of the weights.
    """
    weights = parameters(module)
    pieces = shaped(weights, vector)
    saved = [weight.detach().clone() for weight in weights]
    with guarded(module):
        try:
            _write(weights, pieces)
            yield
        finally:
            _to_the_end(lambda: _write(weights, saved))


@contextmanager
def guarded(module: nn.Module) -> Iterator[None]:
    """Whatever the block does to buffers, modes and requires_grad is undone; the weights themselves are its own affair.

    The block works on copies of the buffers and the originals are put back, so a graph that it leaves behind stays valid.
    """
    parts = list(module.modules())
    modes = [part.training for part in parts]
    buffers = [(part, name, b) for part in parts for name, b in part._buffers.items() if b is not None]
    flags = [(parameter, parameter.requires_grad) for parameter in module.parameters()]

    def restore() -> None:
        for part, name, buffer in buffers:
            part._buffers[name] = buffer
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode
        for parameter, flag in flags:
            parameter.requires_grad_(flag)

    try:
        # A buffer held in two places stays one.
        copies = {id(buffer): buffer.detach().clone() for _, _, buffer in buffers}
        for part, name, buffer in buffers:
            part._buffers[name] = copies[id(buffer)]
        yield
    finally:
        _to_the_end(restore)


def _write(weights: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for weight, value in zip(weights, values, strict=True):
            weight.copy_(value)


def _to_the_end(restore: Callable[[], None]) -> None:
    """Restore all of it even if Ctrl-C arrives in the middle, and pass that on afterwards."""
    pressed: KeyboardInterrupt | None = None
    while True:
        try:
            restore()
            break
        except KeyboardInterrupt as interrupt:
            pressed = interrupt
    if pressed is not None:
        raise pressed
