"""The training loop of a GAN: recipe and data in, a run folder out; the same call again goes on from the newest checkpoint.

Its clock is the number of real images that the discriminator has seen. All randomness is keyed by (seed, block of image indices),
as a diffusion model's is, so there is no random state to save.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headway.data import Feed, ImageSet
from headway.errors import HeadwayError
from headway.gan.losses import LOSSES, r1_penalty
from headway.gan.recipe import GanRecipe
from headway.gan.state import GanState
from headway.images import tile, write_png
from headway.training import Run, Trained, checkpoint, open_data
from headway.training.draws import Draws
from headway.training.guards import Signals, locked
from headway.training.loop import SAMPLE_SEEDS
from headway.training.processes import Processes
from headway.training.run import append_record, rewrite_records, write_text
from headway.training.trackers import Tracker, tracker

# What a turn measures, in the order of its tensor; records hold the means over a tick. "loss" is the discriminator's.
MEASURED = ("loss", "loss_generator", "real", "fake", "grad_norm", "grad_norm_generator")


def train(
    recipe: GanRecipe | str | Path,
    out: str | Path,
    *,
    data: str | Path | None = None,
    overrides: Sequence[str] = (),
    stop_after: int | None = None,
    progress: bool = True,
    tell: Callable[[str], None] = print,
) -> Trained:
    """Train, or go on with, the GAN in folder ``out``, in one process.

    Ctrl-C (SIGINT) or SIGTERM ends the turn, writes a checkpoint and returns.

    Args:
        recipe: a recipe, a YAML file, or the preset "gan". data: overrides ``data.source``. overrides: ``section.key=value``.
        stop_after: stop, with a checkpoint, once this many images have been seen. progress: show a bar.
        tell: where messages for people go.

    Raises:
        HeadwayError: wrong recipe or data; a run folder of another recipe; several processes; a gradient that is not finite.
    """
    recipe = recipe if isinstance(recipe, GanRecipe) else GanRecipe.load(recipe)
    recipe = recipe.with_overrides(list(overrides))
    recipe = recipe if data is None else recipe.with_data(data)
    if Path(out).exists() and not Path(out).is_dir():
        raise HeadwayError(f"{out} is a file: the run needs a folder of its own; choose another --out.")
    processes = Processes()
    if processes.count > 1:
        raise HeadwayError(
            f"A GAN is trained by one process, and there are {processes.count}: start it without torchrun."
        )
    images, heldout = open_data(recipe)
    recipe = recipe.resolved(images, len(heldout))
    trainer = GanTrainer(recipe, Run(out), images, processes.device, tell)
    return trainer.train(recipe.train.images if stop_after is None else stop_after, progress)


class GanTrainer:
    """A run. ``state.nimg`` is the clock; the rest is a function of it, the recipe and the data."""

    def __init__(
        self, recipe: GanRecipe, run: Run, images: ImageSet, device: torch.device, tell: Callable[[str], None]
    ) -> None:
        self.recipe, self.run, self.device, self.tell = recipe, run, device, tell
        self.feed = Feed(images, device)
        self.draws = Draws(recipe.train.seed, len(images), recipe.image_shape)
        self.loss = LOSSES[recipe.loss.name]
        self.state = GanState(recipe, device)

    def train(self, stop: int, progress: bool) -> Trained:
        """Until ``stop`` images have been seen, the budget is spent, or a signal asks to stop."""
        budget, state = self.recipe.train.images, self.state
        interrupted = False
        self.run.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            stack.enter_context(locked(self.run.folder))
            self._open_folder()
            if state.nimg < budget:
                signals = stack.enter_context(Signals())
                watch = tracker(self.run, budget, state.nimg, progress, self.recipe.log.tensorboard)
                interrupted = self._loop(min(stop, budget), signals, stack.enter_context(watch))
            else:
                self.tell(f"{self.run.folder} is finished: {state.nimg:,} images.")
        if interrupted:
            self.tell(
                f"Stopped at {state.nimg:,} of {budget:,} images, checkpoint written. The same command goes on from there."
            )
        return Trained(self.run, state.nimg, state.nimg >= budget, interrupted)

    def _open_folder(self) -> None:
        """Make or check the run folder and load the newest checkpoint."""
        if self.run.recipe_file.is_file():
            self.run.refuse_other_recipe(GanRecipe.load(self.run.recipe_file), self.recipe)
        self.run.samples.mkdir(parents=True, exist_ok=True)
        write_text(self.run.recipe_file, self.recipe.to_yaml())
        found = checkpoint.newest(self.run.checkpoints, self.tell)
        if found is not None:
            self.state.restore(found)
            self.tell(f"Going on from {found} ({self.state.nimg:,} of {self.recipe.train.images:,} images).")
        rewrite_records(self.run.metrics_file, [r for r in self.run.metrics() if r["nimg"] <= self.state.nimg])

    def _loop(self, stop: int, signals: Signals, watch: Tracker) -> bool:
        """Whether a signal ended it."""
        log, state, turn = self.recipe.log, self.state, self.recipe.train.batch * self.recipe.train.n_dis
        sums, turns = torch.zeros(len(MEASURED), dtype=torch.float64, device=self.device), 0
        since = time.perf_counter()
        interrupted = False
        while state.nimg < stop and not interrupted:
            sums += self._turn()
            turns += 1
            interrupted = signals.received
            last = interrupted or state.nimg >= stop
            tick, samples, save = (
                last or state.nimg // every > (state.nimg - turn) // every
                for every in (int(log.tick), int(log.samples) or stop + 1, int(log.checkpoint))
            )
            if not (tick or samples or save):
                continue
            watch.tick(self._record(sums / turns, turns, time.perf_counter() - since))
            if samples and int(log.samples) and not interrupted:
                sheet = tile(state.averaged().images(SAMPLE_SEEDS), columns=8, gap=2)
                write_png(sheet, self.run.samples / f"{state.nimg:09d}.png")
            if save:
                state.save(self.run.checkpoints, log.keep)
            sums, turns = torch.zeros_like(sums), 0
            since = time.perf_counter()
        return interrupted

    def _record(self, means: Tensor, turns: int, elapsed: float) -> dict[str, Any]:
        state, train = self.state, self.recipe.train
        state.seconds += elapsed
        record = {
            "nimg": state.nimg,
            "seconds": round(state.seconds, 3),
            **dict(zip(MEASURED, means.tolist(), strict=True)),
            "lr": self.recipe.optim.lr,
            "images_per_second": round(turns * train.batch * train.n_dis / elapsed, 2),
        }
        append_record(self.run.metrics_file, record)
        return record

    def _turn(self) -> Tensor:
        """``n_dis`` steps of the discriminator and one of the generator; what they measured, (len(MEASURED),)."""
        train, state = self.recipe.train, self.state
        began = state.nimg
        for _ in range(train.n_dis):
            loss, real, fake, norm = self._discriminator_step()
            state.nimg += train.batch
        with _frozen(state.discriminator):
            generated = state.generator(self._latents("generator", began))
            loss_generator = self.loss.generator(state.discriminator(generated))
            norm_generator = self._step("generator", loss_generator)
        for average in state.averages:
            average.update(state.generator, began, state.nimg - began)
        measured = (loss, loss_generator, real.mean(), fake.mean(), norm, norm_generator)
        return torch.stack([value.detach().double() for value in measured])

    def _discriminator_step(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Loss, outputs for real and for generated images, and the gradient's norm."""
        state, r1 = self.state, self.recipe.loss.r1
        images = self._real(state.nimg)
        with torch.no_grad():
            generated = state.generator(self._latents("discriminator", state.nimg))
        # Both in one pass, which spectral normalisation counts as one.
        real, fake = state.discriminator(torch.cat([images, generated])).chunk(2)
        loss = self.loss.discriminator(real, fake)
        penalty = r1 * r1_penalty(state.discriminator, images) if r1 else 0.0
        return loss, real, fake, self._step("discriminator", loss + penalty)

    def _step(self, name: str, loss: Tensor) -> Tensor:
        """One optimiser step on a network; the gradient's norm."""
        network, optimizer = self.state.networks[name], self.state.optimizers[name]
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        norm = nn.utils.get_total_norm([p.grad for p in network.parameters() if p.grad is not None])
        if not math.isfinite(float(norm)):
            raise HeadwayError(
                f"The gradient of the {name} was not finite at image {self.state.nimg:,}: training stopped. Lower optim.lr, in a "
                "new run folder; the last checkpoint is from before."
            )
        optimizer.step()
        return norm

    def _real(self, start: int) -> Tensor:
        """The batch of real images that begins at an image index."""
        stop = start + self.recipe.train.batch
        images, _ = self.feed.batch(self.draws.indices(start, stop))
        if not self.recipe.data.xflip:
            return images
        flip = self.draws.uniforms(start, stop)[:, 1].to(images.device) < 0.5
        return torch.where(flip[:, None, None, None], images.flip(-1), images)

    def _latents(self, player: str, start: int) -> Tensor:
        """A batch of latents for one of the two networks' steps; each image index has its own for each."""
        width, stop = self.recipe.network.latent, start + self.recipe.train.batch
        latents = self.draws.torch_blocks(
            f"latent of {player}", start, stop, lambda n, generator: torch.randn(n, width, generator=generator)
        )
        return latents.to(self.device)


@contextmanager
def _frozen(network: nn.Module) -> Iterator[None]:
    """The weights need no gradient meanwhile."""
    network.requires_grad_(False)
    try:
        yield
    finally:
        network.requires_grad_(True)
