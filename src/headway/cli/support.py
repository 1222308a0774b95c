"""What the commands share: checks of arguments, a progress bar, a printed quality figure. No heavy import at the top."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from headway.errors import HeadwayError

if TYPE_CHECKING:
    from headway.gan import GanRecipe
    from headway.recipes import Recipe


def resolved(recipe: Recipe | GanRecipe) -> Recipe | GanRecipe:
    """With every ``auto`` decided, where the data are named."""
    if recipe.data.source is None:
        return recipe
    from headway.recipes import Recipe
    from headway.training import open_data
    from headway.training.processes import automatic_precision

    images, heldout = open_data(recipe)
    if isinstance(recipe, Recipe):
        return recipe.resolved(images, len(heldout), automatic_precision())
    return recipe.resolved(images, len(heldout))


def print_quality(record: dict[str, Any]) -> None:
    typer.echo(
        f"{record['name']}: {record['value']:.4g}   "
        f"(real held-out images {record['floor']:.4g}, pixel Gaussian {record['ceiling']:.4g})"
    )
    if record["classes_found"] is not None:
        typer.echo(f"Classes found among the samples: {record['classes_found']} of {len(record['class_counts'])}.")
    for key, value in record.get("figures", {}).items():
        typer.echo(f"{key}: {value:.4g}   (real held-out images {record['figures_floor'][key]:.4g})")
    for warning in record["warnings"]:
        typer.echo(f"Note: {warning}")


def positive(name: str, value: int) -> None:
    if value < 1:
        raise HeadwayError(f"{name} must be at least 1, got {value}.")


def average(text: str | None) -> Any:
    if text is None or text == "raw":
        return text
    if not text.isdigit():
        raise HeadwayError(f"--ema is a half-life in images or 'raw', got {text!r}.")
    return int(text)


def first_process() -> bool:
    import os

    return os.environ.get("RANK", "0") == "0"


def bar(title: str) -> Any:
    """A progress bar as a context; entered it gives a function of (done, total)."""
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import Progress

    @contextmanager
    def opened() -> Any:
        progress = Progress(console=Console(stderr=True), transient=True, disable=not first_process())
        task = progress.add_task(title, total=None)

        def show(done: int, total: int) -> None:
            progress.start()  # only now: an error before the first image should stand alone
            progress.update(task, completed=done, total=total)

        try:
            yield show
        finally:
            progress.stop()

    return opened()
