"""Muon for matrices and AdamW for the rest, as one optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import AdamW, Muon, Optimizer

from headway.errors import HeadwayError


class MuonAdamW(Optimizer):
    """torch's Muon (Jordan 2024; Liu et al. 2025, arXiv 2502.16982) on parameters of two dimensions, torch's AdamW on all others.

    Muon's steps are scaled to AdamW's size (torch's "match_rms_adamw"), so both use one learning rate and one weight decay.
    Convolution kernels have four dimensions and go to AdamW: a transformer is mostly Muon's, a U-Net mostly AdamW's.

    Args:
        parameters: of which at least one is a matrix. lr, weight_decay: of both. betas, eps, fused: AdamW's.
        momentum, nesterov, ns_steps: Muon's.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        fused: bool | None = None,
    ) -> None:
        parameters = list(parameters)
        matrices = [p for p in parameters if p.ndim == 2]
        others = [p for p in parameters if p.ndim != 2]
        if not matrices:
            raise HeadwayError("Muon is for matrices and this network has none: use optimizer adamw.")
        self._parts: list[Optimizer] = [
            Muon(
                matrices,
                lr=lr,
                weight_decay=weight_decay,
                momentum=momentum,
                nesterov=nesterov,
                ns_steps=ns_steps,
                adjust_lr_fn="match_rms_adamw",
            )
        ]
        if others:
            self._parts.append(AdamW(others, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=fused))
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Groups and state are this optimiser's; each part works on its own group and its parameters' state."""
        for part, group in zip(self._parts, self.param_groups, strict=True):
            part.param_groups = [group]
            part.state = self.state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step of both parts."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            part.step()
        return loss
