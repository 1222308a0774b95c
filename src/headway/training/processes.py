"""The processes of a run as one object: who I am, sums and gathers over all of them. One process is the simple case."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import gather_object
from torch import Tensor

from headway.denoiser import DenoiserLike
from headway.errors import HeadwayError
from headway.sampling import Samples, sample

logging.getLogger("torch.distributed").setLevel(logging.ERROR)


def automatic_precision() -> Literal["fp32", "bf16"]:
    """bf16 on GPUs that have it, else fp32: without bf16 instructions it is ten times slower."""
    return "bf16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "fp32"


class Processes:
    """A thin view of ``accelerate``; started by torchrun it spans its processes, else it is one.

    Args:
        precision: "fp32", "bf16" or "fp16" for the network's forward pass.
    """

    def __init__(self, precision: str = "fp32") -> None:
        gpu = torch.cuda.is_available()
        if precision == "fp16" and not gpu:
            raise HeadwayError("train.precision=fp16 needs a GPU; on a CPU use fp32.")
        # accelerate keeps one state a process; a second training with another precision needs a new one.
        AcceleratorState._reset_state()
        foreign = _has_group()
        self.accelerator = Accelerator(cpu=not gpu, mixed_precision={"fp32": "no"}.get(precision, precision))
        if _has_group() and not foreign:
            # Threads of a group that is open at the interpreter's end now and then abort the process (exit code -6).
            atexit.register(_close_group)
        self.device: torch.device = self.accelerator.device
        self.rank: int = self.accelerator.process_index
        self.count: int = self.accelerator.num_processes
        self.main: bool = self.accelerator.is_main_process

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, on each of them."""
        if self.count == 1:
            return tensor
        total: Tensor = self.accelerator.reduce(tensor.to(self.device), reduction="sum")
        return total

    def gather(self, rows: Tensor) -> Tensor:
        """The rows (n, d) of all processes, in the order of their ranks, on each of them; each may have another n."""
        if self.count == 1:
            return rows
        gather, pad = self.accelerator.gather, self.accelerator.pad_across_processes
        counts = gather(torch.tensor([len(rows)], device=self.device)).tolist()
        parts = gather(pad(rows.to(self.device))).split(max(counts))
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def any(self, flag: bool) -> bool:
        """Whether any process says so; all of them hear the same."""
        return flag if self.count == 1 else bool(self.sum(torch.tensor([float(flag)])).item() > 0)

    def wait(self) -> None:
        self.accelerator.wait_for_everyone()

    def sample(
        self, denoiser: DenoiserLike, seeds: Sequence[int], labels: Tensor | None = None, **options: Any
    ) -> Samples:
        """:func:`headway.sample` with the seeds dealt out over the processes; see :meth:`deal`."""
        return self.deal(lambda mine, theirs: sample(denoiser, mine, labels=theirs, **options), seeds, labels)

    def deal(
        self,
        draw: Callable[[Sequence[int], Tensor | None], Samples],
        seeds: Sequence[int],
        labels: Tensor | None = None,
    ) -> Samples:
        """``draw(seeds, labels)`` with the seeds dealt out over the processes; every process gets all images, in order.

        Any number of seeds will do, also fewer than there are processes.
        """
        if self.count == 1:
            return draw(seeds, labels)
        mine = list(range(self.rank, len(seeds), self.count))
        part = None
        if mine:
            chosen = None if labels is None else labels[mine]
            part = draw([seeds[i] for i in mine], chosen)
        parts = gather_object([(mine, None if part is None else replace(part, images=part.images.cpu()))])
        first = next(p for _, p in parts if p is not None)
        images = first.images.new_empty(len(seeds), *first.images.shape[1:])
        for where, p in parts:
            if p is not None:
                images[where] = p.images
        whole: Samples = replace(first, images=images, seeds=tuple(seeds), labels=labels)
        return whole


def _has_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def _close_group() -> None:
    if _has_group():
        dist.destroy_process_group()
