"""The consistency experiment: verdicts from intervals, and a small one from its file to its page."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from headway import gan
from headway.cli.studies import app
from headway.consistency import consistency_score
from headway.errors import HeadwayError
from headway.experiments.consistency import ConsistencyExperiment, estimate, run_consistency
from headway.experiments.consistency_analysis import analyse
from headway.experiments.consistency_models import GAUSSIAN, Models, score
from headway.experiments.consistency_verdicts import Change, Estimate, Evidence, Group, Identity, mean, verdicts
from headway.experiments.models import preset
from headway.gan import load_recipe
from headway.training import Run, train

CONDITIONS = ("heun 18, pixels", "heun 18, features", "ancestral 64, pixels")


def about(*values: float, half: float = 0.05) -> dict[str, Estimate]:
    """Estimates with symmetric intervals, by condition; the last value stands for the rest."""
    every = [*values, *[values[-1]] * (len(CONDITIONS) - len(values))]
    return {at: Estimate(v, v - half, v + half, torch.zeros(1)) for at, v in zip(CONDITIONS, every, strict=True)}


def judged(**given):
    """The verdicts of evidence in which all is as the paper says but for what is given."""
    usual = {
        "groups": {"seed": Group(about(0.7), about(0.3)), "architecture": Group(about(0.5), about(0.2))},
        "gans": about(0.0),
        "gan_gap": about(0.6),
        "x0": Group(about(0.02), about(-0.3)),
        "x0_gap": about(0.5),
        "identity": {"edm": Identity(0.9995, 1e-5, 0.9993)},
        "sigma": 80.0,
        "changes": {},
    }
    return verdicts(Evidence(**usual | given))


def flat(number: float) -> dict[str, float]:
    return dict.fromkeys(CONDITIONS, number)


def test_the_papers_claims_where_all_is_as_it_says():
    same, gans, x0, identity = judged()
    assert [v.word for v in (same, gans, x0, identity)] == ["holds"] * 4
    assert "seed 0.70 [0.65, 0.75], Gaussian control 0.40; architecture 0.50" in same.sentence
    assert "not above random pairs" in gans.sentence
    assert "0.99950" in identity.sentence
    assert "no mark of what a network has learnt" in identity.sentence


@pytest.mark.parametrize(
    ("groups", "word", "said"),
    [
        ({}, "not decided", "no pair"),
        ({"seed": Group(about(0.7), about(0.04))}, "does not hold", "nearer to each other than to the Gaussian: seed."),
        ({"seed": Group(about(0.04), about(-0.2))}, "does not hold", "Not above random pairs: seed."),
        (
            {"seed": Group(about(0.7), about(0.3, 0.0)), "width": Group(about(0.7), about(0.3))},
            "holds in part",
            "Gaussian: seed (heun 18, features; ancestral 64, pixels).",
        ),
    ],
)
def test_same_noise_same_image_needs_chance_and_gaussian_beaten(groups, word, said):
    same = judged(groups=groups)[0]
    assert same.word == word
    assert said in same.sentence


@pytest.mark.parametrize(
    ("gans", "gap", "word", "said"),
    [
        ({}, {}, "not decided", "two GANs"),
        (about(0.2), about(0.4), "holds", "above random pairs"),
        (about(0.7), about(-0.2), "does not hold", "above random pairs"),
        (about(0.7), about(0.02), "not decided", "above random pairs"),
        (about(0.0, 0.3), about(0.5, 0.01), "holds in part", "not above random pairs in heun 18, pixels only"),
    ],
)
def test_gans_are_judged_by_the_gap(gans, gap, word, said):
    verdict = judged(gans=gans, gan_gap=gap)[1]
    assert verdict.word == word
    assert said in verdict.sentence


@pytest.mark.parametrize(
    ("x0", "gap", "word", "said"),
    [
        (None, {}, "not decided", "It takes an x0-model"),
        (Group(about(0.6), about(0.2)), about(0.1), "holds in part", "above random pairs; less than the pairs without"),
        (Group(about(0.6), about(0.2)), about(0.1, 0.0), "holds in part", "less in heun 18, pixels only than"),
        (Group(about(0.6), about(0.2)), about(-0.1), "does not hold", "no less, as far as shown, than"),
        (Group(about(0.6), about(-0.2)), {}, "does not hold", "above random pairs."),
        (Group(about(0.0), about(-0.2)), about(0.7), "holds", "not above random pairs; less"),
        (Group(about(0.6, 0.0), about(-0.2)), {}, "holds in part", "not above random pairs in heun 18, features"),
    ],
)
def test_x0_prediction_is_judged_like_any_other_and_beside_its_peers(x0, gap, word, said):
    verdict = judged(x0=x0, x0_gap=gap)[2]
    assert verdict.word == word
    assert said in verdict.sentence


def test_the_identity_is_read_from_the_lower_end_of_its_interval():
    low = {"a": Identity(0.9905, 0.001, 0.999), "b": Identity(0.9995, 1e-5, 0.999)}
    verdict = judged(identity=low)[3]
    assert verdict.word == "holds in part"
    assert "Below 0.99: a." in verdict.sentence
    assert judged(identity={"a": low["a"]})[3].word == "does not hold"
    assert "no mark" not in judged(identity={"b": Identity(0.9995, 1e-5, 0.8)})[3].sentence


@pytest.mark.parametrize(
    ("difference", "spread", "word", "said"),
    [
        (about(0.1), flat(0.02), "raises it", "0.100 [0.050, 0.150]; plain pairs lie 0.020 apart"),
        (about(-0.1), flat(0.02), "lowers it", "-0.100"),
        (about(0.01), flat(0.0), "no change shown", "apart"),
        (about(0.1), flat(0.2), "no change shown", "0.200 apart"),
        (about(0.1, 0.0), flat(0.02), "differs by sampler or space", "Up: heun 18, pixels."),
        (about(0.1), {}, "not decided", "one plain pair only"),
        (about(0.0), {}, "no change shown", "one plain pair only"),
    ],
)
def test_a_technique_changes_it_beyond_its_interval_and_the_spread_of_plain_pairs(difference, spread, word, said):
    verdict = judged(changes={"clts": Change(difference, spread)})[4]
    assert verdict.word == word
    assert said in verdict.sentence


def test_means_and_differences_are_paired():
    generator = torch.Generator().manual_seed(0)
    shared, *own = torch.randn(4, 200, 12, generator=generator)
    a, b, c = (shared + 0.5 * part for part in own)
    with_b, with_c = (Estimate.score(score(a, other)) for other in (b, c))
    assert mean([with_b, with_c]).value == pytest.approx((with_b.value + with_c.value) / 2)
    unpaired = math.hypot(with_b.high - with_b.low, with_c.high - with_c.low)
    difference = with_b - with_c
    assert difference.low < 0 < difference.high
    assert difference.high - difference.low < unpaired
    same = with_b - with_b
    assert (same.value, same.low, same.high) == (0, 0, 0)


FILE = """
name: small
question: Are they alike?
base: digits-edm
set: [train.images=192, train.batch=64, network.model_channels=16]
set_gan: [data.source=digits, data.heldout=0.3, train.images=192, train.batch=64, network.width=4]
models:
  plain: []
  other seed: [train.seed=1]
  twin: {run: RUN, differs: copy}
  x0: {set: [train.seed=1, framework.prediction=x0], differs: prediction}
  clts: {set: [noise=clts], differs: technique}
  clts 1: {set: [train.seed=1, noise=clts], differs: technique}
  gan: {base: gan}
  gan 1: {base: gan, set: [train.seed=1]}
noises: 24
curve_noises: 16
shown: 4
samplers: [{solver: heun, steps: 4}, {solver: ancestral, steps: 3}]
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The experiment's file, and a folder in which all models are trained, as the command would."""
    folder = tmp_path_factory.mktemp("consistency")
    file, out = folder / "small.yaml", folder / "out"
    file.write_text(FILE.replace("RUN", str(out / "models" / "plain")), encoding="utf-8")
    experiment = ConsistencyExperiment.load(file)
    for name, model in experiment.models.items():
        if model.run is None:
            base, overrides = experiment.settings(name)
            recipe = load_recipe(base).with_overrides(overrides)
            run = gan.train if base == "gan" else train
            run(recipe, out / "models" / name, progress=False)
    return file, out


@pytest.fixture(scope="module")
def finished(small):
    """The same after a run, with its record and what it said."""
    file, out = small
    said: list[str] = []
    record = out.parent / "records" / "2026-01-02-small"
    page = run_consistency(file, out, record=record, command="headway consistency x", tell=said.append)
    return file, out, record, page, said


def test_the_checkpoints_of_the_curves_are_kept(small):
    file, out = small
    experiment = ConsistencyExperiment.load(file)
    kept = {name: "log.keep=12" in experiment.settings(name)[1] for name in experiment.models if name != "twin"}
    assert [name for name, all_of_them in kept.items() if all_of_them] == ["plain", "other seed", "gan", "gan 1"]
    assert len(Run(out / "models" / "plain").complete_checkpoints()) == 3
    assert len(Run(out / "models" / "x0").complete_checkpoints()) == 2


def test_page_results_and_record(finished):
    _, out, record, page, _ = finished
    html = page.read_text(encoding="utf-8")
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    first = results["verdicts"][0]
    assert f"{first['claim']}: <b>{first['word']}</b>" in html.split("<h2>")[0]
    for heading in ("Same noise", "Verdicts", "Scores by what differs", "All pairs", "How good", "Where and when"):
        assert f"<h2>{heading}" in html
    names = {p.name for p in record.iterdir()}
    assert {"experiment.yaml", "results.json", "README.md", "report.html"} <= names
    markdown = (record / "README.md").read_text(encoding="utf-8")
    assert all(name in markdown for name in names if name.endswith(".png"))
    assert "2026-01-02-small/README.md" in (record.parent / "INDEX.md").read_text(encoding="utf-8")


def test_scores_of_a_copy_and_of_the_gaussian(finished, small):
    """A model and its copy: 1 in every condition, infinite PSNR. The Gaussian's score is that of its own images."""
    file, out, *_ = finished
    pairs = {
        frozenset((p["a"], p["b"])): p for p in json.loads((out / "results.json").read_text(encoding="utf-8"))["pairs"]
    }
    copy = pairs[frozenset(("plain", "twin"))]
    assert all(value == pytest.approx(1, abs=1e-9) for scores in copy["scores"].values() for value in scores)
    assert copy["likeness"]["heun 4, PSNR"][0] is None
    assert copy["likeness"]["heun 4, SSIM"][0] == pytest.approx(1)
    assert copy["likeness"]["heun 4, SSIM"][1] < 0.99
    experiment = ConsistencyExperiment.load(file)
    models = opened(small)
    plain, gaussian = (models.images(name, experiment.samplers[0]) for name in ("plain", GAUSSIAN))
    expected = consistency_score(plain, gaussian, torch.Generator().manual_seed(0))
    found = pairs[frozenset(("plain", GAUSSIAN))]["scores"]["heun 4, pixels"]
    assert found == pytest.approx([expected.score, expected.low, expected.high])


def opened(small) -> Models:
    file, out = small
    experiment = ConsistencyExperiment.load(file)
    runs = {name: Run(model.run or out / "models" / name) for name, model in experiment.models.items()}
    return Models(runs, out, experiment.noises, experiment.curve_noises, lambda said: None)


def test_evidence_is_gathered_from_the_right_pairs(finished, small):
    experiment = ConsistencyExperiment.load(small[0])
    models = opened(small)
    models.judge.__dict__["ceiling"] = math.inf  # all count as good enough
    differs = {name: model.differs for name, model in experiment.models.items()}
    found = analyse(models, experiment.samplers, differs, None)
    evidence, at = found.evidence, "heun 4, pixels"

    def value(a, b):
        return found.score(a, b, at).value

    assert list(evidence.groups) == ["seed", "copy"]
    seed = evidence.groups["seed"]
    assert seed.score[at].value == pytest.approx(value("plain", "other seed"))
    control = (value("plain", GAUSSIAN) + value("other seed", GAUSSIAN)) / 2
    assert seed.beyond[at].value == pytest.approx(seed.score[at].value - control)
    assert evidence.gans[at].value == pytest.approx(value("gan", "gan 1"))
    x0 = [value("x0", name) for name in ("plain", "other seed", "twin")]
    assert evidence.x0.score[at].value == pytest.approx(sum(x0) / 3)
    # "twin" is the reference's copy, so it is no plain pair of another seed: there is one, and no spread.
    assert list(evidence.changes) == [
        "clts against the plain plain",
        "clts 1 against the plain plain",
        "clts and clts 1",
    ]
    own = evidence.changes["clts and clts 1"]
    assert own.difference[at].value == pytest.approx(value("clts", "clts 1") - value("plain", "other seed"))
    assert own.spread == {}
    assert {v.word for v in found.verdicts} >= {"holds"}  # the identity: of any denoiser at sigma 80


def test_curves_end_where_the_images_are(finished):
    _, out, *_ = finished
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    curves = results["curves"]
    swaps = curves["swaps"]
    first = swaps["against plain (the high noise)"]
    assert first["at"] == sorted(first["at"], reverse=True)
    steps = curves["steps"]["plain and other seed, heun 4"]
    assert len(steps["at"]) == 4
    training = curves["training"]["plain and other seed"]
    assert training["at"] == [64, 128, 192]
    # The last step's estimate is the image, and the last checkpoint is the model.
    assert steps["value"][-1] == pytest.approx(training["value"][-1], abs=1e-4)
    assert len(curves["training"]["gan and gan 1"]["at"]) == 3
    assert curves["identity"]["plain"]["value"][-1] > 0.99


def test_started_again_nothing_is_trained_or_drawn(finished, small):
    file, out, *_ = finished
    said: list[str] = []
    before = {p: p.stat().st_mtime_ns for p in (out / "images").iterdir()}
    run_consistency(file, out, tell=said.append)
    assert not [words for words in said if words.startswith("  ") or "Training" in words]
    assert {p: p.stat().st_mtime_ns for p in (out / "images").iterdir()} == before


def test_another_experiment_in_the_same_folder_is_refused(finished, tmp_path):
    file, out, *_ = finished
    other = tmp_path / "other.yaml"
    other.write_text(file.read_text(encoding="utf-8").replace("noise=clts", "noise=clts, lr=1e-4"), encoding="utf-8")
    with pytest.raises(HeadwayError, match="differs in model clts, model clts 1"):
        run_consistency(other, out, tell=lambda said: None)


def test_models_of_other_images_are_refused(small, tmp_path):
    _, out = small
    other = tmp_path / "other"
    train("digits-edm", other, overrides=["train.images=64", "train.batch=64", "data.heldout=0.4"], progress=False)
    runs = {"plain": Run(out / "models" / "plain"), "other": Run(other)}
    with pytest.raises(HeadwayError, match="trained on different images"):
        Models(runs, tmp_path, 16, 16, lambda said: None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("couple: [plain, plane]", "names the model 'plane'"),
        ("samplers: [{solver: heun, steps: 4}, {solver: heun, steps: 4}]", "must be different"),
        ("noises: 4", "greater than or equal to 8"),
        ("models: {a/b: []}", "name of a folder"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, change, said):
    key = change.split(":")[0]
    text = "\n".join(line for line in FILE.splitlines() if not line.startswith(f"{key}:"))
    if key == "models":
        text = "\n".join(line for line in text.splitlines() if not line.startswith("  "))
    file = tmp_path / "wrong.yaml"
    file.write_text(f"{text}\n{change}\n", encoding="utf-8")
    with pytest.raises(HeadwayError, match=said):
        ConsistencyExperiment.load(file)


@pytest.mark.parametrize("command", ["consistency", "landscape"])
def test_a_mistake_in_a_model_names_the_model(command, tmp_path):
    file = tmp_path / "e.yaml"
    file.write_text(
        "name: e\nquestion: q\nset: [data.source=digits]\nmodels: {good: [], bad: [noise=cltss]}\n", encoding="utf-8"
    )
    shown = CliRunner().invoke(app, [command, str(file), "--dry-run", "--out", str(tmp_path / "o")])
    assert isinstance(shown.exception, HeadwayError)
    assert "Model 'bad': " in str(shown.exception)
    assert "Did you mean 'clts'" in str(shown.exception)
    assert not (tmp_path / "o").exists()


def test_the_built_in_experiment_says_what_it_costs(tmp_path):
    experiment = ConsistencyExperiment.load(preset("consistency", "quick"))
    words = estimate(experiment, tmp_path)
    assert "7 of 7 models" in words
    assert "5 diffusion models x 200 noises" in words
    assert "2 GANs" in words
    with pytest.raises(HeadwayError, match="'quick'"):
        preset("consistency", "quik")


def test_the_command_takes_a_file_or_a_preset(tmp_path):
    runner = CliRunner()
    for given in ([], ["file.yaml", "--preset", "quick"]):
        assert "one of the two" in str(runner.invoke(app, ["consistency", *given]).exception)
    dry = runner.invoke(app, ["consistency", "--preset", "quick", "--out", str(tmp_path / "out"), "--dry-run"])
    assert dry.exit_code == 0
    assert "To train: 7 of 7 models" in dry.output
    assert not (tmp_path / "out").exists()


def test_the_study_of_this_repository_is_one():
    """All its recipes are possible, and it has the models that its questions take."""
    experiment = ConsistencyExperiment.load(Path(__file__).parents[1] / "studies" / "consistency-fashion.yaml")
    for name in experiment.models:
        base, overrides = experiment.settings(name)
        load_recipe(base).with_overrides(overrides)
    kinds = [model.differs for model in experiment.models.values()]
    assert {"seed", "prediction", "technique"} <= set(kinds)
    assert experiment.noises >= 1000
