"""The reproduction presets against the published hyper-parameters (methods of the FDM paper's released commands)."""

from __future__ import annotations

import pytest

from headway.recipes import Recipe

# data: batch, lr, dropout, augment, conditional, classes, warm-up calls for EDM/VP/VE, multiplier for EDM/VP/VE
TABLE = {
    "cifar10": (512, 1e-3, 0.13, 0.12, True, 10, (200, 400, 400), (2, 2, 1)),
    "ffhq64": (256, 2e-4, 0.05, 0.15, False, 0, (800, 400, 400), (1, 1, 1)),
    "afhqv2-64": (256, 2e-4, 0.25, 0.15, False, 0, (400, 400, 400), (2, 2, 1)),
}
# Parameters of EDM's networks, counted layer by layer from their published architecture (docs/backbones.md).
PARAMETERS = {"cifar10": {"edm": 55.7e6, "vp": 55.7e6, "ve": 55.7e6}, "64": {"edm": 61.8e6, "vp": 61.8e6, "ve": 61.8e6}}


@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize(("index", "framework"), list(enumerate(["edm", "vp", "ve"])))
@pytest.mark.parametrize("data", TABLE)
def test_preset_is_the_published_set_up(data, index, framework, momentum):
    batch, lr, dropout, augment, conditional, _, calls, multipliers = TABLE[data]
    recipe = Recipe.load(f"{data}-{framework}" + ("-fdm" if momentum else ""))
    assert recipe.framework.name == framework
    assert recipe.framework.sigma_data == 0.5
    assert (recipe.framework.momentum, recipe.framework.multiplier) == (
        ("released", multipliers[index]) if momentum else (None, None)
    )
    assert recipe.weight.warmup == (calls[index] * batch if momentum else "auto")
    assert (recipe.train.batch, recipe.optim.lr, recipe.network.dropout, recipe.data.augment) == (
        batch,
        lr,
        dropout,
        augment,
    )
    assert bool(recipe.data.labels) is conditional
    assert recipe.data.xflip is False
    assert recipe.data.size == (32 if data == "cifar10" else 64)
    assert (recipe.train.images, recipe.optim.lr_ramp, recipe.train.ema, recipe.train.ema_rampup) == (
        200_000_000,
        10_000_000,
        (500_000,),
        0.05,
    )
    assert (recipe.optim.betas, recipe.optim.eps, recipe.optim.weight_decay, recipe.optim.clip) == (
        (0.9, 0.999),
        1e-8,
        0.0,
        None,
    )
    assert recipe.train.precision == "fp32"
    assert (recipe.sampling.solver, recipe.sampling.steps) == ("heun", 18 if data == "cifar10" else 40)
    assert (recipe.evaluation.extractor, recipe.evaluation.samples) == ("inception", 50_000)
    assert "not run here" in recipe.about
    assert len(recipe.published["FID at 50/100/150/200 Mimg"]) == 4


def test_published_figures_are_quoted():
    assert Recipe.load("cifar10-edm-fdm").published["FID at 50/100/150/200 Mimg"] == [2.17, 1.93, 1.83, 1.79]
    assert Recipe.load("ffhq64-vp-fdm").published["FID at 50/100/150/200 Mimg"][0] == 12.49
    assert Recipe.load("afhqv2-64-ve").published["FID by Heun at NFE 25/49/79"] == [61.04, 57.59, 57.48]
