"""Sampling: images from a denoiser and a list of seeds, and what they cost."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from headway.denoiser import DenoiserLike
from headway.errors import HeadwayError, refuse_unknown_options
from headway.images import to_uint8
from headway.sampling.grids import DEFAULT_RHO, sigma_grid
from headway.sampling.guidance import Guided, check_guidance
from headway.sampling.seeding import check_seeds, choose_labels, seed_noise
from headway.sampling.solvers import find_solver

Report = Callable[[int, int], None]
Watch = Callable[[int, float, Tensor], None]


@dataclass(frozen=True)
class Samples:
    """What :func:`sample` returns.

    Attributes:
        images: (N, C, H, W) float32 on the CPU, in the order of the seeds, not clipped.
        nfe: network evaluations per image, counted. seconds: wall-clock time of the whole call.
        seeds: one per image. labels: (N,) int64, -1 for none; None for a model without classes.
        solver, steps: what made them.
    """

    images: Tensor = field(repr=False)
    nfe: int
    seeds: tuple[int, ...] = field(repr=False)
    labels: Tensor | None = field(repr=False)
    solver: str
    steps: int
    seconds: float

    def uint8(self) -> Tensor:
        """The images (N, C, H, W) as uint8: [-1, 1] becomes 0..255, rounded and clipped."""
        return to_uint8(self.images)


def sample(
    denoiser: DenoiserLike,
    seeds: Iterable[int],
    *,
    solver: str = "heun",
    steps: int = 18,
    grid: str | None = None,
    rho: float = DEFAULT_RHO,
    sigma_min: float | None = None,
    sigma_max: float | None = None,
    labels: int | Sequence[int] | Tensor | str | None = None,
    guidance: float = 1.0,
    guidance_interval: tuple[float, float] | None = None,
    batch: int = 64,
    shape: Sequence[int] | None = None,
    device: torch.device | str | None = None,
    progress: Report | bool = False,
    watch: Watch | None = None,
    options: Mapping[str, float] | None = None,
) -> Samples:
    """One image per seed.

    An image is a function of its own seed (and label): the batch, the device and the other images change rounding only,
    because its noise is drawn for it alone (:func:`headway.sampling.seed_noise`). So each of several processes can sample
    ``seeds[rank::world]``. The state is kept in float64; the network runs in its own precision, in eval mode and without
    gradients, and is left in the mode in which it was.

    Args:
        denoiser: a :class:`headway.Denoiser`, or any callable of (x, sigma, labels) with a ``framework`` (and ``classes``, how
            many, if it takes labels).
        seeds: whole numbers in 0 .. 2^63 - 1, one per image.
        solver: "euler" (DDIM), "heun", "dpmpp-2m", "dpmpp-3s", "ancestral" (DDPM) or "churn".
        steps: of the solver; :func:`headway.sampling.steps_for_nfe` turns a budget of evaluations into steps.
        grid, rho, sigma_min, sigma_max: see :func:`headway.sampling.sigma_grid`; default: the solver's grid, the framework's range.
        labels: one for all images, one per image, or "cycle" (seed modulo the number of classes). None: no label.
        guidance: classifier-free guidance, 1 for none. guidance_interval: the (low, high) sigma in which it acts.
        batch: images at a time; under guidance the network sees twice as many.
        shape: (C, H, W), where the denoiser has no ``shape`` or another one is wanted.
        device: where to run, by default where the denoiser's parameters are; the denoiser is not moved.
        progress: True for a bar, or a function of (calls of the denoiser done, calls in all).
        watch: called once per step of every batch with (step, sigma, x0 (B, C, H, W)): the estimate the step starts with.
        options: the solver's own; "churn" has s_churn, s_tmin, s_tmax and s_noise.

    Raises:
        HeadwayError: for arguments that make no sense, and when an image comes out NaN or infinite.
    """
    start = time.perf_counter()
    method = find_solver(solver)
    settings = _settings(solver, method.options, options)
    sigmas = sigma_grid(denoiser.framework, steps, grid or method.grid, rho, sigma_min, sigma_max)
    seeds = check_seeds(seeds)
    chosen = choose_labels(labels, seeds, getattr(denoiser, "classes", 0))
    check_guidance(guidance, guidance_interval, chosen)
    shape = shape or getattr(denoiser, "shape", None)
    if shape is None:
        raise HeadwayError("The denoiser does not know the shape of its images; give shape=(C, H, W).")
    if batch < 1:
        raise HeadwayError(f"batch must be 1 or more images at a time, got {batch}.")
    device = device_of(denoiser) if device is None else torch.device(device)

    def run(part: slice, report: Callable[[], None]) -> tuple[Tensor, int]:
        guided = Guided(denoiser, None if chosen is None else chosen[part].to(device), guidance, guidance_interval)
        calls = itertools.count()

        def denoise(x: Tensor, sigma: Tensor) -> Tensor:
            x0 = guided(x, sigma)
            step, again = divmod(next(calls), method.evaluations)
            if watch is not None and not again:
                watch(step, float(sigma), x0)
            report()
            return x0

        def noise(index: int) -> Tensor:
            return seed_noise(seeds[part], shape, index).to(device)

        x = method.run(denoise, sigmas[0] * noise(0), sigmas, lambda step: noise(step + 1), **settings)
        return x.cpu(), guided.nfe

    images = torch.empty(len(seeds), *shape)
    total = math.ceil(len(seeds) / batch) * method.nfe(steps)
    with torch.no_grad(), eval_mode(denoiser), _reporter(progress, total) as report:
        for first in range(0, len(seeds), batch):
            part = slice(first, first + batch)
            images[part], nfe = run(part, report)
            _refuse_broken(images[part], seeds[part])
    return Samples(images, nfe, seeds, chosen, solver, steps, time.perf_counter() - start)


def _settings(solver: str, defaults: Mapping[str, float], options: Mapping[str, float] | None) -> dict[str, float]:
    settings = dict(options or {})
    refuse_unknown_options(f"solver {solver!r}", settings, defaults)
    for name, value in settings.items():
        if not value >= 0:
            raise HeadwayError(f"The option {name} of the solver {solver!r} must be a number >= 0, got {value}.")
    return settings


def _refuse_broken(images: Tensor, seeds: Sequence[int]) -> None:
    fine = images.flatten(1).isfinite().all(1)
    if not bool(fine.all()):
        broken = [str(seed) for seed, good in zip(seeds, fine.tolist(), strict=True) if not good]
        listed = ", ".join(broken[:8]) + (", ..." if len(broken) > 8 else "")
        raise HeadwayError(
            f"{len(broken)} of {len(seeds)} images in a batch came out NaN or infinite (seeds {listed}): the model has "
            "diverged or its precision overflows; try an earlier checkpoint or float32."
        )


def device_of(denoiser: DenoiserLike) -> torch.device:
    """Where the denoiser's parameters are; the CPU if it has none."""
    if isinstance(denoiser, nn.Module):
        for tensor in (*denoiser.parameters(), *denoiser.buffers()):
            return tensor.device
    return torch.device("cpu")


@contextmanager
def eval_mode(denoiser: DenoiserLike) -> Iterator[None]:
    """The denoiser in eval mode, and afterwards, also after an error, every part as it was."""
    modules = list(denoiser.modules()) if isinstance(denoiser, nn.Module) else []
    modes = [module.training for module in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        # One by one: a part that was frozen in eval mode stays so.
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


@contextmanager
def _reporter(progress: Report | bool, total: int) -> Iterator[Callable[[], None]]:
    """A function to call after every denoiser call."""
    done = 0

    def report() -> None:
        nonlocal done
        done += 1
        if callable(progress):
            progress(done, total)

    if progress is True:
        from rich.progress import Progress

        with Progress() as bar:
            task = bar.add_task("sampling", total=total)
            yield lambda: bar.advance(task)
    else:
        yield report
