"""What protects a run from outside: signals noted instead of obeyed at once, and a lock on the run folder."""

from __future__ import annotations

import fcntl
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.errors import HeadwayError


class Signals:
    """Notes SIGINT and SIGTERM, so that a step ends and a checkpoint is written; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.received = False

    def __enter__(self) -> Signals:
        try:
            self._old = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread: signals are its owner's business
            self._old = {}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = True


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder: two trainings writing into one would spoil both. The system lets go when the process ends."""
    with (folder / ".lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise HeadwayError(
                f"Another process is training into {folder}: wait for it, or choose another --out."
            ) from None
        yield
