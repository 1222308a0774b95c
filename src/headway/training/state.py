"""What a checkpoint holds: network, averages, optimiser, a density that learns, counters. The rest is a function of ``nimg``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

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

    def __init__(self, recipe: Recipe, density: Density, device: torch.device) -> None:
        train, optim = recipe.train, recipe.optim
        half_lives = train.ema if isinstance(train.ema, tuple) else ()
        self.network = build_network(recipe).to(device).train()
        self.averages = [WeightAverage(self.network, half_life, train.ema_rampup) for half_life in half_lives]
        fused = {"fused": True} if device.type == "cuda" and optim.name != "muon" else {}
        self.optimizer = make_optimizer(
            optim.name,
            self.network.parameters(),
            lr=optim.lr,
            betas=optim.betas,
            eps=optim.eps,
            weight_decay=optim.weight_decay,
            **fused,
        )
        # Taken from the bare network: wrapping for several processes or compiling would put a prefix before every name.
        self._names: dict[torch.Tensor, str] = {parameter: name for name, parameter in self.network.named_parameters()}
        self.online = density if isinstance(density, Online) else None
        self.nimg = 0
        self.seconds = 0.0
        self.skipped = 0
        self.skipped_in_a_row = 0
        self.scaler: dict[str, Any] | None = None

    def save(self, folder: Path, keep: int) -> None:
        """Write a checkpoint; see :func:`headway.training.checkpoint.save`."""
        tensors = {"model": self.network.state_dict()}
        tensors |= {f"ema-{average.half_life}": average.network.state_dict() for average in self.averages}
        tensors["optimizer"] = checkpoint.optimizer_tensors(self.optimizer, self._names)
        if self.online is not None:
            tensors["density"] = self.online.state_dict()
        counters = {name: getattr(self, name) for name in _COUNTERS}
        about = {"ema": [average.half_life for average in self.averages], "torch": torch.__version__}
        checkpoint.save(folder, self.nimg, tensors, counters | about, keep)

    def restore(self, found: Path) -> None:
        """Become what a checkpoint holds."""
        restore_network(self.network, found, "model")
        for average in self.averages:
            restore_network(average.network, found, f"ema-{average.half_life}")
        checkpoint.restore_optimizer(self.optimizer, self._names, checkpoint.load_tensors(found, "optimizer"))
        if self.online is not None:
            self.online.load_state_dict(checkpoint.load_tensors(found, "density"))
        values = checkpoint.load_state(found)
        for name in _COUNTERS:
            setattr(self, name, values[name])


_COUNTERS = ("nimg", "seconds", "skipped", "skipped_in_a_row", "scaler")
