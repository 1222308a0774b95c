"""Recipes: strict, explained, and with nothing left to decide once resolved."""

from __future__ import annotations

import pytest
import yaml

from headway.data import load
from headway.errors import HeadwayError
from headway.recipes import Recipe, parse, presets


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"trian": {"lr": 1}}, "unknown key 'trian'. Did you mean 'train'?"),
        ({"train": {"batchsize": 64}}, "unknown key 'train.batchsize'. Did you mean 'train.batch'?"),
        ({"optim": {"lr": -1}}, "optim.lr = -1: expected greater than 0"),
        ({"optim": {"lr": float("nan")}}, "optim.lr = nan"),
        ({"train": {"images": 0}}, "train.images = 0: expected greater than 0"),
        ({"train": {"images": "many"}}, "train.images = 'many': expected a valid integer"),
        ({"train": {"batch": 2, "accumulation": 4}}, "train.batch (2) must be at least train.accumulation (4)"),
        (
            {"framework": {"name": "emd"}},
            "framework.name = 'emd': expected 'vp', 've', 'edm' or 'flow'. Did you mean 'edm'?",
        ),
        ({"framework": {"momentum": "realeased"}}, "Did you mean 'released'?"),
        ({"framework": {"sigma_data": "aut"}}, "Did you mean 'auto'?"),
        ([1], "a recipe is a mapping of sections such as 'train: {images: 200k}', got a list"),
    ],
)
def test_mistakes_are_named_with_the_nearest_right_one(values, sentence):
    with pytest.raises(HeadwayError) as error:
        parse(values, "here")
    assert sentence in str(error.value)
    assert str(error.value).startswith("here: ")
    assert "\n" not in str(error.value)


def test_overrides_read_numbers_words_and_lists():
    recipe = Recipe().with_overrides(
        ["lr=2e-4", "train.images=200k", "ema=[5k, 1M]", "momentum=released", "clip=null", "xflip=true"]
    )
    assert recipe.optim.lr == 2e-4
    assert recipe.train.images == 200_000
    assert recipe.train.ema == (5_000, 1_000_000)
    assert recipe.framework.momentum == "released"
    assert recipe.optim.clip is None
    assert recipe.data.xflip is True


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("lr", "Expected key=value, got 'lr'"),
        ("train.learning_rate=1", "Unknown recipe key 'train.learning_rate'"),
        ("samples=3", "Say which: evaluation.samples or log.samples"),
        ("train.ema=[", "Cannot read the value '['"),
        ("batchsize=3", "Did you mean 'train.batch'?"),
        ("network=small", "network is a section of the recipe: set one of its keys"),
        ("network.wdith=64", "Did you mean 'network.width'?"),
        ("network.color=64", "network has preset, patch"),
        ("network.preset=tinny", "Did you mean 'tiny'?"),
        ("sampling.solver=hein", "Did you mean 'heun'?"),
        ("name=../../evil", "name = '../../evil': expected a name of letters, digits, spaces and . - _."),
    ],
)
def test_wrong_overrides_are_explained(override, sentence):
    with pytest.raises(HeadwayError) as error:
        Recipe().with_overrides([override])
    assert sentence in str(error.value)


def test_half_lives_may_be_shares_of_the_budget():
    images, heldout = load("digits", heldout=0.3)
    recipe = Recipe().with_overrides(["data.source=digits", "train.images=100k", "train.batch=100", "ema=[0.05, 700]"])
    assert recipe.resolved(images, len(heldout), "fp32").train.ema == (5_000, 700)
    with pytest.raises(HeadwayError, match=r"train.ema = 0.05: expected a list such as \[0.05\] or 'auto'"):
        Recipe().with_overrides(["ema=0.05"])
    with pytest.raises(HeadwayError, match=r"train\.ema = 1\.5"):
        Recipe().with_overrides(["ema=[1.5]"])


def test_a_recipe_survives_its_file(tmp_path):
    recipe = Recipe.load("edm-fdm").with_overrides(["train.ema=[100, 200]", "data.size=[28, 31]"])
    file = tmp_path / "r.yaml"
    file.write_text(recipe.to_yaml())
    assert Recipe.load(file) == recipe


def test_numbers_may_be_short_in_files_too(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text(
        "train: {images: 2M, ema: [5k]}\noptim: {lr: 1e-4}\nnoise: {name: clts, horizon: 5e-1}\nframework: vp\n"
    )
    recipe = Recipe.load(file)
    assert (recipe.train.images, recipe.train.ema, recipe.optim.lr) == (2_000_000, (5_000,), 1e-4)
    assert recipe.noise.options == {"horizon": 0.5}
    assert recipe.framework.name == "vp"


@pytest.mark.parametrize("source", ["2024", "photos #1", "yes", "a: b", "1e3", "~", "2M"])
def test_a_path_is_taken_as_it_is(source):
    assert Recipe().with_data(source).data.source == source
    assert parse(yaml.safe_load(Recipe().with_data(source).to_yaml()), "again").data.source == source


def test_a_recipe_decided_for_other_images_is_refused(tmp_path):
    images, heldout = load("digits", heldout=0.3)
    decided = Recipe().with_data("digits").resolved(images, len(heldout), "fp32")
    other, rest = load("digits", heldout=0.5)
    with pytest.raises(HeadwayError, match="decided for other images"):
        decided.resolved(other, len(rest), "fp32")
    freed = decided.with_overrides(["data.fingerprint=null", "sigma_data=auto"]).resolved(other, len(rest), "fp32")
    assert freed.data.fingerprint == other.fingerprint
    assert freed.framework.sigma_data == other.std()


def test_a_preset_and_a_run_folder_of_one_name_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edm").mkdir()
    (tmp_path / "edm" / "recipe.yaml").write_text(Recipe.load("vp").to_yaml())
    with pytest.raises(HeadwayError, match=r"write \./edm for the folder"):
        Recipe.load("edm")
    assert Recipe.load("./edm").framework.name == "vp"


def test_files_that_are_no_recipe(tmp_path):
    broken = tmp_path / "broken.yaml"
    broken.write_text("train: {lr: 1\nname: x")
    with pytest.raises(HeadwayError, match=r"broken\.yaml: broken YAML at line 2"):
        Recipe.load(broken)
    broken.write_bytes(b"\xff\xfe\x00bin")
    with pytest.raises(HeadwayError, match="broken YAML"):
        Recipe.load(broken)
    with pytest.raises(HeadwayError, match=r"No recipe 'edm-fmd'.*Did you mean 'edm-fdm'"):
        Recipe.load("edm-fmd")


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_a_recipe_of_its_name(name):
    recipe = Recipe.load(name)
    assert recipe.name == name
    assert recipe.about
    assert parse(yaml.safe_load(recipe.to_yaml()), "again") == recipe


def test_resolving_leaves_nothing_to_decide_and_changes_nothing_decided():
    images, heldout = load("digits", heldout=0.3)
    recipe = Recipe.load("edm-fdm").with_overrides(
        ["data.source=digits", "train.images=1000", "train.batch=64", "optim.lr_ramp=7"]
    )
    resolved = recipe.resolved(images, len(heldout), "fp32")
    assert "auto" not in resolved.to_yaml()
    assert resolved.train.images == 1024  # whole batches
    assert resolved.optim.lr_ramp == 7
    assert resolved.weight.warmup == 64  # 5 %, in whole batches
    assert resolved.framework.sigma_data == images.std()
    assert resolved.image_shape == (1, 8, 8)
    assert resolved.evaluation.samples == len(heldout)
    assert resolved.resolved(images, len(heldout), "bf16") == resolved


def test_differences_name_what_a_run_may_not_change():
    old = Recipe.load("edm")
    new = old.with_overrides(["optim.lr=0.5", "log.keep=9", "data.source=elsewhere", "sampling.steps=3"])
    assert old.differences(new) == ["optim.lr: 0.001 there, 0.5 now"]
