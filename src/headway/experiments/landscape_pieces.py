"""The pieces of the experiment: the lines, the planes, the curvature and the quality of one model; a process of its own.

``python -m headway.experiments.landscape_pieces OUT MODEL PIECE,... PARTNER``, the partner "" where there is none. Every point is
written down as soon as it is known.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headway.errors import HeadwayError
from headway.experiments.landscape import PLAYERS, LandscapeExperiment
from headway.experiments.landscape_curvature import curvature_row, rotation
from headway.experiments.landscape_frozen import Frozen, Scene, folded
from headway.experiments.landscape_kept import Kept, asked, experiment_run, keep_piece, numbers, points_folder
from headway.gan import GanRecipe, load_recipe
from headway.landscape import (
    Plane,
    between,
    flat,
    line,
    path_plane,
    plane,
    random_direction,
)
from headway.studies import evaluate
from headway.training.processes import Processes

MARGIN = 0.25  # of a path's extent, by which its plane goes beyond it


class Look:
    """A model that is being looked at: its run, its draws, its checkpoints."""

    def __init__(self, experiment: LandscapeExperiment, out: Path, name: str) -> None:
        self.experiment, self.out, self.name = experiment, out, name
        self.run = experiment_run(experiment, out, name)
        self.recipe = load_recipe(self.run.recipe_file)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.frozen = Frozen(self.recipe, experiment.batch, experiment.seed, self.device)
        self.checkpoints = self.run.complete_checkpoints()
        self.bands = experiment.bands_of(name, isinstance(self.recipe, GanRecipe))

    def kept(self, what: str) -> Kept:
        """The points of one thing looked at, of the newest checkpoint."""
        return Kept(points_folder(self.out, self.name) / self.checkpoints[-1].name / f"{what}.jsonl")

    def stages(self) -> list[Path]:
        """The checkpoints whose curvature is measured, evenly spaced; the newest is the last."""
        count = self.experiment.stages_of(self.name, isinstance(self.recipe, GanRecipe))
        chosen = np.linspace(len(self.checkpoints) - 1, 0, count).round().astype(int)
        return [self.checkpoints[i] for i in sorted(set(chosen.tolist()))]

    def scene(self, landscape: str, at: Path, band: str = "all") -> Scene:
        """One landscape of a checkpoint; ``band`` is a band of sigma, "all", or "reference" for the reference's loss."""
        if isinstance(self.recipe, GanRecipe):
            return self.frozen.gan(self.recipe, at).scenes[landscape]
        ends = self.experiment.band(None if band in ("all", "reference") else band)
        return self.frozen.diffusion(self.recipe, at, ends, reference=band == "reference")

    def weights(self, found: Path | None) -> dict[str, Tensor]:
        """What pictures are drawn over, by landscape: the weights of a checkpoint, or untrained."""
        scenes = self.frozen.scenes(self.recipe, found)
        return {name: flat(folded(scene.module)) for name, scene in scenes.items()}

    def generator(self, *what: int) -> torch.Generator:
        """Randomness of directions and probes: the same for all models."""
        seed = int(np.random.SeedSequence([self.experiment.seed, *what]).generate_state(1)[0])
        return torch.Generator().manual_seed(seed)

    def in_bands(self, bands: Iterable[str | None]) -> Iterator[tuple[str, str | None, nn.Module, Scene]]:
        """(landscape, band, module to move, scene) of the newest checkpoint."""
        newest = self.checkpoints[-1]
        for landscape, scene in self.frozen.scenes(self.recipe, newest).items():
            yield landscape, None, folded(scene.module), scene
        for band in dict.fromkeys(bands):
            if band is not None:
                scene = self.scene("diffusion", newest, band)
                yield "diffusion", band, scene.module, scene

    def direction(self, module: nn.Module, number: int) -> Tensor:
        """A filter-normalised random direction, the same for networks of one shape but for its lengths."""
        return random_direction(module, self.generator(number)).to(self.device)


@torch.no_grad()
def lines(look: Look, partner: str | None) -> dict[str, Any]:
    """{landscape: {"line" or "line, band": {"alphas", "losses"}}}."""
    experiment = look.experiment
    names = experiment.line_names(look.bands, partner is not None)
    initial, trained = look.weights(None), look.weights(look.checkpoints[-1])
    other = _partner_weights(look, partner, trained)
    found: dict[str, Any] = {}
    for landscape, band, module, scene in look.in_bands(of for _, of in names):
        for name in (n for n, of in names if of == band):
            if name == "initial to trained":
                start, way, alphas = initial[landscape], between(initial[landscape], trained[landscape]), "between"
            elif name == "to the next model":
                start, way, alphas = trained[landscape], between(trained[landscape], other[landscape]), "between"
            else:
                number = int(name.rpartition(" ")[2])
                start, way, alphas = trained[landscape], look.direction(module, number), "around"
            at: list[float] = getattr(experiment.lines, alphas)
            label = name if band is None else f"{name}, {band}"
            # Another experiment may have another next model.
            file = f"to {partner}" if name == "to the next model" else label
            losses = line(scene.loss, module, start, way, at, look.kept(f"{landscape} {file}"))
            found.setdefault(landscape, {})[label] = {"alphas": at, "losses": numbers(losses)}
    return found


@torch.no_grad()
def planes(look: Look, partner: str | None) -> dict[str, Any]:
    """{landscape: {"plane" or "plane, band": {"xs", "ys", "losses", "path", "explained"}}}."""
    experiment = look.experiment
    names = experiment.plane_names(look.bands)
    stops = [look.weights(found) for found in (None, *look.checkpoints)]
    found: dict[str, Any] = {}
    for landscape, band, module, scene in look.in_bands(of for _, of in names):
        for name in (n for n, of in names if of == band):
            about: dict[str, Any] = {}
            xs = ys = experiment.planes.around
            if name == "random":
                where = Plane(flat(module), look.direction(module, 1), look.direction(module, 2))
            else:
                if len(stops) < 3:
                    raise HeadwayError(
                        f"{look.name} keeps {len(stops) - 1} checkpoint, and its path needs 2: set log.keep."
                    )
                path = path_plane([stop[landscape] for stop in stops])
                where, (xs, ys) = path.plane, (_around(column, experiment.planes.points) for column in path.path.T)
                about = {"path": path.path.tolist(), "explained": path.explained[:2].tolist()}
            label = name if band is None else f"{name}, {band}"
            losses = plane(scene.loss, module, where, xs, ys, look.kept(f"{landscape} plane {label}"))
            surface = {"xs": xs, "ys": ys, "losses": [numbers(row) for row in losses]}
            found.setdefault(landscape, {})[label] = surface | about
    return found


def curvature(look: Look, partner: str | None) -> dict[str, Any]:
    """{landscape: [row, ...], "rotation": ...}; see :func:`curvature_row`. Own loss at every stage, then bands, then reference."""
    experiment, stages = look.experiment, look.stages()
    gan = isinstance(look.recipe, GanRecipe)
    rows = [(landscape, at, "all") for at in stages for landscape in (PLAYERS if gan else ("diffusion",))]
    if not gan:
        technique = () if experiment.is_reference(look.name) else ("reference",)
        rows += [("diffusion", stages[-1], band) for band in (*look.bands, *technique)]
    found: dict[str, Any] = {}
    done = look.kept("curvature")
    for landscape, at, band in rows:
        key = (landscape, at.name, band)
        if key not in done:
            row = curvature_row(look.scene(landscape, at, band), experiment.curvature, look.generator(0))
            done[key] = {"nimg": int(at.name), "band": band} | row
        found.setdefault(landscape, []).append(done[key])
    if isinstance(look.recipe, GanRecipe):
        if "rotation" not in done:
            game = look.frozen.gan(look.recipe, stages[-1])
            done["rotation"] = rotation(game, experiment.curvature.rotation, look.generator(1))
        found["rotation"] = done["rotation"]
    return found


def fidelity(look: Look, partner: str | None) -> dict[str, Any]:
    """The Frechet distance of the newest checkpoint, with floor and ceiling."""
    n, newest = look.experiment.samples, int(look.checkpoints[-1].name)
    for record in look.run.evaluations():
        if record["nimg"] == newest and record["n"] == n:
            return record
    return evaluate(look.run.folder, n=n, processes=Processes())


PIECES: dict[str, Callable[[Look, str | None], dict[str, Any]]] = {
    "lines": lines,
    "planes": planes,
    "curvature": curvature,
    "fidelity": fidelity,
}


def look_at(out: Path, name: str, pieces: Sequence[str], partner: str | None) -> bool:
    """Measure pieces of a model and write them down; whether all went well. What did not is said, and the others go on."""
    look = Look(LandscapeExperiment.load(out / "experiment.yaml"), out, name)
    well = True
    for piece in pieces:
        try:
            wanted = asked(look.experiment, piece, partner, look.run)
            keep_piece(out, name, piece, wanted, PIECES[piece](look, partner))
        except HeadwayError as error:
            print(f"Error: {piece}: {error}", file=sys.stderr)
            well = False
    return well


def _partner_weights(look: Look, partner: str | None, own: dict[str, Tensor]) -> dict[str, Tensor]:
    if partner is None:
        return {}
    other = Look(look.experiment, look.out, partner)
    found = other.weights(other.checkpoints[-1])
    if any(found[name].shape != own[name].shape for name in own):
        raise HeadwayError(
            f"{look.name} and {partner} have networks of different shapes, so no line joins them: give them another word in "
            "'differs'."
        )
    return found


def _around(column: Any, points: int) -> list[float]:
    low, high = float(column.min()), float(column.max())
    margin = MARGIN * (high - low)
    return [float(x) for x in np.linspace(low - margin, high + margin, points)]


if __name__ == "__main__":
    folder, model, these, other = sys.argv[1:]
    sys.exit(0 if look_at(Path(folder), model, these.split(","), other or None) else 2)
