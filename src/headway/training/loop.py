"""The training loop: recipe and data in, a run folder out; the same call again goes on from the newest checkpoint."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from headway.data import Feed, ImageSet
from headway.data import load as load_images
from headway.denoiser import Denoiser
from headway.errors import HeadwayError
from headway.images import tile, write_png
from headway.optim import after_warmup, beta1_of, law, learning_rate, set_rates
from headway.recipes import Recipe, RecipeBase
from headway.training import checkpoint
from headway.training.bands import Bands
from headway.training.draws import Draws, key
from headway.training.guards import Signals, locked
from headway.training.objective import Objective
from headway.training.processes import Processes, automatic_precision
from headway.training.run import Run, append_record, build_framework, rewrite_records, write_text
from headway.training.state import TrainingState
from headway.training.trackers import Tracker, tracker

SAMPLE_SEEDS = range(64)
MAX_SKIPPED_IN_A_ROW = 25


@dataclass(frozen=True)
class Trained:
    """Where a call of :func:`train` stopped."""

    run: Run
    nimg: int
    finished: bool
    interrupted: bool


def open_data(recipe: RecipeBase) -> tuple[ImageSet, ImageSet]:
    """The (training, held-out) images a recipe names."""
    data = recipe.data
    if data.source is None:
        raise HeadwayError("No images given: name a folder, zip, array file, or 'digits' or 'fashion' with --data.")
    images, heldout = load_images(
        data.source,
        size=None if data.size == "auto" else data.size,
        channels=None if data.channels == "auto" else data.channels,
        labels=data.labels if isinstance(data.labels, str) else None,
        skip_broken=data.skip_broken,
        heldout=data.heldout,
    )
    if data.labels and images.labels is None:
        raise HeadwayError(
            f"data.labels asks for class labels, but {images.name} has none: use sub-folders, a JSON map, or labels=false."
        )
    return images, heldout


def train(
    recipe: Recipe | str | Path,
    out: str | Path,
    *,
    data: str | Path | None = None,
    overrides: Sequence[str] = (),
    stop_after: int | None = None,
    progress: bool = True,
    tell: Callable[[str], None] = print,
) -> Trained:
    """Train, or go on with, the run in folder ``out``.

    Under torchrun all processes call this alike. Ctrl-C (SIGINT) or SIGTERM ends the step, writes a checkpoint and returns.

    Args:
        recipe: a recipe, a YAML file, or a preset's name. data: overrides ``data.source``. overrides: ``section.key=value``.
        stop_after: stop, with a checkpoint, once this many images have been seen. progress: show a bar.
        tell: where messages for people go.

    Raises:
        HeadwayError: wrong recipe or data; a run folder of another recipe; a gradient that stays non-finite.
    """
    recipe = recipe if isinstance(recipe, Recipe) else Recipe.load(recipe)
    recipe = recipe.with_overrides([overrides] if isinstance(overrides, str) else list(overrides))
    recipe = recipe if data is None else recipe.with_data(data)
    if Path(out).exists() and not Path(out).is_dir():
        raise HeadwayError(f"{out} is a file: the run needs a folder of its own; choose another --out.")
    precision = recipe.train.precision
    processes = Processes(automatic_precision() if precision == "auto" else precision)
    # One process decodes and caches the images, the others then find the cache.
    with processes.accelerator.main_process_first():
        images, heldout = open_data(recipe)
    recipe = recipe.resolved(images, len(heldout), automatic_precision())
    trainer = Trainer(recipe, Run(out), images, processes, tell if processes.main else lambda message: None)
    return trainer.train(recipe.train.images if stop_after is None else stop_after, progress)


class Trainer:
    """One process's part of a run. ``state.nimg`` is the clock; the rest is a function of it, the recipe and the data."""

    def __init__(
        self, recipe: Recipe, run: Run, images: ImageSet, processes: Processes, tell: Callable[[str], None]
    ) -> None:
        self.recipe, self.run, self.processes, self.tell = recipe, run, processes, tell
        self.parts = processes.count * recipe.train.accumulation
        if recipe.train.batch < self.parts:
            raise HeadwayError(
                f"train.batch={recipe.train.batch} cannot be divided over {processes.count} processes x "
                f"{recipe.train.accumulation} accumulation steps: give at least {self.parts}."
            )
        self.framework = build_framework(recipe)
        draws = Draws(recipe.train.seed, len(images), recipe.image_shape)
        self.objective = Objective(recipe, self.framework, Feed(images, processes.device), draws)
        self.state = TrainingState(recipe, self.objective.density, self.objective.uncertainty, processes.device)
        self.law = law(recipe.optim.law, **recipe.optim.options)

    def train(self, stop: int, progress: bool) -> Trained:
        """Until ``stop`` images have been seen, the budget is spent, or a signal asks to stop."""
        budget, state = self.recipe.train.images, self.state
        interrupted = False
        with ExitStack() as stack:
            if self.processes.main:
                self.run.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(self.run.folder))
            self._open_folder()
            if state.nimg < budget:
                accelerator = self.processes.accelerator
                self.wrapped, self.stepper = accelerator.prepare(state.network, state.optimizer)
                self.denoiser = self._denoiser(self.wrapped)
                if accelerator.scaler is not None and state.scaler is not None:
                    accelerator.scaler.load_state_dict(state.scaler)
                signals = stack.enter_context(Signals())
                main, log = self.processes.main, self.recipe.log
                watch = tracker(self.run, budget, state.nimg, progress and main, log.tensorboard and main)
                interrupted = self._loop(min(stop, budget), signals, stack.enter_context(watch))
            else:
                self.tell(f"{self.run.folder} is finished: {state.nimg:,} images.")
            self.processes.wait()
        if interrupted:
            self.tell(
                f"Stopped at {state.nimg:,} of {budget:,} images, checkpoint written. The same command goes on from there."
            )
        return Trained(self.run, state.nimg, state.nimg >= budget, interrupted)

    def _open_folder(self) -> None:
        """Make or check the run folder and load the newest checkpoint."""
        # All processes look, so that all of them stop; then one of them writes.
        if self.run.recipe_file.is_file():
            self.run.refuse_other_recipe(self.run.recipe(), self.recipe)
        self.processes.wait()
        if self.processes.main:
            self.run.samples.mkdir(parents=True, exist_ok=True)
            write_text(self.run.recipe_file, self.recipe.to_yaml())
        self.processes.wait()
        found = checkpoint.newest(self.run.checkpoints, self.tell)
        if found is not None:
            self.state.restore(found)
            self.tell(f"Going on from {found} ({self.state.nimg:,} of {self.recipe.train.images:,} images).")
        if self.processes.main:
            rewrite_records(self.run.metrics_file, [r for r in self.run.metrics() if r["nimg"] <= self.state.nimg])

    def _loop(self, stop: int, signals: Signals, watch: Tracker) -> bool:
        """Whether a signal ended it."""
        log, state, batch = self.recipe.log, self.state, self.recipe.train.batch
        bands = Bands(self.processes)
        interrupted = False
        since, nimg = time.perf_counter(), state.nimg
        while state.nimg < stop and not interrupted:
            norm = self._step(bands)
            interrupted = self.processes.any(signals.received)
            last = interrupted or state.nimg >= stop
            tick, samples, save = (
                last or state.nimg // every > (state.nimg - batch) // every
                for every in (int(log.tick), int(log.samples) or stop + 1, int(log.checkpoint))
            )
            if not (tick or samples or save):
                continue
            elapsed = time.perf_counter() - since
            state.seconds += elapsed
            record = {"nimg": state.nimg, "seconds": round(state.seconds, 3)} | bands.record()
            record |= {
                "lr": self.stepper.param_groups[0]["lr"],
                "beta1": beta1_of(self.stepper.param_groups[0]),
                "grad_norm": norm,
                "images_per_second": round((state.nimg - nimg) / elapsed, 2),
                "memory_mb": _peak_memory_mb(self.processes.device),
                "skipped": state.skipped,
            }
            if self.processes.main:
                append_record(self.run.metrics_file, record)
            watch.tick(record)
            if samples and int(log.samples) and not interrupted:
                self._sample_grid()
            if save and self.processes.main:
                scaler = self.processes.accelerator.scaler
                state.scaler = None if scaler is None else scaler.state_dict()
                state.save(self.run.checkpoints, log.keep)
            since, nimg = time.perf_counter(), state.nimg
        return interrupted

    def _step(self, bands: Bands) -> float:
        """One optimiser step over one batch. Returns the gradient's norm before clipping."""
        train, state, accelerator = self.recipe.train, self.state, self.processes.accelerator
        first = self.processes.rank * train.accumulation
        cuts = [state.nimg + train.batch * part // self.parts for part in range(self.parts + 1)]
        for part in range(first, first + train.accumulation):
            if self.recipe.network.dropout > 0:
                torch.manual_seed(int.from_bytes(key("dropout", train.seed, cuts[part])[:7], "little"))
            with ExitStack() as stack:
                last = part == first + train.accumulation - 1
                if not last:
                    stack.enter_context(accelerator.no_sync(self.wrapped))
                losses = self.objective(self.denoiser, cuts[part], cuts[part + 1], state.nimg)
                ahead = (
                    (cuts[first] + train.batch, cuts[first + 1] + train.batch) if last else cuts[part + 1 : part + 3]
                )
                self.objective.prefetch(*ahead)
                # The gradient of the batch's mean: several processes average theirs, hence their count.
                accelerator.backward(losses.objective.sum() * (self.processes.count / train.batch))
            bands.add(losses)
        self._average_learnt_gradients()
        accelerator.unscale_gradients()
        norm = float(nn.utils.clip_grad_norm_(state.network.parameters(), self.recipe.optim.clip or math.inf))
        self._set_rates()
        # With a loss scaler the step is taken in any case: it skips by itself, and lowers its scale.
        if math.isfinite(norm) or accelerator.scaler is not None:
            self.stepper.step()
        self._count_skipped(norm)
        self.stepper.zero_grad()
        if state.online is not None:
            state.online.reduce(self.processes.sum)
        for average in state.averages:
            average.update(state.network, state.nimg, train.batch)
        state.nimg += train.batch
        return norm

    def _average_learnt_gradients(self) -> None:
        """Over the processes, for the learnt weight: the network's own are averaged where it is wrapped."""
        if self.state.uncertainty is not None:
            for parameter in self.state.uncertainty.parameters():
                if parameter.grad is not None:
                    parameter.grad = self.processes.sum(parameter.grad) / self.processes.count

    def _set_rates(self) -> None:
        """Learning rate and beta1 of the step at hand: the law, times the ramp."""
        optim, batch, ramp = self.recipe.optim, self.recipe.train.batch, int(self.recipe.optim.lr_ramp)
        tau = after_warmup(self.state.nimg, self.recipe.train.images, ramp)
        rates = self.law(tau, optim.betas[0])
        lr = learning_rate(self.state.nimg + batch, optim.lr, ramp) * rates.factor
        set_rates(self.state.optimizer, lr, rates.beta1)

    def _count_skipped(self, norm: float) -> None:
        """A step whose gradient is not finite changes no weight and is counted; too many in a row end the run."""
        state = self.state
        if math.isfinite(norm):
            state.skipped_in_a_row = 0
            return
        state.skipped += 1
        state.skipped_in_a_row += 1
        if state.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise HeadwayError(
                f"The gradient was not finite in {state.skipped_in_a_row} steps in a row, up to image {state.nimg:,}: training "
                "stopped. Lower optim.lr or use train.precision=fp32, in a new run folder; the last checkpoint is from before."
            )

    def _denoiser(self, network: nn.Module) -> Denoiser:
        return Denoiser(network, self.framework, shape=self.recipe.image_shape, classes=self.recipe.classes)

    def _sample_grid(self) -> None:
        state, sampling = self.state, self.recipe.sampling
        labels = torch.arange(len(SAMPLE_SEEDS)) % self.recipe.classes if self.recipe.classes else None
        with state.sampling_weights() as network:
            drawn = self.processes.sample(
                self._denoiser(state.averages[0].network if state.averages else network),
                SAMPLE_SEEDS,
                labels,
                solver=sampling.solver,
                steps=sampling.steps,
                guidance=sampling.guidance,
            )
        if self.processes.main:
            write_png(tile(drawn.images, columns=8, gap=2), self.run.samples / f"{state.nimg:09d}.png")


def _peak_memory_mb(device: torch.device) -> int:
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
