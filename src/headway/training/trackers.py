"""Where a run's progress is shown: a bar on the terminal, lines in a log, TensorBoard."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from headway.errors import HeadwayError
from headway.training.run import Run

_SCALARS = {"loss", "mse", "lr", "beta1", "grad_norm", "images_per_second", "loss_generator", "real", "fake"}


class Tracker:
    """Hears every record. This one says nothing (ranks other than the first)."""

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def tick(self, record: dict[str, Any]) -> None:
        return None


def tracker(run: Run, budget: int, nimg: int, progress: bool, tensorboard: bool) -> Tracker:
    """The trackers a run asks for, as one; ``nimg`` of ``budget`` images have been seen."""
    trackers: list[Tracker] = []
    if progress:
        console = Console(stderr=True)
        trackers.append(Bar(console, run.folder.name, budget, nimg) if console.is_terminal else Lines(console, budget))
    if tensorboard:
        trackers.append(TensorBoard(run))
    return Several(trackers)


class Several(Tracker):
    def __init__(self, trackers: list[Tracker]) -> None:
        self.trackers = trackers
        self.stack = ExitStack()

    def __enter__(self) -> Tracker:
        for one in self.trackers:
            self.stack.enter_context(one)
        return self

    def __exit__(self, *exception: object) -> None:
        self.stack.close()

    def tick(self, record: dict[str, Any]) -> None:
        for one in self.trackers:
            one.tick(record)


class Bar(Tracker):
    """Images seen, loss, images a second, time left."""

    def __init__(self, console: Console, name: str, total: int, nimg: int) -> None:
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("images  loss {task.fields[loss]}  {task.fields[speed]} img/s"),
            TimeRemainingColumn(),
            console=console,
        )
        self.task = self.bar.add_task(name, total=total, completed=nimg, loss="-", speed="-")

    def __enter__(self) -> Tracker:
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()

    def tick(self, record: dict[str, Any]) -> None:
        speed = f"{record['images_per_second']:,.0f}"
        self.bar.update(self.task, completed=record["nimg"], loss=f"{record['loss']:.4f}", speed=speed)


class Lines(Tracker):
    """A line each tenth of the budget, for logs."""

    def __init__(self, console: Console, total: int) -> None:
        self.console = console
        self.total = total
        self.shown = -1

    def tick(self, record: dict[str, Any]) -> None:
        tenth = record["nimg"] * 10 // self.total
        if tenth > self.shown:
            self.shown = tenth
            left = (self.total - record["nimg"]) / record["images_per_second"]
            self.console.print(
                f"{record['nimg']:,} of {self.total:,} images  loss {record['loss']:.4f}  "
                f"{record['images_per_second']:,.0f} img/s  {_time(left)} left",
                highlight=False,
            )


class TensorBoard(Tracker):
    """Scalars by images seen, in the run folder's tensorboard/."""

    def __init__(self, run: Run) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise HeadwayError(
                "log.tensorboard needs the tensorboard package: pip install 'headway[tensorboard]'."
            ) from None
        self.writer: Any = SummaryWriter(str(run.folder / "tensorboard"))

    def __exit__(self, *exception: object) -> None:
        self.writer.close()

    def tick(self, record: dict[str, Any]) -> None:
        for name in _SCALARS & record.keys():
            if math.isfinite(record[name]):
                self.writer.add_scalar(name, record[name], record["nimg"])
        for band in record.get("bands", ()):
            if band["loss"] is not None:
                self.writer.add_scalar(f"loss by sigma/from {band['sigma'][0]:g}", band["loss"], record["nimg"])


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
