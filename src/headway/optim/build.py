"""Optimisers by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from headway.errors import HeadwayError, refuse_unknown_options, unknown
from headway.optim.muon import MuonAdamW


def _schedule_free() -> Callable[..., Optimizer]:
    try:
        optimizer: Callable[..., Optimizer] = import_module("schedulefree").AdamWScheduleFree
    except ImportError:
        raise HeadwayError(
            "Optimizer schedulefree needs the package of that name: pip install 'headway[schedulefree]'."
        ) from None
    return optimizer


OPTIMIZERS: dict[str, Callable[[], Callable[..., Optimizer]]] = {
    "adamw": lambda: AdamW,
    "sgd": lambda: SGD,
    "muon": lambda: MuonAdamW,
    "schedulefree": _schedule_free,
}


def make_optimizer(
    name: str,
    parameters: Iterable[Tensor],
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    **options: Any,
) -> Optimizer:
    """An optimiser of one learning rate.

    Args:
        name: "adamw", "sgd" (an average of gradients, dampening = momentum = betas[0], so that laws of beta1 mean the same as in
            Adam; betas[1] and eps are not used), "muon" (see :class:`MuonAdamW`) or "schedulefree" (AdamWScheduleFree of the
            package schedulefree: call its ``train()`` and ``eval()`` around training and sampling).
        parameters: tensors. options: further arguments of the optimiser's own, such as fused.

    Raises:
        HeadwayError: an unknown name or option, naming the nearest right one; a package that is not installed.
    """
    if name not in OPTIMIZERS:
        raise unknown("optimizer", name, OPTIMIZERS)
    factory = OPTIMIZERS[name]()
    own = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
    if name == "sgd":
        own = {"lr": lr, "momentum": betas[0], "dampening": betas[0], "weight_decay": weight_decay}
    known = [option for option in inspect.signature(factory).parameters if option not in own and option != "params"]
    refuse_unknown_options(f"optimizer {name!r}", options, known)
    return factory(parameters, **own, **options)
