"""The experiment on loss landscapes: frozen losses to the last bit, points that are kept, figures and words, page and surfaces."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy import stats
from typer.testing import CliRunner

from headway import gan
from headway.cli.studies import app
from headway.denoiser import Denoiser
from headway.errors import HeadwayError
from headway.experiments import landscape_pieces
from headway.experiments.landscape import LandscapeExperiment
from headway.experiments.landscape_frozen import EVERY_SIGMA, Frozen, InBand, folded, rates
from headway.experiments.landscape_kept import Kept, found_piece
from headway.experiments.landscape_page import answer, build_page
from headway.experiments.landscape_pieces import Look, look_at
from headway.experiments.landscape_run import gather, run_landscape
from headway.experiments.landscape_surfaces import write_surfaces
from headway.experiments.landscape_verdict import claims, difference, techniques, unfair
from headway.experiments.models import preset
from headway.landscape import Plane, between, flat, hessian, line, plane, stability_bound, top_eigenvalues
from headway.noise import LogNormal, clts
from headway.training import Run, open_data
from headway.training import train as train_diffusion
from headway.training.draws import Draws
from headway.training.objective import Objective
from headway.training.run import build_framework, load_checkpoint

CPU = torch.device("cpu")
TINY = """
name: tiny
question: Is it smoother?
base: digits-edm
set: [network.model_channels=8, train.images=256, train.batch=64, log.checkpoint=64, log.keep=4, log.samples=0]
set_gan: [data.source=digits, data.heldout=0.3, network.width=4, train.images=256, log.checkpoint=64, log.keep=4, log.samples=0]
models:
  edm-0: [seed=0]
  edm-1: [seed=1]
  curriculum: {set: [noise=clts, optim.law=mdlrc, seed=0], differs: CLTS + MDLRC}
  gan-0: {base: gan, set: [seed=0, loss.r1=0.1]}
  gan-1: {base: gan, set: [seed=1, loss=hinge]}
batch: 16
lines: {points: 5, directions: 1}
planes: {points: 3, bands: true}
curvature: {stages: 2, probes: 2, steps: 4, rotation: 2, tol: 0.02}
samples: 40
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """The folder of a tiny experiment with its models trained, here rather than by processes of their own."""
    folder = tmp_path_factory.mktemp("landscape")
    (folder / "pieces").mkdir()
    (folder / "experiment.yaml").write_text(TINY, encoding="utf-8")
    experiment = LandscapeExperiment.load(folder / "experiment.yaml")
    for name in experiment.models:
        base, overrides = experiment.settings(name)
        train = gan.train if base == "gan" else train_diffusion
        train(base, folder / "models" / name, overrides=overrides, progress=False, tell=lambda message: None)
    return folder


def look(out: Path, name: str) -> Look:
    return Look(LandscapeExperiment.load(out / "experiment.yaml"), out, name)


def bits(*modules: torch.nn.Module) -> list[torch.Tensor]:
    return [tensor.clone() for module in modules for tensor in module.state_dict().values()]


def same(before: list[torch.Tensor], after: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


# --- Frozen losses ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["edm-0", "curriculum"])
def test_the_value_at_the_origin_is_the_recipes_own_loss_to_the_last_bit(out, name):
    run = Run(out / "models" / name)
    recipe, found = run.recipe(), run.newest_checkpoint()
    images, _ = open_data(recipe)
    here = look(out, name)
    own = Objective(recipe, build_framework(recipe), here.frozen.feed, Draws(0, len(images), recipe.image_shape))
    denoiser: Denoiser = load_checkpoint(recipe, found, "raw")
    with torch.no_grad():
        expected = float(own(denoiser, 0, 16, recipe.train.images).objective.mean())
        scene = here.scene("diffusion", found)
        origin, way = flat(scene.module), here.direction(scene.module, 1)
        assert line(scene.loss, scene.module, origin, way, [-1, 0, 1])[1] == expected
        grid = plane(scene.loss, scene.module, Plane(origin, way, way.flip(0)), [-1, 0, 1], [-1, 0, 1])
        assert grid[1, 1] == expected
        # From the untrained weights the checkpoint is met at the other end, again to the bit.
        start = here.weights(None)["diffusion"]
        assert line(scene.loss, scene.module, start, between(start, origin), [1.0])[0] == expected


@pytest.mark.parametrize("name", ["gan-0", "gan-1"])
def test_both_players_are_seen_at_the_checkpoints_own_losses(out, name):
    here = look(out, name)
    generator, discriminator = gan.load_pair(out / "models" / name)
    discriminator.eval()
    losses, r1 = gan.LOSSES[here.recipe.loss.name], here.recipe.loss.r1
    latents = here.frozen.draws.torch_blocks("latent", 0, 16, lambda n, g: torch.randn(n, 64, generator=g))
    real, _ = here.frozen.feed.batch(here.frozen.draws.indices(0, 16))
    with torch.no_grad():
        fake = generator(latents)
        fools = float(losses.generator(discriminator(fake)))
        tells = losses.discriminator(*discriminator(torch.cat([real, fake])).chunk(2))
    if r1:
        tells = tells.detach() + (r1 * gan.r1_penalty(discriminator, real)).detach()
    with torch.no_grad():
        for landscape, expected in (("generator", fools), ("discriminator", float(tells))):
            scene = here.scene(landscape, here.checkpoints[-1])
            module = folded(scene.module)
            assert line(scene.loss, module, flat(module), here.direction(module, 1), [0.0])[0] == expected
            assert float(scene.loss(scene.module)) == expected


def test_the_opponent_stands_still_and_spectral_normalisation_does_not_step(out):
    here = look(out, "gan-0")
    game = here.frozen.gan(here.recipe, here.checkpoints[-1])
    generator, discriminator = (module for module, _ in game.players)
    before = bits(discriminator), [p.clone() for p in generator.parameters()]
    for scene in game.scenes.values():
        first = float(scene.loss(scene.module).detach())
        top_eigenvalues(hessian(scene.loss, scene.module), 1, torch.Generator(), tol=0.1)
        with torch.no_grad():
            line(scene.loss, scene.module, flat(scene.module), here.direction(scene.module, 1), [-0.1, 0.1])
            assert float(scene.loss(scene.module)) == first
    # All of the discriminator, singular vectors included; of the generator the weights (its running statistics are not used).
    assert same(before[0], bits(discriminator))
    assert same(before[1], list(generator.parameters()))


def test_a_folded_discriminator_is_the_same_function_without_poles(out):
    here = look(out, "gan-0")
    scene = here.scene("discriminator", here.checkpoints[-1])
    plain = folded(scene.module)
    images = torch.randn(5, *here.recipe.image_shape)
    before = scene.module(images)
    assert torch.equal(plain(images), before)
    plain.requires_grad_(True)
    with torch.no_grad():
        next(plain.parameters()).mul_(2)
    assert torch.equal(scene.module(images), before)  # the original is left alone
    assert not any("original" in name for name, _ in plain.named_parameters())
    generator = here.scene("generator", here.checkpoints[-1]).module
    assert folded(generator) is generator


def test_bands_draw_inside_and_the_whole_range_changes_no_bit():
    q = torch.rand(500, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for whole in (LogNormal(), clts(LogNormal())):
        assert torch.equal(InBand(whole, EVERY_SIGMA).icdf(q, 0.7), whole.icdf(q, 0.7))
        inside = InBand(whole, (0.15, 1.0))
        sigma = inside.icdf(q, 0.7)
        assert sigma.min() >= 0.15 * (1 - 1e-9)
        assert sigma.max() <= 1.0 * (1 + 1e-9)
        assert torch.allclose(inside.cdf(sigma, 0.7), q, atol=1e-6)
        grid = torch.linspace(0.15, 1.0, 4001, dtype=torch.float64)
        assert float(torch.trapezoid(inside.log_prob(grid, 0.7).exp(), grid)) == pytest.approx(1, abs=1e-3)


def test_bands_and_the_reference_change_the_loss_as_they_say(out):
    here = look(out, "curriculum")
    at = here.checkpoints[-1]
    with torch.no_grad():
        losses = {
            b: float((s := here.scene("diffusion", at, b)).loss(s.module)) for b in ("all", "low", "high", "reference")
        }
    assert len(set(losses.values())) == 4
    plain = look(out, "edm-0")
    with torch.no_grad():
        own, same_loss = (
            float((s := plain.scene("diffusion", plain.checkpoints[-1], b)).loss(s.module))
            for b in ("all", "reference")
        )
    assert own == same_loss  # a plain recipe trains with the reference's loss


def test_other_images_are_refused(out):
    recipe = Run(out / "models" / "edm-0").recipe()
    other = recipe.model_copy(update={"data": recipe.data.model_copy(update={"fingerprint": "another"})})
    with pytest.raises(HeadwayError, match="no longer holds the images"):
        Frozen(other, 8, 0, CPU)


def test_rates_are_those_of_the_step_that_led_there(out):
    run = Run(out / "models" / "curriculum")
    for record in run.metrics():
        lr, beta1 = rates(run.recipe(), record["nimg"])
        assert (lr, beta1) == (pytest.approx(record["lr"]), pytest.approx(record["beta1"]))


# --- Pieces and what is kept ---------------------------------------------------------------------------------------------------


def test_points_survive_a_line_that_was_cut_short(tmp_path):
    file = tmp_path / "points.jsonl"
    kept = Kept(file)
    kept[0.5], kept[1.0, -1.0], kept["row"] = float("inf"), 2.0, {"a": [1.5, None]}
    with file.open("a", encoding="utf-8") as stream:
        stream.write("[7.0, 3.")
    again = Kept(file)
    assert dict(again) == {0.5: float("inf"), (1.0, -1.0): 2.0, "row": {"a": [1.5, None]}}
    again[8.0] = 4.0
    assert Kept(file)[8.0] == 4.0


class PressedCtrlC(Kept):
    """Ctrl-C arrives after the second new point."""

    left = 2

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        PressedCtrlC.left -= 1
        if PressedCtrlC.left == 0:
            raise KeyboardInterrupt


def test_an_interrupted_piece_goes_on_where_it_was(out, monkeypatch):
    evaluated = []
    true_line = landscape_pieces.line

    def counted(loss, module, start, way, alphas, done):
        before = bits(module)

        def noted(module):
            evaluated.append(1)
            return loss(module)

        try:
            return true_line(noted, module, start, way, alphas, done)
        finally:  # also after Ctrl-C the weights are those of the checkpoint
            assert same(before, bits(module))

    monkeypatch.setattr(landscape_pieces, "line", counted)
    with monkeypatch.context() as patch:
        patch.setattr(landscape_pieces, "Kept", PressedCtrlC)
        with pytest.raises(KeyboardInterrupt):
            look_at(out, "edm-1", ["lines"], "edm-0")
    assert len(evaluated) == 2
    assert not (out / "pieces" / "edm-1 lines.json").exists()
    assert look_at(out, "edm-1", ["lines"], "edm-0")
    names = look(out, "edm-1").experiment.line_names(["low", "middle", "high"], partner=True)
    assert len(evaluated) == 5 * len(names)  # none twice
    found = json.loads((out / "pieces" / "edm-1 lines.json").read_text(encoding="utf-8"))["found"]["diffusion"]
    assert set(found) == {n if band is None else f"{n}, {band}" for n, band in names}
    # The line to the next model ends in that model's own loss on the same draws.
    other = look(out, "edm-0")
    scene = other.scene("diffusion", other.checkpoints[-1])
    with torch.no_grad():
        expected = float(scene.loss(scene.module))
    way = found["to the next model"]
    assert way["losses"][way["alphas"].index(1.0)] == expected


def test_a_piece_that_fails_is_said_and_the_others_go_on(out, monkeypatch, capsys):
    def refuse(look, partner):
        raise HeadwayError("no.")

    pieces = {"planes": refuse, "lines": lambda look, partner: {"found": 1}}
    monkeypatch.setattr(landscape_pieces, "PIECES", pieces)
    assert not look_at(out, "curriculum", ["planes", "lines"], None)
    assert "Error: planes: no." in capsys.readouterr().err
    assert (out / "pieces" / "curriculum lines.json").is_file()
    (out / "pieces" / "curriculum lines.json").unlink()


@pytest.fixture(scope="module")
def results(out):
    """Everything measured, in this process."""
    experiment = LandscapeExperiment.load(out / "experiment.yaml")
    runs = {name: Run(out / "models" / name) for name in experiment.models}
    gans = {name: name.startswith("gan") for name in runs}
    for name in runs:
        assert look_at(out, name, list(landscape_pieces.PIECES), experiment.partner(name, gans))
    return gather(experiment, out, runs, {})


def test_curvature_is_that_of_the_checkpoint(out, results):
    here = look(out, "edm-0")
    scene = here.scene("diffusion", here.checkpoints[-1])
    rows = results["models"]["edm-0"]["curvature"]["diffusion"]
    assert [(row["nimg"], row["band"]) for row in rows] == [
        (64, "all"),
        (256, "all"),
        (256, "low"),
        (256, "middle"),
        (256, "high"),
    ]
    row = rows[1]
    h = hessian(scene.loss, scene.module)
    assert row["top"][0] == pytest.approx(top_eigenvalues(h, 1, torch.Generator().manual_seed(7))[0], rel=0.03)
    # The share of the stable step: the highest eigenvalue of diag(p)^-1/2 H diag(p)^-1/2 from the checkpoint's own file.
    moments = load_file(here.checkpoints[-1] / "optimizer.safetensors")
    p = []
    for name, _ in scene.module.named_parameters():
        v = moments[f"exp_avg_sq/{name}"].double() / (1 - 0.999 ** float(moments[f"step/{name}"]))
        p.append((v.sqrt() + 1e-8).flatten())
    root = torch.cat(p).numpy() ** -0.5
    vector = np.random.default_rng(0).normal(size=len(root))
    for _ in range(200):  # the power method; the highest eigenvalue is the largest by far in size
        vector = root * h.matvec(root * vector)
        size = np.linalg.norm(vector)
        vector /= size
    assert row["edge"] == pytest.approx(row["lr"] * size / stability_bound(0.9), rel=0.05)


def test_a_technique_is_also_seen_by_the_reference_loss(results):
    bands = [row["band"] for row in results["models"]["curriculum"]["curvature"]["diffusion"]]
    assert bands == ["all", "reference"]
    found = techniques(results)["CLTS + MDLRC"]
    assert found["lambda1"].n == (1, 1)
    assert found["lambda1"].indicative


def test_results_page_and_surfaces(out, results, tmp_path):
    json.dumps(results, allow_nan=False)
    model = results["models"]["gan-0"]
    assert set(model["planes"]["generator"]) == {"random", "path"}
    assert len(model["planes"]["discriminator"]["path"]["path"]) == 5  # the initial weights and four checkpoints
    assert model["planes"]["generator"]["path"]["path"][-1] == pytest.approx([0, 0])
    assert 0 <= model["curvature"]["rotation"]["weights"][0] <= 1
    assert set(results["models"]["edm-0"]["planes"]["diffusion"]) == {
        "random",
        "path",
        *(f"random, {b}" for b in ("low", "middle", "high")),
    }
    experiment = LandscapeExperiment.load(out / "experiment.yaml")
    text, pictures = build_page(experiment, results, "headway landscape", "versions").markdown()
    assert text.startswith("# Is it smoother?\n\n**Answer.** Indicative only (2 diffusion models, 2 GANs;")
    assert set(unfair(results)) <= set(results["models"])
    assert len(pictures) >= 15
    write_surfaces(results, tmp_path / "surfaces.html")
    html = (tmp_path / "surfaces.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|<link|src=", html)
    shown = json.loads(re.search(r"id=surfaces>(.*?)</script>", html, re.S).group(1))
    assert len(shown) == 2 * 5 + 2 + 2 * 2 * 2
    first = results["models"]["edm-0"]["planes"]["diffusion"]["random"]
    assert np.array(shown[0]["losses"]) == pytest.approx(np.array(first["losses"]), rel=1e-4)


def test_changed_grids_are_measured_anew_and_changed_models_refused(out, results, tmp_path, monkeypatch):
    experiment = LandscapeExperiment.load(out / "experiment.yaml")
    run = Run(out / "models" / "edm-0")
    finer = LandscapeExperiment.model_validate(experiment.model_dump() | {"lines": {"points": 9, "directions": 1}})
    for asked, there in ((experiment, True), (finer, False)):
        wanted = landscape_pieces.asked(asked, "lines", "edm-1", run)
        assert (found_piece(out, "edm-0", "lines", wanted) is not None) is there
    other = tmp_path / "other.yaml"
    other.write_text(
        TINY.replace("edm-1: [seed=1]", "edm-1: [seed=2]").replace("batch: 16", "batch: 8"), encoding="utf-8"
    )
    with pytest.raises(HeadwayError, match="differs in batch, model edm-1"):
        run_landscape(other, out, tell=lambda message: None)


def test_a_finished_experiment_only_writes_its_page(out, results, tmp_path):
    said: list[str] = []
    page = run_landscape(
        out / "experiment.yaml", out, record=tmp_path / "records" / "2030-01-01-tiny", tell=said.append
    )
    assert page == out / "report.html"
    assert any("0 models to train, 0 evaluations" in line for line in said)
    kept = {path.name for path in (tmp_path / "records" / "2030-01-01-tiny").iterdir()}
    assert {"experiment.yaml", "results.json", "report.html", "surfaces.html", "README.md"} <= kept
    assert "2030-01-01-tiny" in (tmp_path / "records" / "INDEX.md").read_text(encoding="utf-8")


# --- The file and the command ----------------------------------------------------------------------------------------------------


def test_the_preset_is_an_experiment_and_its_cost_is_shown_before_the_start(tmp_path):
    assert LandscapeExperiment.load(preset("landscape", "quick")).name == "landscape-quick"
    shown = CliRunner().invoke(app, ["landscape", "--preset", "quick", "--dry-run", "--out", str(tmp_path / "o")])
    assert shown.exit_code == 0
    assert re.search(
        r"4 models to train, [\d,]+ evaluations of frozen losses, about [\d,]+ Hessian-vector products", shown.output
    )
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("lines: {points: 6}", "points must meet both of its ends"),
        ("planes: {points: 4}", "odd number"),
        ("bands: {low: [1, 0.5]}", "0 <= from < to"),
        ("bands: {all: [0, 1]}", "cannot be called 'all'"),
        ("spectrum: {}", "unknown key 'spectrum'"),
    ],
)
def test_mistakes_are_refused(tmp_path, change, error):
    file = tmp_path / "e.yaml"
    file.write_text(f"name: e\nquestion: q\nmodels: {{a: [seed=0]}}\n{change}\n", encoding="utf-8")
    with pytest.raises(HeadwayError, match=re.escape(error)):
        LandscapeExperiment.load(file)


def test_a_model_is_joined_with_the_next_seed_of_its_own_kind():
    experiment = LandscapeExperiment.model_validate(
        {
            "name": "e",
            "question": "q",
            "models": {"a": [], "b": [], "c": {"differs": "FDM"}, "g": {"base": "gan"}, "h": {"base": "gan"}, "d": []},
        }
    )
    gans = {name: name in "gh" for name in experiment.models}
    assert {name: experiment.partner(name, gans) for name in gans} == {
        "a": "b",
        "b": "d",
        "d": "a",
        "c": None,
        "g": "h",
        "h": "g",
    }


# --- Verdicts --------------------------------------------------------------------------------------------------------------------


def test_differences_are_welchs_and_students():
    a, b = [1.0, 2.0, 4.0], [8.0, 9.0, 20.0, 11.0]
    found = difference(a, b, ratio=True)
    expected = stats.ttest_ind(np.log(a), np.log(b), equal_var=False).confidence_interval()
    assert found.value == pytest.approx(stats.gmean(a) / stats.gmean(b))
    assert (found.low, found.high) == (pytest.approx(np.exp(expected.low)), pytest.approx(np.exp(expected.high)))
    paired = difference(a, b[:3], ratio=False, paired=True)
    d = np.subtract(a, b[:3])
    half = stats.t.ppf(0.975, 2) * d.std(ddof=1) / np.sqrt(3)
    assert (paired.value, paired.low, paired.high) == pytest.approx((d.mean(), d.mean() - half, d.mean() + half))


def test_words_follow_from_intervals():
    assert difference([1, 1.1, 0.9], [2, 2.1, 1.9], ratio=True).direction == "lower"
    assert difference([2, 2.1, 1.9], [1, 1.1, 0.9], ratio=False).direction == "higher"
    assert difference([1, 2, 3], [1.5, 2.5, 2], ratio=True).direction == "no difference shown"
    few = difference([1.0, 1.1], [2, 2.1, 1.9], ratio=True)
    assert few.indicative
    assert few.direction == "lower"
    assert difference([1.0, 1.9], [2, 2.1, 1.9], ratio=True).direction == "no difference shown"
    alone = difference([1.0], [2.0], ratio=True)
    assert (alone.low, alone.high) == (None, None)
    same_everywhere = difference([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], ratio=False)
    assert same_everywhere.direction == "no difference shown"
    with pytest.raises(HeadwayError, match="in pairs"):
        difference([1.0, 2.0], [1.0], ratio=False, paired=True)
    with pytest.raises(HeadwayError, match="positive"):
        difference([1.0, 0.0], [1.0, 2.0], ratio=True)


def synthetic(edges: dict[str, float]) -> dict:
    """Results of models that differ in the share of the stable step only."""
    models = {}
    for name, edge in edges.items():
        is_gan = name.startswith("gan")
        row = {
            "band": "all",
            "edge": edge,
            "top": [2.0, 1, 1, 1, 1],
            "predictiveness": 0.1,
            "positive_share": 0.9,
            "trace": 1.0,
        }
        models[name] = {
            "kind": "gan" if is_gan else "diffusion",
            "differs": "seed",
            "seed": 0,
            "lines": {},
            "planes": {},
            "curvature": {
                landscape: [row] for landscape in (("generator", "discriminator") if is_gan else ("diffusion",))
            },
            "fidelity": {"value": 9.0 if name == "gan-2" else 1.0, "ceiling": 5.0, "floor": 0.5},
        }
    return {"models": models, "failed": {}}


def test_the_answer_says_by_which_figures_and_flags_a_gan_that_is_no_opponent():
    flat_diffusion = {f"edm-{i}": 0.1 + 0.01 * i for i in range(3)} | {f"gan-{i}": 1.0 + 0.1 * i for i in range(3)}
    results = synthetic(flat_diffusion)
    words = {(c.figure.title, c.player): c.word for c in claims(results)}
    assert words["share of the stable step", "generator"] == "smoother"
    assert words["lambda1 / lambda5", "generator"] == "no difference shown"
    assert words["bumps, random lines", "discriminator"] == "not measured"
    said = answer(results)
    assert said.startswith(
        "Against the GAN's generator the diffusion model's loss is **smoother**: 1 of 10 figures (share of the stable step), no "
        "difference shown: 3 of 10 figures, not measured: 6 of 10 figures."
    )
    assert "do not beat the pixel Gaussian: **gan-2**" in said
    turned = synthetic({name: 1 / edge for name, edge in flat_diffusion.items()})
    assert "**rougher**: 1 of 10 figures (share of the stable step)" in answer(turned)
    assert "disagree" not in answer(turned)
    for name in turned["models"]:
        for rows in turned["models"][name]["curvature"].values():
            rows[0]["predictiveness"] = (10.0 if name.startswith("gan") else 1.0) + 0.1 * int(name[-1])
    assert "The figures disagree" in answer(turned)
