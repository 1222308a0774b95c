"""Momentum decay for anyone's training loop.

Three lines: ``momentum = MomentumDecay(optimizer, total_steps=...)`` before the loop, ``momentum.step()`` after every
``optimizer.step()``, and its ``state_dict`` beside the optimiser's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.errors import HeadwayError
from headway.optim import laws
from headway.optim.groups import Form, Group, beta1_of, momentum_form, set_beta1
from headway.optim.owners import refuse_other_owners, unwrapped

_LAWS = ("mdlrc", "decay-only", "compensation-only")


class Scheduler(Protocol):
    """A torch learning-rate scheduler, or anything that steps and saves like one."""

    @property
    def step(self) -> Callable[..., Any]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class MomentumDecay:
    """Owns beta1 of an optimiser and a factor of its learning rate (MDLRC, Xu et al. 2024, arXiv 2404.07946).

    beta1 falls by the Demon rule from the optimiser's own b0 to 0, and the learning rate, the optimiser's or its scheduler's, is
    multiplied by D = (1 - b0) / (1 - beta1) = 1 - b0 tau; each parameter group by its own b0. beta2 is left alone. Adam, AdamW and
    their like (for-loop, foreach, fused, capturable; float or tensor lr and betas) and SGD: with dampening = momentum as Adam, with
    dampening 0 the momentum falls and the rate stays, because the heavy ball's own steps shrink with it.

    Everything is a function of the steps taken and of the rates the optimiser came with, so it needs no communication between
    processes. Build it before the optimiser's state is loaded; on resume load the optimiser's state first, then this one's.

    Args:
        optimizer: with a momentum in (0, 1) in every group. Wrappers that keep it as ``.optimizer`` (accelerate) are seen through.
        total_steps: at which beta1 has arrived; later it stays. warmup_steps: of them, those before the decay begins (the
            learning-rate warm-up itself is the scheduler's).
        beta_end, floor: see :func:`headway.optim.laws.decayed_beta1`.
        law: "mdlrc", or its controls "decay-only" and "compensation-only".
        lr_scheduler: the scheduler that drives the optimiser's rate. It is stepped by :meth:`step`, never by you.

    Raises:
        HeadwayError: an optimiser without one momentum of known form; another owner of the rate or of the momentum.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int,
        *,
        warmup_steps: int = 0,
        beta_end: float | None = None,
        floor: float = 0.0,
        law: str = "mdlrc",
        lr_scheduler: Scheduler | None = None,
    ) -> None:
        self.optimizer = unwrapped(optimizer)
        self.lr_scheduler = lr_scheduler
        self.total_steps, self.warmup_steps = total_steps, warmup_steps
        self.law, self.beta_end, self.floor = law, beta_end, floor
        self.steps = 0
        if not self._groups:
            raise HeadwayError("Momentum decay needs an optimizer with parameter groups, got none.")
        self._forms: list[Form] = [momentum_form(self.optimizer, group) for group in self._groups]
        _refuse_wrong_law(law, self._forms)
        refuse_other_owners(self.optimizer, lr_scheduler)
        self._b0 = [beta1_of(group) for group in self._groups]
        # Groups may share one tensor of torch's defaults; the factor is each group's own.
        for i, group in enumerate(self._groups):
            if isinstance(group["lr"], Tensor) and any(group["lr"] is other["lr"] for other in self._groups[:i]):
                group["lr"] = group["lr"].clone()
        self._base = self._read()
        self._write()
        for group, b0 in zip(self._groups, self._b0, strict=True):
            group["initial_beta1"] = b0

    def step(self, *scheduler_arguments: Any) -> None:
        """After ``optimizer.step()``: step the scheduler on the uncompensated rate, then set beta1 and rate of the next step.

        Raises:
            HeadwayError: the rate is no longer what this object wrote: somebody else drives it too.
        """
        self._refuse_change()
        if self.lr_scheduler is not None:
            self._restore()
            self.lr_scheduler.step(*scheduler_arguments)
            self._base = self._read()
        self.steps += 1
        self._write()

    def state_dict(self) -> dict[str, Any]:
        """Numbers, and the scheduler's own state where there is one."""
        return {
            "settings": self._settings,
            "steps": self.steps,
            "lr": [float(base) for base in self._base],
            "beta1": list(self._b0),
            "lr_scheduler": None if self.lr_scheduler is None else self.lr_scheduler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken, whatever rates the optimiser has now. Load the optimiser's state before.

        Raises:
            HeadwayError: it was taken with other settings or another number of parameter groups.
        """
        for name, value in self._settings.items():
            if state["settings"][name] != value:
                raise HeadwayError(
                    f"This momentum decay was saved with {name}={state['settings'][name]} and built with {name}={value}: "
                    "build it as it was saved."
                )
        if (state["lr_scheduler"] is None) != (self.lr_scheduler is None):
            raise HeadwayError("This momentum decay was saved with a scheduler or built with one, not both.")
        if len(state["lr"]) != len(self._groups):
            raise HeadwayError(
                f"Saved with {len(state['lr'])} parameter groups, the optimizer has {len(self._groups)}."
            )
        if self.lr_scheduler is not None:
            self.lr_scheduler.load_state_dict(state["lr_scheduler"])
        self.steps = state["steps"]
        self._b0 = list(state["beta1"])
        self._base = [
            torch.full_like(group["lr"], lr) if isinstance(group["lr"], Tensor) else lr
            for group, lr in zip(self._groups, state["lr"], strict=True)
        ]
        self._write()

    @property
    def _groups(self) -> list[Group]:
        return self.optimizer.param_groups

    @property
    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("law", "total_steps", "warmup_steps", "beta_end", "floor")}

    def _rates(self, b0: float) -> laws.Rates:
        tau = laws.after_warmup(self.steps, self.total_steps, self.warmup_steps)
        return laws.law(self.law, beta_end=self.beta_end, floor=self.floor)(tau, b0)

    def _read(self) -> list[float | Tensor]:
        return [lr.clone() if isinstance(lr := group["lr"], Tensor) else lr for group in self._groups]

    def _restore(self) -> None:
        for group, base in zip(self._groups, self._base, strict=True):
            _set_lr(group, base, 1.0)

    def _write(self) -> None:
        for group, base, b0, form in zip(self._groups, self._base, self._b0, self._forms, strict=True):
            rates = self._rates(b0)
            _set_lr(group, base, rates.factor if form == "ema" else 1.0)
            set_beta1(group, rates.beta1, form)
        self._written = [_stamp(group) for group in self._groups]

    def _refuse_change(self) -> None:
        if len(self._groups) != len(self._b0):
            raise HeadwayError(
                f"Momentum decay was built for {len(self._b0)} parameter groups, the optimizer has {len(self._groups)} now: "
                "add all groups before building it."
            )
        for i, (group, written) in enumerate(zip(self._groups, self._written, strict=True)):
            if _stamp(group) != written or ("initial_lr" in group and self.lr_scheduler is None):
                raise HeadwayError(
                    f"The learning rate or momentum of parameter group {i} was changed since the last MomentumDecay.step(), which "
                    "owns them: hand a scheduler over as lr_scheduler= and do not step it yourself; on resume load this object's "
                    "state after the optimizer's."
                )


def _refuse_wrong_law(law: str, forms: list[Form]) -> None:
    if law not in _LAWS:
        raise HeadwayError(
            f"Momentum decay has the laws {', '.join(_LAWS)}, got {law!r}; other laws of the rate are torch's schedulers: hand one "
            "over as lr_scheduler=."
        )
    if "heavy-ball" in forms and law != "mdlrc":
        raise HeadwayError(
            f"Law {law!r} has no meaning for SGD with dampening 0, whose rate needs no compensation: give SGD "
            "dampening = momentum, or use law 'mdlrc'."
        )


def _set_lr(group: Group, base: float | Tensor, factor: float) -> None:
    if isinstance(base, Tensor):
        group["lr"].copy_(base).mul_(factor)
    else:
        group["lr"] = base * factor


def _stamp(group: Group) -> tuple[object, ...]:
    """What changes when somebody writes a group's rate or momentum; for tensors their version, which costs no synchronisation."""
    values = (group["lr"], group["betas"][0] if "betas" in group else group["momentum"])
    return tuple((id(value), value._version) if isinstance(value, Tensor) else value for value in values)
