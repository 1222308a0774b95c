"""The models of an experiment: diffusion models and GANs, trained as it says, or taken from runs that are there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import model_validator

from headway.compare.launchers import Job, local
from headway.compare.run import last_words
from headway.errors import HeadwayError, unknown
from headway.gan import is_gan
from headway.gan.recipe import GanRecipe, load_recipe
from headway.recipes import Recipe
from headway.recipes.reading import parse_as
from headway.recipes.sections import Section, Title
from headway.training import Run


class Model(Section):
    """One model; ``wide: [network.width=64]`` is short for ``wide: {set: [network.width=64]}``.

    Attributes:
        base: preset or recipe file; None: the experiment's; "gan" for a GAN. set: overrides of it. run: a run folder to take
            instead. differs: in what it differs from the others, in a word: seed, initialisation, architecture, ...
    """

    base: str | None = None
    set: tuple[str, ...] = ()
    run: str | None = None
    differs: str = "seed"

    @model_validator(mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        return {"set": given} if isinstance(given, list | tuple) else {} if given is None else given


class Experiment(Section):
    """What every experiment states: its question and its models. ``set`` goes to diffusion models, ``set_gan`` to GANs."""

    name: Title
    question: str
    base: str = "edm"
    set: tuple[str, ...] = ()
    set_gan: tuple[str, ...] = ()
    models: dict[str, Model]

    @model_validator(mode="after")
    def _names_of_folders(self) -> Experiment:
        if wrong := [name for name in self.models if "/" in name or not name.strip()]:
            raise ValueError(f"a model's name is the name of a folder; it cannot be {wrong[0]!r}")
        return self

    @classmethod
    def load(cls, file: str | Path) -> Any:
        """From a YAML file.

        Raises:
            HeadwayError: no such file, broken YAML, an unknown key.
        """
        path = Path(file)
        if not path.is_file():
            raise HeadwayError(f"No experiment {str(file)!r}: expected a YAML file.")
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise HeadwayError(f"{path}: broken YAML: {str(error).splitlines()[0]}.") from None
        return parse_as(cls, values, str(path))

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)

    def settings(self, name: str) -> tuple[str, list[str]]:
        """Base and overrides of a model that is to be trained."""
        model = self.models[name]
        base = model.base or self.base
        return base, [*(self.set_gan if base == "gan" else self.set), *model.set]

    def recipe(self, name: str) -> Recipe | GanRecipe:
        """The recipe of a model that is to be trained.

        Raises:
            HeadwayError: naming the model and what is wrong with its base or overrides.
        """
        base, overrides = self.settings(name)
        try:
            return load_recipe(base).with_overrides(overrides)
        except HeadwayError as error:
            raise HeadwayError(f"Model {name!r}: {error}") from None

    def origin(self, name: str) -> tuple[Any, ...]:
        """What a model is made from; what a folder holds of it is of use as long as this stays."""
        return self.models[name].run, *Experiment.settings(self, name)

    def refuse_another(self, out: Path, same: Sequence[str] = ()) -> None:
        """Refuse a folder whose experiment differs in the origin of a model that both have, or in one of the keys ``same``.

        Raises:
            HeadwayError: naming all that differs.
        """
        kept = out / "experiment.yaml"
        if not kept.is_file():
            return
        before = type(self).load(kept)
        changed = [key for key in same if getattr(before, key) != getattr(self, key)]
        both = [name for name in before.models if name in self.models]
        changed += [f"model {name}" for name in both if before.origin(name) != self.origin(name)]
        if changed:
            raise HeadwayError(
                f"{out} holds an experiment that differs in {', '.join(changed)}: choose another --out, or give the same one."
            )

    def train(self, out: Path, jobs: int, tell: Callable[[str], None]) -> tuple[dict[str, Run], dict[str, str]]:
        """Train what is not trained yet, ``jobs`` at a time; what is given by a run folder is taken.

        Returns:
            The finished runs by name, in the experiment's order, and why the others failed.
        """
        (out / "logs").mkdir(parents=True, exist_ok=True)
        runs = {name: Run(model.run or out / "models" / name) for name, model in self.models.items()}
        failed: dict[str, str] = {}
        waiting = []
        for name, run in runs.items():
            if self.models[name].run is not None:
                Run.existing(run.folder)
            elif not finished(run):
                self.recipe(name)  # a mistake is told before anything is trained
                base, overrides = self.settings(name)
                command = (sys.executable, "-m", "headway", "train", base, *overrides, "--out", str(run.folder))
                waiting.append(Job(name, command, out / "logs" / f"{name}.log"))
        if waiting:
            tell(
                f"Training {len(waiting)} of {len(runs)} models, {jobs} at a time: {', '.join(j.name for j in waiting)}"
            )
        for done, (job, code) in enumerate(local(waiting, jobs, 1) if waiting else (), 1):
            if code:
                failed[job.name] = last_words(job.log)
            tell(f"{done} of {len(waiting)}: {job.name}{f' failed: {failed[job.name]}' if code else ''}")
        return {name: run for name, run in runs.items() if name not in failed}, failed

    def gans(self, runs: Mapping[str, Run]) -> list[str]:
        """Which of the models are GANs."""
        return [name for name, run in runs.items() if is_gan(run.folder)]


def preset(experiment: str, name: str) -> Path:
    """The file of a built-in experiment: of "consistency" or "landscape"."""
    folder = Path(str(resources.files("headway.experiments"))) / "presets"
    known = sorted(file.stem.removeprefix(f"{experiment}-") for file in folder.glob(f"{experiment}-*.yaml"))
    if name not in known:
        raise unknown(f"{experiment} preset", name, known)
    return folder / f"{experiment}-{name}.yaml"


def finished(run: Run) -> bool:
    """Whether a run has a complete checkpoint of its whole budget."""
    if not run.recipe_file.is_file():
        return False
    whole = run.complete_checkpoints()
    return bool(whole) and int(whole[-1].name) >= load_recipe(run.recipe_file).train.images
