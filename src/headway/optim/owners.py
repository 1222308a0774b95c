"""Who owns the learning rate and beta1: one law, one scheduler or the optimiser itself, and never two of them."""

from __future__ import annotations

from torch.optim import Optimizer

from headway.errors import HeadwayError, unknown
from headway.optim.laws import LAWS

# What a law drives (one that is not named: the rate alone); what an optimiser keeps to itself, and why.
_DRIVES = {
    "constant": frozenset[str](),
    "mdlrc": frozenset({"learning rate", "beta1"}),
    "decay-only": frozenset({"beta1"}),
}
_KEEPS = {
    "adamw": (frozenset[str](), ""),
    "sgd": (frozenset[str](), ""),
    "muon": (frozenset({"beta1"}), "its momentum is orthogonalised, so it does not scale the step"),
    "schedulefree": (frozenset({"learning rate", "beta1"}), "it replaces schedules by an average that beta1 places"),
}


def check_owner(optimizer: str, law: str) -> None:
    """Refuse a law that would drive what the optimiser owns.

    Args:
        optimizer: a name of :func:`headway.optim.make_optimizer`. law: a name of :data:`headway.optim.LAWS`.

    Raises:
        HeadwayError: two owners, naming both; an unknown name.
    """
    if optimizer not in _KEEPS:
        raise unknown("optimizer", optimizer, _KEEPS)
    if law not in LAWS:
        raise unknown("law", law, LAWS)
    keeps, reason = _KEEPS[optimizer]
    both = sorted(_DRIVES.get(law, frozenset({"learning rate"})) & keeps, reverse=True)
    if both:
        raise HeadwayError(
            f"Two owners of {' and '.join(both)}: optimizer {optimizer!r} ({reason}) and law {law!r}. "
            "Use law 'constant', or optimizer 'adamw'."
        )


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """The optimiser inside wrappers that keep it as ``.optimizer``, such as accelerate's."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


def refuse_other_owners(optimizer: Optimizer, lr_scheduler: object | None) -> None:
    """Refuse an optimiser whose rate or momentum already has an owner other than the scheduler handed over."""
    name = type(optimizer).__name__
    for group in optimizer.param_groups:
        if "initial_beta1" in group:
            raise HeadwayError(
                f"This {name} already has a MomentumDecay, or its state came from a run that had: build one, and build it "
                "before optimizer.load_state_dict."
            )
        if "initial_lr" in group and lr_scheduler is None:
            raise HeadwayError(
                f"The learning rate of this {name} already has an owner, a torch scheduler ('initial_lr' is in its groups), and "
                "MomentumDecay multiplies it: hand the scheduler over as lr_scheduler=, and do not step it yourself."
            )
        if "max_momentum" in group:
            raise HeadwayError(
                f"The momentum of this {name} already has an owner, the scheduler that cycles it, and MomentumDecay decays it: "
                "give the scheduler cycle_momentum=False."
            )
    driven = getattr(lr_scheduler, "optimizer", None)
    if isinstance(driven, Optimizer) and unwrapped(driven) is not optimizer:
        raise HeadwayError(f"The lr_scheduler handed over drives another optimizer than this {name}.")
