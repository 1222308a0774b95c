"""What a checkpoint holds: network, averages, optimiser, a density or weight that learns, counters.

The rest is a function of ``nimg``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headway.noise import Density, Online
from headway.optim import WeightAverage, make_optimizer
from headway.recipes import Recipe
from headway.training import checkpoint
from headway.training.run import build_network, restore_network


class TrainingState:
    """The state of one run in memory, saved and restored whole.

    Attributes:
        nimg: images seen. seconds: spent training (sampling and saving left out). skipped: steps whose gradient was not finite.
        scaler: the loss scaler's state (fp16 only).
    """

    def __init__(self, recipe: Recipe, density: Density, uncertainty: nn.Module | None, device: torch.device) -> None:
        train, optim = recipe.train, recipe.optim
        half_lives = (
            [int(half_life) for half_life in train.ema] if isinstance(train.ema, tuple) else []
        )  # resolved: in images
        self.network = build_network(recipe).to(device).train()
        self.averages = [WeightAverage(self.network, half_life, train.ema_rampup) for half_life in half_lives]
        self.uncertainty = uncertainty
        # Names of the bare network: wrapping for several processes or compiling would put a prefix before every name.
        self._names: dict[torch.Tensor, str] = {parameter: name for name, parameter in self.network.named_parameters()}
        if uncertainty is not None:
            self._names |= {parameter: f"uncertainty.{name}" for name, parameter in uncertainty.named_parameters()}
        fused = {"fused": True} if device.type == "cuda" and optim.name in ("adamw", "sgd") else {}
        self.optimizer = make_optimizer(
            optim.name,
            self._names,
            lr=optim.lr,
            betas=optim.betas,
            eps=optim.eps,
            weight_decay=optim.weight_decay,
            **fused,
        )
        self.schedule_free = optim.name == "schedulefree"
        if self.schedule_free:
            self.optimizer.train()  # type: ignore[attr-defined]
        self.online = density if isinstance(density, Online) else None
        self.nimg = 0
        self.seconds = 0.0
        self.skipped = 0
        self.skipped_in_a_row = 0
        self.scaler: dict[str, Any] | None = None

    @contextmanager
    def sampling_weights(self) -> Iterator[nn.Module]:
        """The network with the weights to sample with. Schedule-Free steps with other ones, which come back to the bit."""
        if not self.schedule_free:
            yield self.network
            return
        steps_with = {name: parameter.detach().clone() for parameter, name in self._names.items()}
        self.optimizer.eval()  # type: ignore[attr-defined]
        try:
            yield self.network
        finally:
            self.optimizer.train()  # type: ignore[attr-defined]
            self._write(steps_with)

    @torch.no_grad()
    def _write(self, weights: checkpoint.Tensors) -> None:
        for parameter, name in self._names.items():
            parameter.copy_(weights[name])

    def save(self, folder: Path, keep: int) -> None:
        """Write a checkpoint; see :func:`headway.training.checkpoint.save`."""
        tensors = {f"ema-{average.half_life}": average.network.state_dict() for average in self.averages}
        tensors["optimizer"] = checkpoint.optimizer_tensors(self.optimizer, self._names)
        about: dict[str, Any] = {"ema": [average.half_life for average in self.averages], "torch": torch.__version__}
        if self.online is not None:
            tensors["density"] = self.online.state_dict()
        if self.uncertainty is not None:
            tensors["uncertainty"] = self.uncertainty.state_dict()
        if self.schedule_free:
            tensors["steps-with"] = {name: parameter.detach().clone() for parameter, name in self._names.items()}
            about["schedule_free"] = {key: self.optimizer.param_groups[0][key] for key in _SCHEDULE_FREE_CLOCK}
        counters = {name: getattr(self, name) for name in _COUNTERS}
        with self.sampling_weights() as network:
            tensors["model"] = network.state_dict()
            checkpoint.save(folder, self.nimg, tensors, counters | about, keep)

    def restore(self, found: Path) -> None:
        """Become what a checkpoint holds."""
        restore_network(self.network, found, "model")
        for average in self.averages:
            restore_network(average.network, found, f"ema-{average.half_life}")
        checkpoint.restore_optimizer(self.optimizer, self._names, checkpoint.load_tensors(found, "optimizer"))
        if self.online is not None:
            self.online.load_state_dict(checkpoint.load_tensors(found, "density"))
        if self.uncertainty is not None:
            self.uncertainty.load_state_dict(checkpoint.load_tensors(found, "uncertainty"))
        values = checkpoint.load_state(found)
        if self.schedule_free:
            self._write(checkpoint.load_tensors(found, "steps-with"))
            self.optimizer.param_groups[0].update(values["schedule_free"])
        for name in _COUNTERS:
            setattr(self, name, values[name])


# Schedule-Free keeps its own clock, in its parameter group.
_SCHEDULE_FREE_CLOCK = ("k", "weight_sum", "lr_max", "scheduled_lr")
_COUNTERS = ("nimg", "seconds", "skipped", "skipped_in_a_row", "scaler")
