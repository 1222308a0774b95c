"""The loss by noise level: sums over sigma bands between two records."""

from __future__ import annotations

from typing import Any

import torch

from headway.training.objective import Losses
from headway.training.processes import Processes

SIGMA_BANDS = (0.1, 0.3, 1.0, 3.0, 10.0)


class Bands:
    """Sums since the last record, over all processes. They stay on the device, so that a step need not wait for them."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.edges = torch.tensor(SIGMA_BANDS, dtype=torch.float64, device=processes.device)
        self.sums = torch.zeros(len(SIGMA_BANDS) + 1, 3, dtype=torch.float64, device=processes.device)

    def add(self, losses: Losses) -> None:
        weighted, squared_error = losses.weighted.double(), losses.squared_error.double()
        rows = torch.stack([torch.ones_like(weighted), weighted, squared_error], 1)
        self.sums.index_add_(0, torch.bucketize(losses.sigma, self.edges), rows)

    def record(self) -> dict[str, Any]:
        """Mean weighted loss, mean squared error of x0, and both by band; the sums start anew."""
        sums = self.processes.sum(self.sums).cpu().clone()
        self.sums.zero_()
        count, weighted, squared = sums.sum(0).tolist()
        ends = (0.0, *SIGMA_BANDS, None)
        bands = [
            {"sigma": [ends[i], ends[i + 1]], "n": int(n), "loss": w / n if n else None, "mse": e / n if n else None}
            for i, (n, w, e) in enumerate(sums.tolist())
        ]
        return {"loss": weighted / count, "mse": squared / count, "bands": bands}
