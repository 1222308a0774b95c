"""Densities that learn from the losses they cause. Their state goes into the checkpoint, and all processes share it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from headway.errors import HeadwayError
from headway.noise.density import Density, check
from headway.noise.quantile import Steps, Tilted
from headway.noise.spaces import in_space


def _unchanged(sums: Tensor) -> Tensor:
    return sums


class Online(Tilted, ABC):
    """A tilt in steps over equal quantiles of the base, driven by what is observed.

    In each step of training every process calls :meth:`observe` for each of its micro-batches, then :meth:`reduce` once. The
    density depends on the sums over all processes alone, so it is the same on all of them.
    """

    def __init__(self, base: Density, bins: int) -> None:
        self.bins = bins
        self._inner = torch.arange(1, bins, dtype=torch.float64) / bins
        self._sums = torch.zeros(bins, 3, dtype=torch.float64)
        super().__init__(base, self._steps([1.0] * bins))

    def observe(self, sigma: Tensor, loss: Tensor, squared_error: Tensor) -> None:
        """Add a micro-batch: noise level, weighted loss and squared error of x0 (mean over pixels) per image, all (n,).

        Images whose loss is not finite are left out.
        """
        sigma, loss, squared_error = (x.detach().double().flatten() for x in (sigma, loss, squared_error))
        rows = torch.stack([torch.ones_like(loss), loss, squared_error], 1)
        rows = torch.where(rows.isfinite().all(1, keepdim=True), rows, 0.0)
        u = self.base.cdf(sigma)
        self._sums = self._sums.to(u.device)
        self._sums.index_add_(0, torch.bucketize(u, self._inner.to(u.device), right=True), rows)

    def reduce(self, total: Callable[[Tensor], Tensor] = _unchanged) -> None:
        """End of a step: take what was observed in it into account.

        Args:
            total: sums a float64 tensor over all processes; the default is for one process.
        """
        sums = total(self._sums).cpu().clone()
        self._sums.zero_()
        if sums[:, 0].sum() > 0:
            self._learn(sums)

    @abstractmethod
    def _learn(self, sums: Tensor) -> None:
        """Update state and law from one step's sums (bins, 3): count, loss, squared error."""

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """What to save, between two steps: float64 tensors."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a saved state of a density with the same options."""

    def _steps(self, masses: list[float]) -> Steps:
        return Steps(self._inner.tolist(), masses)

    def _saved(self, state: dict[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
        if set(state) != {name} or state[name].shape != shape:
            found = {key: tuple(value.shape) for key, value in state.items()}
            raise HeadwayError(
                f"The saved state of the noise density holds {found or 'nothing'}, expected {{'{name}': {shape}}}: "
                "it is another density's, or has other options."
            )
        return state[name].double().cpu().clone()


class TaskDifficulty(Online):
    """Task-difficulty curriculum: noisiest cluster first, the next when the loss stalls (Kim et al. 2024, arXiv 2403.10348).

    The clusters are equal quantiles of the base, so equal intervals of time for VP. In stage n the n noisiest are drawn, as the
    base would draw them; a stage ends when ``patience`` steps in a row have brought no new lowest loss.

    Args:
        base: the framework's density. clusters: their number, at least 1. patience: in steps, at least 1.
        space: whose quantiles, as for CLTS.
    """

    def __init__(
        self, base: Density, *, clusters: int = 20, patience: int = 200, space: str | Density = "framework"
    ) -> None:
        _check_whole("clusters", clusters, "[1, 1000]")
        _check_whole("patience", patience, "[1, inf)")
        super().__init__(in_space(base, space), clusters)
        self.patience = patience
        self.stage = 1
        self._best, self._waited = math.inf, 0
        self._enter(1)

    def _learn(self, sums: Tensor) -> None:
        count, loss, _ = sums.sum(0).tolist()
        if loss / count < self._best:
            self._best, self._waited = loss / count, 0
            return
        self._waited += 1
        if self._waited >= self.patience and self.stage < self.bins:
            self._enter(self.stage + 1)

    def _enter(self, stage: int) -> None:
        self.stage, self._best, self._waited = stage, math.inf, 0
        self.law = self._steps([0.0] * (self.bins - stage) + [1.0] * stage)

    def state_dict(self) -> dict[str, Tensor]:
        return {"curriculum": torch.tensor([self.bins, self.stage, self._best, self._waited], dtype=torch.float64)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        clusters, stage, best, waited = self._saved(state, "curriculum", (4,)).tolist()
        if clusters != self.bins:
            raise HeadwayError(
                f"The saved curriculum has {clusters:g} clusters, this one {self.bins}: give the same options."
            )
        self._enter(int(stage))
        self._best, self._waited = best, int(waited)


class EntropyRate(Online):
    """Adaptive density: draws follow the information measured at each noise level. Ours, after InfoNoise (arXiv 2602.18647).

    By I-MMSE the conditional entropy of the image rises with sigma at the rate mse(sigma) / sigma^3. Draws times loss weight are
    made to follow it: p(sigma) ~ mse(sigma) / sigma^3 g(sigma) / w(sigma), with the gate g = sigma^3 / (sigma^3 + gate^3)
    against the low end, where the error is the network's and not the data's. mse is an exponential average of the squared
    error over equal quantiles of the base, and a share of the draws stays with the base, so that no noise level starves:

        pi = (1 - a) + a p / base,   a = (1 - floor) n / memory,   n the images in the average (it grows up to ``memory``)

    Args:
        base: the framework's density. loss_weight: w(sigma) on |D - x0|^2; None for 1. bins: quantile bins.
        floor: the base's lasting share, in (0, 1]. memory: of the average, in images. gate: in units of sigma; 0 for none.
    """

    def __init__(
        self,
        base: Density,
        *,
        loss_weight: Callable[[Tensor], Tensor] | None = None,
        bins: int = 32,
        floor: float = 0.1,
        memory: float = 20_000.0,
        gate: float = 0.15,
    ) -> None:
        _check_whole("bins", bins, "[1, 1000]")
        check("floor", floor, "(0, 1]")
        check("memory", memory, "(0, inf)")
        check("gate", gate, "[0, inf)")
        super().__init__(base, bins)
        self.floor, self.memory = floor, memory
        # The integral of g / (sigma^3 w) over each bin, by midpoints in the quantile.
        points = 64
        sigma = base.icdf((torch.arange(bins * points, dtype=torch.float64) + 0.5) / (bins * points))
        rate = 1 / (sigma**3 + gate**3)
        if loss_weight is not None:
            rate = rate / loss_weight(sigma)
        self._rate = (rate / base.log_prob(sigma).exp()).reshape(bins, points).mean(1)
        self._average = torch.zeros(bins, 2, dtype=torch.float64)

    def _learn(self, sums: Tensor) -> None:
        keep = math.exp(-float(sums[:, 0].sum()) / self.memory)
        self._adapt(keep * self._average + sums[:, ::2])

    def _adapt(self, average: Tensor) -> None:
        self._average = average
        count, error = average.unbind(1)
        information = self._rate * error / count
        if not information.sum() > 0:
            return  # until every bin has been seen: the base
        share = (1 - self.floor) * min(1.0, float(count.sum()) / self.memory)
        self.law = self._steps(((1 - share) / self.bins + share * information / information.sum()).tolist())

    def state_dict(self) -> dict[str, Tensor]:
        return {"average": self._average.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.law = self._steps([1.0] * self.bins)
        self._adapt(self._saved(state, "average", (self.bins, 2)))


def _check_whole(name: str, value: object, interval: str) -> None:
    check(name, value, interval)
    if not isinstance(value, int):
        raise HeadwayError(f"{name} must be a whole number, got {value!r}.")
