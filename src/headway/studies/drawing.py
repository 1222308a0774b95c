"""Images from a run's checkpoint by their seeds, whichever kind of model it holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from headway import gan
from headway.errors import HeadwayError
from headway.recipes import Recipe
from headway.sampling import Samples, find_solver, sample, sigma_grid
from headway.training.run import choose_average, load_checkpoint


@dataclass(frozen=True)
class Drawer:
    """draw: (seeds, labels) to images; labels None, one per seed, or "cycle". classes: how many labels there are; 0 for none.
    settings: what decides the images beside seeds and labels: ema, solver, steps, grid, guidance.
    """

    draw: Callable[[Sequence[int], Tensor | str | None], Samples]
    classes: int
    settings: dict[str, Any]


def open_drawer(
    recipe: Recipe | gan.GanRecipe,
    found: Path,
    device: torch.device,
    *,
    solver: str | None = None,
    steps: int | None = None,
    grid: str | None = None,
    guidance: float | None = None,
    ema: int | Literal["raw"] | None = None,
    batch: int = 128,
    progress: bool = False,
) -> Drawer:
    """The drawer of one checkpoint of a resolved recipe. What is None is the recipe's; what makes no sense is refused here."""
    if batch < 1:
        raise HeadwayError(f"batch must be at least 1, got {batch}.")
    ema = choose_average(found, ema)
    if isinstance(recipe, gan.GanRecipe):
        refuse_for_gan(solver=solver, steps=steps, grid=grid, guidance=guidance)
        return _generator_drawer(gan.load_checkpoint(recipe, found, ema, device), ema, batch)
    denoiser = load_checkpoint(recipe, found, ema, device)
    sampling = recipe.sampling
    settings: dict[str, Any] = {
        "solver": sampling.solver if solver is None else solver,
        "steps": sampling.steps if steps is None else steps,
        "grid": grid,
        "guidance": sampling.guidance if guidance is None else guidance,
    }
    if settings["guidance"] != 1 and not denoiser.classes:
        raise HeadwayError(
            f"guidance={settings['guidance']:g} needs a class-conditional model, and this run has no classes."
        )
    sigma_grid(denoiser.framework, settings["steps"], grid or find_solver(settings["solver"]).grid)
    return Drawer(
        lambda seeds, labels: sample(denoiser, seeds, labels=labels, batch=batch, progress=progress, **settings),
        denoiser.classes,
        {"ema": ema, **settings},
    )


def refuse_for_gan(**given: object) -> None:
    """Refuse what is said of a GAN's images but belongs to the sampling of a diffusion model."""
    for name, value in given.items():
        if value is not None:
            raise HeadwayError(
                f"{name}={value} makes no sense for a GAN, whose unconditional generator makes an image in one pass, without "
                "noise levels: leave it out."
            )


def _generator_drawer(generator: gan.Generator, ema: int | str, batch: int) -> Drawer:
    def draw(seeds: Sequence[int], labels: Tensor | str | None) -> Samples:
        if labels is not None:
            raise HeadwayError("A label was given, but a GAN here has no classes; leave it out.")
        start = time.perf_counter()
        images = generator.images(seeds, batch)
        return Samples(images, 1, tuple(seeds), None, "generator", 1, time.perf_counter() - start)

    return Drawer(draw, 0, {"ema": ema, "solver": "generator", "steps": 1, "grid": None, "guidance": 1.0})
