"""Techniques in the trainer: each slot has one owner, every allowed combination trains and resumes, forbidden ones are named."""

from __future__ import annotations

import itertools

import pytest
import torch
from safetensors.torch import load_file

from headway.errors import HeadwayError
from headway.noise import DENSITIES
from headway.optim import LAWS, OPTIMIZERS
from headway.recipes import Recipe
from headway.training import Run, train
from headway.weighting import WEIGHTS

BATCH = 64
SMALL = [
    f"batch={BATCH}",
    f"train.images={BATCH * 4}",
    "log.samples=0",
    f"log.tick={BATCH}",
    f"log.checkpoint={BATCH * 2}",
]


def quiet(folder, *settings, **options):
    return train(
        "digits-edm", folder, overrides=[*SMALL, *settings], progress=False, tell=lambda message: None, **options
    )


def weights(folder):
    return load_file(Run(folder).newest_checkpoint() / "model.safetensors")


SETTINGS = [
    *(f"noise={name}" for name in DENSITIES),
    *(f"weight={name}" for name in WEIGHTS),
    *(f"optim.law={name}" for name in LAWS),
    "noise.draws=stratified",
    "noise.coupling=immiscible",
    "optim.name=muon",
    "optim.name=sgd",
    "weight=uncertainty",
    "optim.name=schedulefree",
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_each_technique_trains_and_resumes_to_the_bit(setting, tmp_path):
    if "schedulefree" in setting:
        pytest.importorskip("schedulefree")
    whole = quiet(tmp_path / "whole", setting)
    quiet(tmp_path / "parts", setting, stop_after=BATCH * 2)
    parts = quiet(tmp_path / "parts", setting)
    assert whole.finished
    assert [r["loss"] for r in whole.run.metrics()] == [r["loss"] for r in parts.run.metrics()]
    a, b = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_everything_at_once(tmp_path):
    run = quiet(
        tmp_path,
        "noise=clts",
        "noise.horizon=0.5",
        "noise.draws=stratified",
        "noise.coupling=immiscible",
        "noise.importance=true",
        "weight=min-snr",
        "weight.gamma=3",
        "optim.law=mdlrc",
        "momentum=released",
        "labels=true",
        "accumulation=3",
    ).run
    assert run.metrics()[-1]["nimg"] == BATCH * 4


@pytest.mark.parametrize("coupling", ["independent", "immiscible"])
@pytest.mark.parametrize("draws", ["plain", "stratified"])
def test_how_a_batch_is_cut_decides_nothing(coupling, draws, tmp_path):
    settings = [f"noise.coupling={coupling}", f"noise.draws={draws}", "noise=clts"]
    for steps in (1, 3):
        quiet(tmp_path / str(steps), *settings, f"accumulation={steps}")
    a, b = weights(tmp_path / "1"), weights(tmp_path / "3")
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-3, atol=2e-5)


def test_mdlrc_drives_rate_and_momentum_by_images_seen(tmp_path):
    records = quiet(tmp_path, "optim.law=mdlrc", "lr=1e-3", "lr_ramp=0").run.metrics()
    taus = [i / 4 for i in range(4)]
    assert [r["lr"] for r in records] == pytest.approx([1e-3 * (1 - 0.9 * tau) for tau in taus])
    assert [r["beta1"] for r in records] == pytest.approx([0.9 * (1 - tau) / (1 - 0.9 * tau) for tau in taus])


def test_the_law_begins_after_the_ramp_which_multiplies_it(tmp_path):
    records = quiet(tmp_path, "optim.law=compensation-only", "lr=1e-3", f"lr_ramp={BATCH * 2}").run.metrics()
    assert [r["lr"] for r in records] == pytest.approx([0.5e-3, 1e-3, 1e-3, 1e-3 * (1 - 0.9 * 0.5)])


def test_the_learnt_weight_is_trained_with_the_network_and_the_loss_stays_the_loss(tmp_path):
    run = quiet(tmp_path, "weight=uncertainty", "lr=1e-2", "lr_ramp=0").run
    learnt = load_file(run.newest_checkpoint() / "uncertainty.safetensors")
    assert learnt["weight"].abs().max() > 0
    assert all(record["loss"] > 0 for record in run.metrics())
    assert any(
        name.startswith("exp_avg/uncertainty.") for name in load_file(run.newest_checkpoint() / "optimizer.safetensors")
    )


def test_schedule_free_saves_the_weights_to_sample_with_beside_those_it_steps_with(tmp_path):
    pytest.importorskip("schedulefree")
    run = quiet(tmp_path, "optim.name=schedulefree", "lr_ramp=0").run
    found = run.newest_checkpoint()
    model, steps_with, state = (load_file(found / f"{s}.safetensors") for s in ("model", "steps-with", "optimizer"))
    assert run.recipe().train.ema == ()
    for name, x in model.items():
        # y = (1 - beta1) z + beta1 x, solved for x (Defazio et al. 2024, equation 1).
        expected = (steps_with[name] - 0.1 * state[f"z/{name}"]) / 0.9
        torch.testing.assert_close(x, expected, rtol=1e-5, atol=1e-6)
    assert any(not torch.equal(model[name], steps_with[name]) for name in model)


def test_a_learning_density_changes_what_is_drawn(tmp_path):
    plain, adaptive = (
        quiet(tmp_path / n, f"noise={n}", "noise.memory=64" if n == "adaptive" else "seed=0")
        for n in ("framework", "adaptive")
    )
    counts = [[band["n"] for band in run.run.metrics()[-1]["bands"]] for run in (plain, adaptive)]
    assert counts[0] != counts[1]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["noise=cltss"], "Did you mean 'clts'"),
        (["noise=clts", "noise.horizn=0.5"], "horizon"),
        (["noise=clts", "noise.horizon=-1"], "horizon"),
        (["noise.horizon=0.5"], "'framework' has no options, got 'horizon'"),
        (["weight=minsnr"], "Did you mean 'min-snr'"),
        (["weight=min-snr", "weight.gama=1"], "gamma"),
        (["weight.gamma=1"], "no options"),
        (["optim.law=mdlcr"], "Did you mean 'mdlrc'"),
        (["optim.law=mdlrc", "optim.flor=0.1"], "floor"),
        (["noise=clts", "momentum=propagated", "framework.density=momentum"], "two owners of the noise density"),
        (["optim.law=mdlrc", "optim.name=muon"], "Two owners of beta1: optimizer 'muon'"),
        (["optim.law=decay-only", "optim.name=muon"], "Two owners of beta1"),
        (["optim.law=cosine", "optim.name=schedulefree"], "Two owners of learning rate: optimizer 'schedulefree'"),
        (["optim.name=schedulefree", "train.ema=[1000]"], "two owners of the weight average"),
        (["weight=uncertanty"], "Did you mean 'uncertainty'"),
        (["weight=uncertainty", "weight.feature=3"], "Did you mean 'features'"),
    ],
)
def test_mistakes_and_two_owners_are_named(settings, sentence):
    with pytest.raises(HeadwayError) as error:
        Recipe().with_overrides(settings)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_choosing_another_technique_drops_the_last_one_s_options():
    recipe = Recipe().with_overrides(["noise=clts", "noise.horizon=0.5"])
    assert recipe.noise.options == {"horizon": 0.5}
    assert recipe.with_overrides(["noise=laplace"]).noise.options == {}


def test_all_pairs_of_slots_are_allowed_or_name_both_owners():
    """Only Muon's momentum and Schedule-Free's average own what another slot may own too."""
    forbidden_laws = {"muon": {"mdlrc", "decay-only"}, "schedulefree": set(LAWS) - {"constant"}}
    for density, weight, law, optimizer in itertools.product(
        DENSITIES, ["framework", "uncertainty", *WEIGHTS], LAWS, OPTIMIZERS
    ):
        forbidden = law in forbidden_laws.get(optimizer, ())
        settings = [f"noise={density}", f"weight={weight}", f"optim.law={law}", f"optim.name={optimizer}"]
        if forbidden:
            with pytest.raises(HeadwayError, match=rf"optimizer '{optimizer}'.*law '{law}'"):
                Recipe().with_overrides(settings)
        else:
            Recipe().with_overrides(settings)
