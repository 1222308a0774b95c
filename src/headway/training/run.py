"""A run folder: the recipe, the metrics, the grids, the checkpoints; and a trained model back from it."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from headway import backbones
from headway.data.augment import CONDITION_DIM
from headway.denoiser import Denoiser
from headway.errors import HeadwayError
from headway.frameworks import Framework, framework
from headway.recipes import Recipe, RecipeBase
from headway.training import checkpoint


class Run:
    """The folder of one training run and what lies where in it."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.recipe_file = self.folder / "recipe.yaml"
        self.metrics_file = self.folder / "metrics.jsonl"
        self.evaluations_file = self.folder / "evaluations.jsonl"
        self.checkpoints = self.folder / "checkpoints"
        self.samples = self.folder / "samples"
        self.report = self.folder / "report.html"

    @staticmethod
    def existing(folder: str | Path) -> Run:
        """A run that is there, or an error that says how to make one."""
        run = Run(folder)
        if not run.recipe_file.is_file():
            raise HeadwayError(
                f"No run at {run.folder}: expected a folder with recipe.yaml, as 'headway train --out' makes it."
            )
        return run

    def recipe(self) -> Recipe:
        return Recipe.load(self.recipe_file)

    def metrics(self) -> list[dict[str, Any]]:
        """The training records, one a tick, oldest first."""
        return read_records(self.metrics_file)

    def evaluations(self) -> list[dict[str, Any]]:
        """The quality figures measured so far, oldest first."""
        return read_records(self.evaluations_file)

    def newest_checkpoint(self, tell: Callable[[str], None] = warnings.warn) -> Path:
        """The newest complete checkpoint; damaged ones are passed over, each with a message to ``tell``."""
        found = checkpoint.newest(self.checkpoints, tell)
        if found is None:
            raise HeadwayError(
                f"{self.folder} has no complete checkpoint yet: run 'headway train' for it until it has written one."
            )
        return found

    def complete_checkpoints(self) -> list[Path]:
        """All checkpoints that are whole, oldest first."""
        return [found for found in checkpoint.folders(self.checkpoints) if checkpoint.damage(found) is None]

    def checkpoint_at(self, nimg: int) -> Path:
        """The complete checkpoint after that many images."""
        found = self.checkpoints / f"{nimg:09d}"
        if (fault := checkpoint.damage(found)) is not None:
            there = ", ".join(f"{int(path.name):,}" for path in self.complete_checkpoints()) or "none"
            raise HeadwayError(
                f"{self.folder} has no complete checkpoint at {nimg:,} images ({fault}); it has {there}."
            )
        return found

    def refuse_other_recipe(self, there: RecipeBase, now: RecipeBase) -> None:
        """Refuse to go on with a run whose recipe decides something else than the one given."""
        if differing := there.differences(now):
            raise HeadwayError(
                f"{self.folder} holds a run of another recipe ({'; '.join(differing[:4])}"
                f"{f'; and {len(differing) - 4} more' if len(differing) > 4 else ''}): choose another --out, or give the same "
                "recipe and data. (A run's budget cannot change: its schedules depend on it.)"
            )


def read_records(file: Path) -> list[dict[str, Any]]:
    """A JSON-lines file; a last line that a crash cut short is left out."""
    if not file.is_file():
        return []
    records = []
    lines = file.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise HeadwayError(f"{file}, line {number} is not JSON; mend or delete that line.") from None
    return records


def append_record(file: Path, record: dict[str, Any]) -> None:
    """Add one line, flushed to disk. Numbers that are not finite become null: JSON has no NaN."""
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(_finite(record), allow_nan=False) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def rewrite_records(file: Path, records: Iterable[dict[str, Any]]) -> None:
    """Replace a JSON-lines file, all or nothing."""
    write_text(file, "".join(json.dumps(record) + "\n" for record in records))


def write_text(file: Path, text: str) -> None:
    """Write a file whole or not at all."""
    temporary = file.with_name(f".{file.name}.partial")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def build_framework(recipe: Recipe) -> Framework:
    """The framework a resolved recipe decides."""
    f = recipe.framework
    return framework(
        f.name,
        f.momentum,
        multiplier=f.multiplier,
        zeta=f.zeta,
        prediction=f.prediction,
        sigma_data=float(f.sigma_data),
        density=f.density,
    )


def build_network(recipe: Recipe) -> nn.Module:
    """The untrained network a resolved recipe decides; its weights depend on the recipe's seed only."""
    n = recipe.network
    return backbones.build(
        n.preset,
        channels=recipe.image_shape[0],
        size=recipe.image_shape[1:],
        classes=recipe.classes,
        augment_dim=CONDITION_DIM if recipe.data.augment > 0 else 0,
        dropout=n.dropout,
        patch=n.patch,
        seed=recipe.train.seed,
        **n.model_dump(exclude={"preset", "patch", "dropout"}, exclude_none=True),
    )


def load(run: str | Path, ema: int | Literal["raw"] | None = None, device: str | torch.device = "cpu") -> Denoiser:
    """The trained denoiser of a run, from its newest complete checkpoint, in eval mode.

    Args:
        run: the run folder. ema: None = the run's first weight average; a half-life in images = that one; "raw" = the weights
            as trained, without averaging.

    Raises:
        HeadwayError: no run, no complete checkpoint, no such average.
    """
    folder = Run.existing(run)
    return load_checkpoint(folder.recipe(), folder.newest_checkpoint(), ema, device)


def load_checkpoint(
    recipe: Recipe, found: Path, ema: int | Literal["raw"] | None = None, device: str | torch.device = "cpu"
) -> Denoiser:
    """:func:`load` for one given checkpoint of a resolved recipe."""
    ema = choose_average(found, ema)
    network = build_network(recipe)
    restore_network(network, found, "model" if ema == "raw" else f"ema-{ema}")
    denoiser = Denoiser(network, build_framework(recipe), shape=recipe.image_shape, classes=recipe.classes)
    return denoiser.to(device).eval().requires_grad_(False)


def choose_average(found: Path, ema: int | Literal["raw"] | None) -> int | Literal["raw"]:
    """The weight average meant by ``ema`` in a checkpoint: its half-life in images, or "raw"."""
    averages = [int(half_life) for half_life in checkpoint.load_state(found)["ema"]]
    if ema is None:
        return averages[0] if averages else "raw"
    if ema != "raw" and ema not in averages:
        raise HeadwayError(
            f"{found} keeps no weight average of half-life {ema!r}; it has {averages or 'none'}, and 'raw'."
        )
    return ema


def restore_network(network: nn.Module, found: Path, stem: str) -> None:
    """Weights from a checkpoint file into a network, or a sentence about what does not fit."""
    try:
        network.load_state_dict(checkpoint.load_tensors(found, stem))
    except RuntimeError as error:
        detail = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
        raise HeadwayError(f"{found / stem}.safetensors does not fit the recipe's network: {detail}") from None
