"""Momentum decay as a callback of Lightning's Trainer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from headway.errors import HeadwayError
from headway.optim import MomentumDecay
from headway.optim.momentum_decay import Scheduler

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    raise HeadwayError(
        "The Lightning callback needs the package lightning: pip install 'headway[lightning]'."
    ) from None


class MomentumDecayCallback(Callback):
    """Drives the optimiser of ``configure_optimizers`` by :class:`headway.MomentumDecay` (MDLRC), one step per optimiser step.

    Gradient accumulation, checkpoints, resuming and several processes need nothing from you.

    Args:
        total_steps: optimiser steps in which beta1 arrives; by default the trainer's ``estimated_stepping_batches``.
        lr_scheduler: makes the learning rate's scheduler from the optimiser, to be stepped once per optimiser step. Give it here
            and not in ``configure_optimizers``, so that it drives the rate before the decay multiplies it.
        options: warmup_steps, beta_end, floor and law of :class:`headway.MomentumDecay`.

    Raises:
        HeadwayError: when fitting starts: manual optimisation; another owner of the rate or of beta1; no end of training to count
            towards; a checkpoint that was saved without this callback or for another total.
    """

    def __init__(
        self,
        total_steps: int | None = None,
        *,
        lr_scheduler: Callable[[Optimizer], Scheduler] | None = None,
        **options: Any,
    ) -> None:
        self.total_steps, self.lr_scheduler, self.options = total_steps, lr_scheduler, options
        self.momentum: MomentumDecay | None = None
        self._restored: dict[str, Any] | None = None

    # Lightning's order: setup, this object's load_state_dict, the optimiser is made, on_fit_start, the optimiser's state is
    # loaded, on_train_start.

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._restored = None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _refuse_other_owners(trainer, pl_module)
        optimizer = trainer.optimizers[0]
        scheduler = None if self.lr_scheduler is None else self.lr_scheduler(optimizer)
        total = _total_steps(trainer) if self.total_steps is None else self.total_steps
        self.momentum = MomentumDecay(optimizer, total, lr_scheduler=scheduler, **self.options)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._restored is not None:
            self._momentum.load_state_dict(self._restored)
        elif trainer.global_step:
            raise HeadwayError(
                f"Training goes on at step {trainer.global_step} without the state of its momentum decay: resume from a checkpoint "
                "that was saved with MomentumDecayCallback among the trainer's callbacks, by Trainer.fit(ckpt_path=...)."
            )
        self._follow(trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self._follow(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.momentum is None else self.momentum.state_dict()

    @property
    def _momentum(self) -> MomentumDecay:
        assert self.momentum is not None, "Lightning calls on_fit_start first"
        return self.momentum

    def _follow(self, trainer: Trainer) -> None:
        """One step for each optimiser step; also for one that a checkpoint holds but this object's state does not yet."""
        while self._momentum.steps < trainer.global_step:
            self._momentum.step()


def _refuse_other_owners(trainer: Trainer, pl_module: LightningModule) -> None:
    name = type(pl_module).__name__
    if not pl_module.automatic_optimization:
        raise HeadwayError(
            f"{name} optimises by hand, and the callback cannot see its steps: build a headway.MomentumDecay in it "
            "and call step() after each step of its optimizer."
        )
    if trainer.lr_scheduler_configs:
        scheduler = type(trainer.lr_scheduler_configs[0].scheduler).__name__
        raise HeadwayError(
            f"Two owners of the learning rate: the {scheduler} of {name}.configure_optimizers, which Lightning steps, and "
            "MomentumDecayCallback, which multiplies it. Hand the scheduler over, and return the optimizer alone: "
            f"MomentumDecayCallback(lr_scheduler=lambda optimizer: {scheduler}(optimizer, ...))."
        )


def _total_steps(trainer: Trainer) -> int:
    """The trainer's budget in optimiser steps, gradient accumulation counted."""
    total = trainer.estimated_stepping_batches
    if not 0 < total < math.inf:  # -1 is Lightning's answer for an iterable data set without max_steps
        raise HeadwayError(
            "The momentum decay needs to know when training ends: give the Trainer max_steps, or MomentumDecayCallback total_steps."
        )
    return int(total)
