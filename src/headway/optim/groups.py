"""Learning rate and momentum in torch's parameter groups: what form an optimiser's momentum has, and how both are written.

Tensors (compiled and capturable optimisers) are written in place, so that a captured graph sees the new value and a compiled
step is not compiled again.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor
from torch.optim import Optimizer

from headway.errors import HeadwayError

Group = dict[str, Any]
# ema: m = b m + (1 - b) g. heavy-ball: m = b m + g, whose steps shrink by themselves when b falls.
Form = Literal["ema", "heavy-ball"]

# By a part of the class's name: optimisers with a momentum that is not one number of either form, and why.
_REFUSED = {
    "Lion": "it steps by a sign, so its betas do not scale the step",
    "Muon": "its momentum is orthogonalised, so it does not scale the step",
    "ScheduleFree": "its beta1 places the weights between two sequences, and it owns the learning rate",
    "NAdam": "it decays its momentum by a schedule of its own",
    "Prodigy": "it owns the learning rate",
    "DAdapt": "it owns the learning rate",
}


def momentum_form(optimizer: Optimizer, group: Group) -> Form:
    """The form of a group's momentum.

    Raises:
        HeadwayError: naming the optimiser, when it has no momentum, more than one, or one of another meaning.
    """
    name = type(optimizer).__name__
    for part, reason in _REFUSED.items():
        if part.lower() in name.lower():
            raise HeadwayError(f"Momentum decay cannot drive {name}: {reason}. Use Adam, AdamW or SGD.")
    if "betas" in group:
        if len(group["betas"]) != 2:
            raise HeadwayError(f"Momentum decay cannot drive {name}: it has {len(group['betas'])} betas, not two.")
        form: Form = "ema"
    elif "momentum" in group and "dampening" in group:
        if group.get("nesterov"):
            raise HeadwayError(
                f"Momentum decay cannot drive {name} with nesterov=True: it weighs the newest gradient twice."
            )
        if group["dampening"] not in (0, group["momentum"]):
            raise HeadwayError(
                f"Momentum decay cannot drive {name} with dampening={group['dampening']}: give 0 (heavy ball) or "
                f"the momentum, {group['momentum']} (an average, as in Adam)."
            )
        form = "ema" if group["dampening"] else "heavy-ball"
    else:
        raise HeadwayError(f"Momentum decay cannot drive {name}: it has neither betas nor SGD's momentum.")
    if not 0 < beta1_of(group) < 1:
        raise HeadwayError(f"Momentum decay needs a momentum between 0 and 1; {name} has {beta1_of(group)}.")
    return form


def beta1_of(group: Group) -> float:
    """The momentum of a group: betas[0], or SGD's and Muon's momentum."""
    return float(group["betas"][0] if "betas" in group else group["momentum"])


def set_beta1(group: Group, value: float, form: Form = "ema") -> None:
    """Write a group's momentum, and with it SGD's dampening where that is what makes an average of it."""
    if "betas" not in group:
        group["momentum"] = value
        if form == "ema":
            group["dampening"] = value
    elif isinstance(group["betas"][0], Tensor):
        group["betas"][0].fill_(value)
    else:
        group["betas"] = (value, group["betas"][1])


def set_rates(optimizer: Optimizer, lr: float, beta1: float) -> None:
    """Write one learning rate and one beta1 into all groups of an optimiser of :func:`make_optimizer`. Muon's momentum stays."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr
        if "betas" in group or "dampening" in group:
            set_beta1(group, beta1)
