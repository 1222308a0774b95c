"""The GAN: its losses against closed forms, its networks at every size, a run that resumes to the bit, the command line."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import nn

import headway
from headway import gan
from headway.errors import HeadwayError
from headway.gan.networks import build
from headway.gan.training import GanTrainer
from headway.training import Run

BATCH = 32
SMALL = [
    "network.width=8",
    "latent=8",
    f"train.batch={BATCH}",
    f"train.images={BATCH * 12}",
    "log.samples=0",
    f"log.tick={BATCH * 2}",
    f"log.checkpoint={BATCH * 4}",
    "evaluation.samples=64",
]


def quiet(out: Path, overrides: list[str], **options):
    options = {"data": "digits", "progress": False, "tell": lambda message: None} | options
    return gan.train("gan", out, overrides=overrides, **options)


def files(run: Path) -> dict[str, dict[str, torch.Tensor]]:
    newest = Run(run).newest_checkpoint()
    return {file.stem: load_file(file) for file in newest.glob("*.safetensors")}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trained GAN, shared by the tests that only read it."""
    folder = tmp_path_factory.mktemp("runs") / "gan"
    quiet(folder, SMALL)
    return folder


# Losses


def test_non_saturating_loss_is_binary_cross_entropy():
    real, fake = torch.randn(2, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).mul(4)
    bce = nn.functional.binary_cross_entropy_with_logits
    ones, zeros = torch.ones_like(real), torch.zeros_like(real)
    loss = gan.LOSSES["non-saturating"]
    torch.testing.assert_close(loss.discriminator(real, fake), bce(real, ones) + bce(fake, zeros))
    torch.testing.assert_close(loss.generator(fake), bce(fake, ones))
    undecided = torch.zeros(3)
    assert float(loss.discriminator(undecided, undecided)) == pytest.approx(2 * math.log(2))


def test_hinge_loss_by_hand():
    loss = gan.LOSSES["hinge"]
    real, fake = torch.tensor([2.0, 0.5, -1.0]), torch.tensor([-3.0, 0.0, 1.0])
    assert float(loss.discriminator(real, fake)) == pytest.approx((0 + 0.5 + 2) / 3 + (0 + 1 + 2) / 3)
    assert float(loss.generator(fake)) == pytest.approx(2 / 3)


def test_r1_of_a_quadratic_has_its_closed_form_and_a_gradient():
    # D(x) = a |x|^2 / 2 has the gradient a x, so the penalty is a^2 E|x|^2 / 2 and its derivative a E|x|^2.
    x = torch.randn(6, 1, 4, 4, dtype=torch.float64)
    a = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    penalty = gan.r1_penalty(lambda images: a / 2 * images.square().flatten(1).sum(1), x)
    square = x.square().flatten(1).sum(1).mean()
    torch.testing.assert_close(penalty, a**2 * square / 2)
    torch.testing.assert_close(torch.autograd.grad(penalty, a)[0], a * square)


# Networks


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(8, 8), (16, 16), (28, 28), (32, 32), (64, 64), (9, 21), (3, 5)])
def test_networks_fit_any_shape(channels, size):
    shape = (channels, *size)
    generator, discriminator = build(shape, width=2, depth=2, latent=5)
    images = generator(torch.randn(4, 5))
    assert images.shape == (4, *shape)
    assert images.abs().max() < 1
    outputs = discriminator(images)
    assert outputs.shape == (4,)
    # Each output is a function of its own image alone.
    torch.testing.assert_close(discriminator.eval()(images)[:1], discriminator(images[:1]))


@pytest.mark.parametrize("norm", ["batch", "none"])
@pytest.mark.parametrize("init", ["normal", "orthogonal", "default"])
def test_options_reach_the_networks(norm, init):
    generator, discriminator = build((1, 16, 16), width=16, norm=norm, init=init, spectral=False)
    assert any(isinstance(m, nn.BatchNorm2d) for m in generator.modules()) is (norm == "batch")
    assert not any(isinstance(m, nn.BatchNorm2d) for m in discriminator.modules())
    weight = discriminator.layers[2].weight.detach().flatten(1)
    match init:
        case "normal":
            assert float(weight.std()) == pytest.approx(0.02, rel=0.05)
        case "orthogonal":
            torch.testing.assert_close(weight @ weight.T, torch.eye(len(weight)), atol=1e-5, rtol=0)
        case "default":
            assert float(weight.abs().max()) == pytest.approx(1 / math.sqrt(weight.shape[1]), rel=0.01)


def test_the_seed_decides_the_weights_and_leaves_the_global_state_alone():
    before = torch.random.get_rng_state()
    same, again, other = (build((1, 8, 8), seed=seed)[0].state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(same[k], again[k]) for k in same)
    assert not torch.equal(same["project.0.weight"], other["project.0.weight"])


def test_spectral_normalisation_bounds_every_singular_value():
    _, discriminator = build((1, 16, 16), width=8, init="default")
    with torch.no_grad():
        for parameter in discriminator.parameters():
            parameter.mul_(5)
        for _ in range(100):
            discriminator(torch.randn(2, 1, 16, 16))
    for module in discriminator.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            assert float(torch.linalg.matrix_norm(module.weight.detach().flatten(1), 2)) == pytest.approx(1, abs=0.01)


def test_standing_statistics_are_those_of_the_weights():
    generator, _ = build((1, 8, 8), width=4, latent=6)
    with torch.no_grad():
        generator(100 * torch.randn(64, 6))  # statistics of something else
    generator.eval().settle()
    assert not generator.training
    settled = {k: v.clone() for k, v in generator.state_dict().items()}
    generator.settle()
    assert all(torch.equal(settled[k], v) for k, v in generator.state_dict().items())
    # With them, eval mode does on a large batch what training mode does by the batch's own statistics.
    z = torch.randn(4096, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(generator(z), generator.train()(z), atol=0.1, rtol=0)


# Training


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param([], id="plain"),
        pytest.param(
            ["loss=hinge", "loss.r1=0.1", "n_dis=2", "xflip=true", "ema=[64, 500]", "spectral=false"], id="everything"
        ),
        pytest.param(["optim=sgd", "ema=[]", "norm=none"], id="bare"),
    ],
)
def test_resuming_is_not_noticed_to_the_bit(tmp_path, extra):
    whole = quiet(tmp_path / "whole", [*SMALL, *extra])
    first = quiet(tmp_path / "parts", [*SMALL, *extra], stop_after=BATCH * 6)
    assert (first.nimg, first.finished) == (BATCH * 6, False)
    second = quiet(tmp_path / "parts", [*SMALL, *extra])
    assert whole.finished
    assert second.finished
    a, b = files(tmp_path / "whole"), files(tmp_path / "parts")
    assert a.keys() == b.keys()
    for stem in a:
        assert a[stem].keys() == b[stem].keys()
        assert all(torch.equal(a[stem][k], b[stem][k]) for k in a[stem]), stem
    timed = ("seconds", "images_per_second")
    records = [[{k: v for k, v in r.items() if k not in timed} for r in t.run.metrics()] for t in (whole, second)]
    assert records[0] == records[1]


def test_the_clock_counts_real_images(tmp_path):
    seen = []
    original = GanTrainer._real

    def noting(self, start):
        seen.append(start)
        return original(self, start)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GanTrainer, "_real", noting)
        trained = quiet(tmp_path, [*SMALL, "n_dis=5"])
    assert trained.nimg == BATCH * 15  # whole turns
    assert seen == list(range(0, BATCH * 15, BATCH))
    # Adam counts its steps: the generator takes one where the discriminator takes five.
    steps = [set(files(tmp_path)[f"optimizer-{player}"]) for player in ("generator", "discriminator")]
    assert all(any(name.startswith("step/") for name in names) for names in steps)
    counts = [
        next(int(v) for k, v in files(tmp_path)[f"optimizer-{player}"].items() if k.startswith("step/"))
        for player in ("generator", "discriminator")
    ]
    assert counts == [3, 15]


def test_an_interrupt_writes_a_checkpoint_and_says_how_to_go_on(tmp_path, monkeypatch):
    original = GanTrainer._turn

    def interrupted(self):
        if self.state.nimg == BATCH * 2:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self)

    monkeypatch.setattr(GanTrainer, "_turn", interrupted)
    messages: list[str] = []
    stopped = quiet(tmp_path, SMALL, tell=messages.append)
    assert stopped.interrupted
    assert Run(tmp_path).newest_checkpoint().name == f"{BATCH * 3:09d}"
    assert "The same command goes on from there." in messages[-1]


def test_a_gradient_that_is_not_finite_stops_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(GanTrainer, "_real", lambda self, start: torch.full((BATCH, 1, 8, 8), math.nan))
    with pytest.raises(HeadwayError, match="gradient of the discriminator was not finite at image 0"):
        quiet(tmp_path, SMALL)


def test_a_run_of_another_recipe_or_kind_is_refused(run, tmp_path):
    with pytest.raises(HeadwayError, match=r"another recipe \(loss\.name: non-saturating there, hinge now"):
        quiet(run, [*SMALL, "loss=hinge"])
    with pytest.raises(HeadwayError, match="this is the recipe of a gan, not of a diffusion model"):
        headway.load(run)
    with pytest.raises(HeadwayError, match="this is the recipe of a diffusion model, not of a GAN"):
        gan.GanRecipe.load("edm")
    assert gan.is_gan(run)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("loss=hing", "Did you mean 'hinge'?"),
        ("loss.gamma=1", "unknown key 'loss.gamma'"),
        ("spectrl=true", "Did you mean 'network.spectral'?"),
        ("sampling.steps=3", "Unknown recipe key 'sampling.steps'"),
        ("init=orthogonl", "Did you mean 'orthogonal'?"),
        ("n_dis=0", "train.n_dis = 0: expected greater than 0"),
        ("data.labels=true", "a GAN here is unconditional"),
        ("data.augment=0.1", "a GAN would learn the augmentation"),
        ("images=3", ""),
    ],
)
def test_mistakes_in_a_recipe_are_named(override, sentence):
    recipe = gan.GanRecipe.load("gan")
    if not sentence:
        assert recipe.with_overrides([override]).train.images == 3
        return
    with pytest.raises(HeadwayError) as error:
        recipe.with_overrides([override])
    assert sentence in str(error.value)


# A trained generator


def test_an_image_is_a_function_of_its_seed(run):
    generator = gan.load(run)
    together = generator.images([5, 7, 2**62])
    assert together.shape == (3, 1, 8, 8)
    assert together.dtype == torch.float32
    torch.testing.assert_close(together[1:2], generator.images([7]))
    torch.testing.assert_close(together, generator.images([5, 7, 2**62], batch=2))
    assert not torch.allclose(together[0], together[1], atol=1e-3)
    with pytest.raises(HeadwayError, match="A seed must lie in"):
        generator.images([-1])


def test_averages_and_the_pair_are_loaded_as_they_were_saved(run):
    saved = files(run)
    (average,) = (stem for stem in saved if stem.startswith("ema-"))
    for ema, stem in ((None, average), ("raw", "generator")):
        state = gan.load(run, ema=ema).state_dict()
        assert all(torch.equal(state[k], saved[stem][k]) for k in state)
    generator, discriminator = gan.load_pair(run)
    assert all(torch.equal(v, saved["generator"][k]) for k, v in generator.state_dict().items())
    assert all(torch.equal(v, saved["discriminator"][k]) for k, v in discriminator.state_dict().items())
    assert not torch.equal(gan.load_pair(run, at=BATCH * 8)[0].project[0].weight, generator.project[0].weight)
    with pytest.raises(HeadwayError, match="keeps no weight average of half-life 3"):
        gan.load(run, ema=3)


# The command line


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "headway", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)


def inside(monkeypatch, capsys, *arguments: object) -> tuple[int, str, str]:
    """The same entry point within this process: exit code, stdout, stderr."""
    from headway.cli import main

    monkeypatch.setattr(sys, "argv", ["headway", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    output = capsys.readouterr()
    return stopped.value.code or 0, output.out, output.err


def test_train_sample_evaluate_and_report(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "gan"
    trained = command("train", "gan", *SMALL, "loss=hinge", "seed=1", "--data", "digits", "--out", folder)
    assert trained.returncode == 0, trained.stderr
    assert f"{BATCH * 12} images. Page:" in trained.stdout
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    assert recipe["model"] == "gan"
    assert "auto" not in (folder / "recipe.yaml").read_text()
    code, out, _ = inside(monkeypatch, capsys, "train", folder)
    assert code == 0
    assert "is finished" in out
    code, out, errors = inside(monkeypatch, capsys, "sample", folder, "--count", 3, "--out", tmp_path / "images")
    assert code == 0, errors
    assert sorted(p.name for p in (tmp_path / "images").glob("0*.png")) == ["000000.png", "000001.png", "000002.png"]
    code, out, errors = inside(monkeypatch, capsys, "evaluate", folder)
    assert code == 0, errors
    assert "fd-classifier@64" in out
    record = json.loads((folder / "evaluations.jsonl").read_text().splitlines()[-1])
    assert (record["solver"], record["nfe"], record["n"]) == ("generator", 1, 64)
    code, _, errors = inside(monkeypatch, capsys, "report", folder, "--out", tmp_path / "page.html")
    assert code == 0, errors
    page = (tmp_path / "page.html").read_text()
    assert "gan, hinge" in page
    assert "The game of generator and discriminator" in page


def test_a_gan_stands_beside_a_diffusion_model(run, tmp_path, monkeypatch, capsys):
    tiny = ["train.images=64", "train.batch=32", "log.samples=0", "sampling.steps=3", "evaluation.samples=64"]
    headway.train("edm", tmp_path / "edm", data="digits", overrides=tiny, progress=False, tell=lambda message: None)
    for folder in (run, tmp_path / "edm"):
        code, _, errors = inside(monkeypatch, capsys, "evaluate", folder)
        assert code == 0, errors
    inside(monkeypatch, capsys, "report", run, tmp_path / "edm", "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "not comparable" not in page
    assert "(1 NFE)" in page
    assert "(5 NFE)" in page


@pytest.mark.parametrize(
    "arguments",
    [
        ("sample", "--solver", "euler"),
        ("sample", "--steps", 4),
        ("sample", "--guidance", 2),
        ("sample", "--label", 1),
        ("evaluate", "--steps", 4),
        ("evaluate", "--guidance", 1),
    ],
)
def test_what_makes_no_sense_is_refused(run, monkeypatch, capsys, arguments):
    name, *options = arguments
    code, _, errors = inside(monkeypatch, capsys, name, run, *options)
    assert code == 2
    assert "a GAN" in errors
    assert "leave it out" in errors


def test_wrong_keys_and_presets_end_with_a_sentence(tmp_path, monkeypatch, capsys):
    code, _, errors = inside(monkeypatch, capsys, "train", "gan", "widht=3", "--data", "digits", "--dry-run")
    assert code == 2
    assert "Did you mean 'network.width'?" in errors
    code, _, errors = inside(monkeypatch, capsys, "train", "gann", "--dry-run")
    assert code == 2
    assert "Did you mean 'gan'?" in errors
    code, out, _ = inside(monkeypatch, capsys, "info", "gan", "--data", "digits")
    assert code == 0
    assert "parameters: generator" in out
