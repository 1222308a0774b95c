"""What the experiment on loss landscapes writes down while it runs, so that it can be stopped at any point and go on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.experiments.landscape import LandscapeExperiment
from headway.training import Run
from headway.training.run import write_text


class Kept(MutableMapping[Any, Any]):
    """A mapping that writes itself down, one JSON line an entry; keys are numbers, names, or tuples of them."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        self._entries: dict[Any, Any] = {}
        if file.is_file():
            lines = file.read_text(encoding="utf-8").split("\n")
            for text in lines[:-1]:  # the last was cut short, or is empty
                key, value = json.loads(text)
                self._entries[tuple(key) if isinstance(key, list) else key] = value
            file.write_text("".join(f"{text}\n" for text in lines[:-1]), encoding="utf-8")

    def __setitem__(self, key: Any, value: Any) -> None:
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps([key, value]) + "\n")
        self._entries[key] = value

    def __getitem__(self, key: Any) -> Any:
        return self._entries[key]

    def __delitem__(self, key: Any) -> None:
        raise HeadwayError("Points are kept; delete their file to have them measured again.")

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def experiment_run(experiment: LandscapeExperiment, out: Path, name: str) -> Run:
    return Run(experiment.models[name].run or out / "models" / name)


def points_folder(out: Path, name: str) -> Path:
    """Where the points of a model are kept while it is looked at."""
    return out / "points" / name


def asked(experiment: LandscapeExperiment, piece: str, partner: str | None, run: Run) -> dict[str, Any]:
    """What decides a piece, of the things that may change when an experiment goes on."""
    settings = {
        "lines": experiment.lines.model_dump() | {"partner": partner},
        "planes": experiment.planes.model_dump(),
        "curvature": {},
        "fidelity": {"samples": experiment.samples},
    }
    return settings[piece] | {"nimg": int(run.newest_checkpoint().name)}


def found_piece(out: Path, name: str, piece: str, wanted: dict[str, Any]) -> dict[str, Any] | None:
    """What a finished piece found, or None where it is not there or was asked otherwise."""
    file = out / "pieces" / f"{name} {piece}.json"
    if not file.is_file():
        return None
    kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return kept["found"] if kept["asked"] == wanted else None


def keep_piece(out: Path, name: str, piece: str, wanted: dict[str, Any], found: dict[str, Any]) -> None:
    """Write a finished piece down."""
    write_text(out / "pieces" / f"{name} {piece}.json", json.dumps({"asked": wanted, "found": found}, allow_nan=False))


def number(value: float) -> float | None:
    """A number that JSON has, or None."""
    return float(value) if math.isfinite(value) else None


def numbers(values: Iterable[float]) -> list[float | None]:
    return [number(value) for value in values]
