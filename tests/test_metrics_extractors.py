"""Extractors: their names never lie, the classifier is the same every time, any module works, FID's network is FID's."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

from headway.data import ImageSet, load
from headway.errors import HeadwayError
from headway.metrics import (
    Judge,
    classifier_for,
    extractor_for,
    inception,
    inception_extractor,
    metric_name,
    module_extractor,
)
from headway.metrics.inception import Inception
from headway.metrics.orientation import orientations


@pytest.mark.parametrize(
    ("extractor", "n", "name"),
    [
        ("classifier", 5000, "fd-classifier@5k"),
        ("classifier", 500, "fd-classifier@500"),
        ("classifier", 2048, "fd-classifier@2048"),
        ("classifier", 10_000, "fd-classifier@10k"),
        ("inception-299", 50_000, "fd-inception-299@50k"),
        ("fid", 50_000, "fid@50k"),
        ("mine.nets:Features", 1500, "fd-mine.nets:Features@1500"),
    ],
)
def test_the_metric_s_name_says_extractor_and_count(extractor, n, name):
    assert metric_name(extractor, n) == name


# The classifier


def image_set(n: int, shape: tuple[int, int, int], seed: int = 0, labelled: bool = True) -> ImageSet:
    """Two classes, told apart by brightness."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    images = (rng.integers(0, 128, (n, *shape)) + 127 * labels[:, None, None, None]).astype(np.uint8)
    mark = hashlib.sha256(images.tobytes()).hexdigest()
    return ImageSet(images, labels if labelled else None, ("dark", "bright") if labelled else None, "toy", mark)


@pytest.fixture(scope="module")
def digits():
    return load("digits")


@pytest.fixture(scope="module")
def classifier(digits):
    return classifier_for(*digits)


def test_the_classifier_reads_digits(classifier, digits):
    _, heldout = digits
    predicted = classifier.predict(heldout.pixels())
    assert predicted.dtype == torch.int64
    assert (predicted.numpy() == heldout.labels).mean() == classifier.accuracy >= 0.97
    features = classifier(heldout.pixels([0, 1, 2]))
    assert features.shape == (3, classifier.dim)
    assert features.dtype == torch.float32
    assert not features.requires_grad


def test_training_it_depends_on_the_images_alone_and_leaves_no_trace(tmp_path):
    train, heldout = image_set(60, (1, 8, 8)), image_set(20, (1, 8, 8), 1)
    torch.manual_seed(1)
    one = classifier_for(train, heldout, cache=tmp_path / "a")
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(2)
        before = torch.get_rng_state()
        two = classifier_for(train, heldout, cache=tmp_path / "b")
        assert torch.equal(torch.get_rng_state(), before)
    other = classifier_for(image_set(60, (1, 8, 8), 2), heldout, cache=tmp_path / "c")
    assert one.identity == two.identity != other.identity
    assert torch.equal(one(heldout.pixels()), two(heldout.pixels()))
    assert torch.backends.cudnn.deterministic is False


def test_it_is_trained_once_and_again_if_the_file_is_damaged(tmp_path):
    train, heldout = image_set(60, (3, 11, 19)), image_set(20, (3, 11, 19), 1)  # odd sizes, colour
    calls = []
    made = classifier_for(train, heldout, cache=tmp_path, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1][0] == calls[-1][1] > calls[0][0]
    assert made.accuracy == 1.0

    def unwanted(done: int, total: int) -> None:
        raise AssertionError("it trains although it is cached")

    kept = classifier_for(train, heldout, cache=tmp_path, progress=unwanted)
    assert (kept.identity, kept.accuracy) == (made.identity, made.accuracy)
    assert torch.equal(kept.predict(heldout.pixels()), made.predict(heldout.pixels()))

    (path,) = tmp_path.rglob("*.safetensors")
    assert path == tmp_path / "classifiers" / f"{train.fingerprint}.safetensors"
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1]), b"not a file of tensors"):
        path.write_bytes(damaged)
        with pytest.warns(UserWarning, match="damaged and will be made again"):
            again = classifier_for(train, heldout, cache=tmp_path)
        assert (again.identity, again.accuracy) == (made.identity, made.accuracy)
    assert classifier_for(train, heldout, cache=tmp_path, progress=unwanted).identity == made.identity


def test_another_held_out_part_is_not_given_the_old_accuracy(tmp_path):
    train, heldout = image_set(60, (1, 8, 8)), image_set(20, (1, 8, 8), 1)
    classifier_for(train, heldout, cache=tmp_path)
    wrong = ImageSet(heldout.images, 1 - heldout.labels, heldout.label_names, "wrong", "0" * 64)
    assert classifier_for(train, wrong, cache=tmp_path).accuracy == 0.0


def test_sets_without_labels_are_judged_by_orientation(digits):
    few = (part.subset(np.arange(180), part.name) for part in digits)  # four orientations of each are learnt
    train, heldout = (replace(part, labels=None, label_names=None) for part in few)
    turned = orientations(train)
    assert len(turned) == 4 * len(train)
    assert np.array_equal(turned.images[1], train.images[0][:, ::-1, ::-1])
    assert np.array_equal(turned.images[2], np.rot90(train.images[0], 1, (1, 2)))
    extractor = extractor_for("orientation", train, heldout)
    assert extractor.name == "orientation"
    assert extractor.accuracy > 0.6  # chance is 0.25
    quality = Judge(train, heldout, extractor, n=150).quality(heldout.pixels(range(150)))
    assert quality.value < 0.5 * quality.ceiling
    assert quality.classes_found is None


def test_images_that_are_not_square_are_mirrored():
    tall = image_set(3, (1, 6, 4), labelled=False)
    turned = orientations(tall)
    assert turned.size == (6, 4)
    assert np.array_equal(turned.images[2], tall.images[0][..., ::-1])


def test_without_labels_it_says_what_to_do(tmp_path):
    train = image_set(60, (1, 8, 8), labelled=False)
    with pytest.raises(HeadwayError, match=r"toy has no labels.*package\.module:Factory.*HEADWAY_FID_WEIGHTS"):
        classifier_for(train, train, cache=tmp_path)


# Any module


class Maps(nn.Module):
    """Spatial maps (n, 3C, h, w), with dropout that must be off."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.conv(x))


def test_maps_are_averaged_over_space_and_the_rest_is_flattened():
    images = image_set(4, (1, 8, 8)).pixels()
    net = Maps()
    extractor = module_extractor(net, (1, 8, 8))
    assert extractor.dim == 3
    with torch.autocast("cpu", torch.bfloat16):
        features = extractor(images)
    torch.testing.assert_close(features, F.conv2d(images, net.conv.weight, net.conv.bias).mean((2, 3)))
    assert module_extractor(nn.Unflatten(2, (2, 4)), (1, 8, 8)).dim == 64
    assert torch.equal(module_extractor(nn.Identity(), (1, 8, 8))(images), images.mean((2, 3)))


def test_your_module_stays_yours():
    net = Maps()
    module_extractor(net, (1, 8, 8))
    assert net.training
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_a_module_is_found_by_name_and_known_by_its_weights(tmp_path, monkeypatch):
    (tmp_path / "my_nets.py").write_text(
        "import torch\n"
        "def make():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 5))\n"
        "ready = torch.nn.Flatten()\n"
        "def wrong():\n    return 'a string'\n"
        "def broken():\n    raise RuntimeError('no such file')\n"
        "class Listing(torch.nn.Module):\n    def forward(self, x):\n        return [x]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    train = image_set(4, (1, 8, 8))
    one, two = (extractor_for("my_nets:make", train, train) for _ in range(2))
    assert one.name == two.name == "my_nets:make"
    assert one.identity != two.identity
    assert one(train.pixels()).shape == (4, 5)
    assert extractor_for("my_nets:ready", train, train).dim == 64
    for choice, message in {
        "my_nets:wrong": "returns a str",
        "my_nets:broken": "no such file",
        "my_nets:absent": "absent",
        "my_nets:Listing": "returned list",
        "no_such_module:make": "PYTHONPATH",
        "clasifier": "Did you mean 'classifier'",
    }.items():
        with pytest.raises(HeadwayError, match=message):
            extractor_for(choice, train, train)
    with pytest.raises(HeadwayError, match="does not work on images of shape"):
        module_extractor("my_nets:make", (1, 9, 9))
    sys.modules.pop("my_nets")


# FID's network


@pytest.fixture(scope="module")
def network():
    """Random weights that keep the signal alive through all layers."""
    torch.manual_seed(0)
    with torch.device("meta"):
        net = Inception()
    net = net.to_empty(device="cpu").eval()
    for name, tensor in net.state_dict().items():
        if name.endswith("num_batches_tracked") or name.endswith("running_mean"):
            tensor.zero_()
        elif tensor.ndim == 4:
            nn.init.kaiming_normal_(tensor)
        else:
            tensor.uniform_(0.8, 1.2)
    return net


@pytest.fixture(scope="module")
def weights(network, tmp_path_factory):
    path = tmp_path_factory.mktemp("fid") / "pt_inception.pth"
    torch.save(network.state_dict(), path)
    yield path
    path.unlink()  # 95 MB


def test_it_has_the_tensors_of_the_published_file(network):
    # Inception-v3 without the auxiliary head has 23,834,568 parameters for 1000 classes; each class is 2049.
    assert sum(parameter.numel() for parameter in network.parameters()) == 23_834_568 + 8 * 2049
    state = network.state_dict()
    assert len(state) == 566
    for name, shape in {
        "Conv2d_1a_3x3.conv.weight": (32, 3, 3, 3),
        "Conv2d_4a_3x3.bn.running_var": (192,),
        "Mixed_5b.branch1x1.conv.weight": (64, 192, 1, 1),
        "Mixed_5c.branch_pool.conv.weight": (64, 256, 1, 1),
        "Mixed_5d.branch5x5_2.conv.weight": (64, 48, 5, 5),
        "Mixed_6a.branch3x3dbl_3.conv.weight": (96, 96, 3, 3),
        "Mixed_6c.branch7x7dbl_2.conv.weight": (160, 160, 7, 1),
        "Mixed_6e.branch7x7_2.conv.weight": (192, 192, 1, 7),
        "Mixed_7a.branch7x7x3_4.conv.weight": (192, 192, 3, 3),
        "Mixed_7b.branch3x3_2a.conv.weight": (384, 384, 1, 3),
        "Mixed_7c.branch3x3dbl_3b.bn.weight": (384,),
        "fc.weight": (1008, 2048),
    }.items():
        assert state[name].shape == shape, name


def conv(block: nn.Module, name: str, x: torch.Tensor, **options: object) -> torch.Tensor:
    """One layer of a block from its tensors, by the formula."""
    state = {key: block.state_dict()[f"{name}.{key}"] for key in ("conv.weight", "bn.weight", "bn.bias")}
    mean, var = (block.state_dict()[f"{name}.bn.running_{what}"] for what in ("mean", "var"))
    y = F.conv2d(x, state["conv.weight"], **options)
    return F.relu(F.batch_norm(y, mean, var, state["bn.weight"], state["bn.bias"], eps=1e-3))


def mean_of_neighbours(x: torch.Tensor) -> torch.Tensor:
    """Over 3 x 3 pixels, counting those that exist."""
    return F.avg_pool2d(x, 3, 1, 1) / F.avg_pool2d(torch.ones_like(x), 3, 1, 1)


def test_the_first_blocks_are_those_of_the_paper(network):
    block = network.Mixed_5b
    x = torch.randn(1, 192, 6, 6, generator=torch.Generator().manual_seed(0))
    double = conv(block, "branch3x3dbl_2", conv(block, "branch3x3dbl_1", x), padding=1)
    expected = torch.cat(
        [
            conv(block, "branch1x1", x),
            conv(block, "branch5x5_2", conv(block, "branch5x5_1", x), padding=2),
            conv(block, "branch3x3dbl_3", double, padding=1),
            conv(block, "branch_pool", mean_of_neighbours(x)),
        ],
        dim=1,
    )
    torch.testing.assert_close(block(x), expected, rtol=1e-4, atol=1e-4)


def test_the_middle_blocks_factorise_seven_by_seven(network):
    block = network.Mixed_6c
    x = torch.randn(1, 768, 5, 5, generator=torch.Generator().manual_seed(0))
    single, double = conv(block, "branch7x7_1", x), conv(block, "branch7x7dbl_1", x)
    for place, padding in [(2, (0, 3)), (3, (3, 0))]:
        single = conv(block, f"branch7x7_{place}", single, padding=padding)
    for place, padding in [(2, (3, 0)), (3, (0, 3)), (4, (3, 0)), (5, (0, 3))]:
        double = conv(block, f"branch7x7dbl_{place}", double, padding=padding)
    pooled = conv(block, "branch_pool", mean_of_neighbours(x))
    expected = torch.cat([conv(block, "branch1x1", x), single, double, pooled], dim=1)
    torch.testing.assert_close(block(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "channels"), [("Mixed_7b", 1280), ("Mixed_7c", 2048)])
def test_the_last_blocks_fork_and_pool_as_in_2015(network, name, channels):
    block = network.get_submodule(name)
    x = torch.randn(1, channels, 4, 4, generator=torch.Generator().manual_seed(0))
    three = conv(block, "branch3x3_1", x)
    double = conv(block, "branch3x3dbl_2", conv(block, "branch3x3dbl_1", x), padding=1)
    pooled = F.max_pool2d(x, 3, 1, 1) if name == "Mixed_7c" else mean_of_neighbours(x)
    expected = torch.cat(
        [
            conv(block, "branch1x1", x),
            conv(block, "branch3x3_2a", three, padding=(0, 1)),
            conv(block, "branch3x3_2b", three, padding=(1, 0)),
            conv(block, "branch3x3dbl_3a", double, padding=(0, 1)),
            conv(block, "branch3x3dbl_3b", double, padding=(1, 0)),
            conv(block, "branch_pool", pooled),
        ],
        dim=1,
    )
    torch.testing.assert_close(block(x), expected, rtol=1e-4, atol=1e-4)


def test_the_reductions_pool_by_maximum_without_padding(network):
    block = network.Mixed_7a
    x = torch.randn(1, 768, 7, 7, generator=torch.Generator().manual_seed(0))
    seven = conv(block, "branch7x7x3_2", conv(block, "branch7x7x3_1", x), padding=(0, 3))
    seven = conv(block, "branch7x7x3_3", seven, padding=(3, 0))
    expected = torch.cat(
        [
            conv(block, "branch3x3_2", conv(block, "branch3x3_1", x), stride=2),
            conv(block, "branch7x7x3_4", seven, stride=2),
            F.max_pool2d(x, 3, 2),
        ],
        dim=1,
    )
    torch.testing.assert_close(block(x), expected, rtol=1e-4, atol=1e-4)

    x = torch.randn(1, 288, 7, 7, generator=torch.Generator().manual_seed(0))
    block = network.Mixed_6a
    double = conv(block, "branch3x3dbl_2", conv(block, "branch3x3dbl_1", x), padding=1)
    expected = torch.cat(
        [
            conv(block, "branch3x3", x, stride=2),
            conv(block, "branch3x3dbl_3", double, stride=2),
            F.max_pool2d(x, 3, 2),
        ],
        dim=1,
    )
    torch.testing.assert_close(block(x), expected, rtol=1e-4, atol=1e-4)


def test_stages_have_the_published_sizes(network):
    seen = {}
    hooks = [
        module.register_forward_hook(lambda _, __, y, name=name: seen.update({name: tuple(y.shape[1:])}))
        for name, module in network.named_children()
    ]
    with torch.no_grad():
        network(torch.zeros(1, 3, 299, 299))
    for hook in hooks:
        hook.remove()
    assert seen["Conv2d_1a_3x3"] == (32, 149, 149)
    assert seen["Conv2d_2b_3x3"] == (64, 147, 147)
    assert seen["Conv2d_4a_3x3"] == (192, 71, 71)
    assert seen["Mixed_5d"] == (288, 35, 35)
    assert seen["Mixed_6e"] == (768, 17, 17)
    assert seen["Mixed_7c"] == (2048, 8, 8)


def test_weights_load_from_either_format_and_images_of_any_kind_are_taken(network, weights, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_FID_WEIGHTS", str(weights))
    train = image_set(2, (1, 40, 30))
    extractor = extractor_for("inception", train, train)
    assert (extractor.name, extractor.dim) == ("inception-299", 2048)  # other weights are never called fid
    gray = train.pixels()
    features = extractor(gray)
    assert features.shape == (2, 2048)
    assert features.std() > 1e-3
    resized = F.interpolate(gray.repeat(1, 3, 1, 1), (299, 299), mode="bilinear", align_corners=False)
    torch.testing.assert_close(extractor(resized), features, rtol=1e-4, atol=1e-4)

    old = {key: value for key, value in network.state_dict().items() if not key.endswith("num_batches_tracked")}
    path = tmp_path / "old.safetensors"
    safetensors.torch.save_file(old, path)
    monkeypatch.setattr(inception, "PUBLISHED", hashlib.sha256(path.read_bytes()).hexdigest()[:8])
    published = inception_extractor(path)
    assert published.name == "fid"
    assert torch.equal(published(gray[:1]), extractor(gray[:1]))
    path.unlink()


def test_wrong_weights_are_refused_with_the_reason(network, tmp_path, monkeypatch):
    monkeypatch.delenv("HEADWAY_FID_WEIGHTS", raising=False)
    both = r"pt_inception-2015-12-05-6726825d\.pth.*weights-inception-2015-12-05-6726825d\.pth"
    with pytest.raises(HeadwayError, match=f"does not ship.*HEADWAY_FID_WEIGHTS.*{both}"):
        inception_extractor()
    with pytest.raises(HeadwayError, match="There is no file"):
        inception_extractor(tmp_path / "absent.pth")

    small = {key: value for key, value in network.state_dict().items() if value.ndim < 2}
    for name, tensors, message in [
        ("few.pth", small, "Conv2d_1a_3x3.conv.weight is missing"),
        ("more.pth", {**small, "AuxLogits.fc.bias": torch.zeros(1000)}, "differences"),
        ("other.pth", {**small, "fc.bias": torch.zeros(1000)}, r"fc.bias is \(1000,\), not \(1008,\)"),
        ("object.pth", {"net": object()}, "not a plain file of weights"),
    ]:
        torch.save(tensors, tmp_path / name)
        with pytest.raises(HeadwayError, match=message):
            inception_extractor(tmp_path / name)
    (tmp_path / "text.safetensors").write_text("hello")
    with pytest.raises(HeadwayError, match="not a plain file of weights"):
        inception_extractor(tmp_path / "text.safetensors")
