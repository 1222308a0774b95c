"""The denoiser: a perfect network gives x0 in every framework; conversions go round; labels drop image by image."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn

import headway
from headway.denoiser import READINGS, drop_labels
from headway.errors import HeadwayError

B, SHAPE = 6, (3, 4, 5)


def images(n=B):
    generator = torch.Generator().manual_seed(0)
    x0 = torch.rand(n, *SHAPE, generator=generator, dtype=torch.float64) * 2 - 1
    return x0, torch.randn(n, *SHAPE, generator=generator, dtype=torch.float64)


class Stub(nn.Module):
    """A network that answers with what it was told to (else its input), and remembers what it was asked."""

    def __init__(self, answer=None, dtype=torch.float64):
        super().__init__()
        self.answer = answer
        self.parameter = nn.Parameter(torch.ones((), dtype=dtype))
        self.seen = {}

    def forward(self, x, c_noise, labels, **options):
        self.seen = {"x": x, "c_noise": c_noise, "labels": labels, **options}
        return x if self.answer is None else self.answer.to(x.dtype)


def target(reading, x0, eps, s):
    """What a network is trained to answer, said in words of x0 and eps."""
    return {
        "x0": x0,
        "eps": eps,
        "v": (eps - s * x0) / (1 + s * s).sqrt(),
        "flow": eps - x0,
        "score": -eps / s,
        "vp": eps,
        "ve": -eps,
        "edm": (s * x0 - 0.25 * eps) / (0.5 * (s * s + 0.25).sqrt()),  # unit variance, for data of deviation 0.5
    }[reading]


FRAMEWORKS = itertools.product(("vp", "ve", "edm", "flow"), (None, "released", "literal", "propagated", "unit"))


@pytest.mark.parametrize("prediction", [None, "eps", "x0", "v"])
@pytest.mark.parametrize(("name", "kind"), [pair for pair in FRAMEWORKS if pair != ("edm", "literal")])
def test_a_perfect_network_makes_a_perfect_denoiser(name, kind, prediction):
    fw = headway.framework(name, kind, prediction=prediction)
    sigma = torch.logspace(-2.7, 1.9, B, dtype=torch.float64)
    (x0, eps), s = images(), sigma.reshape(-1, 1, 1, 1)
    network = Stub(target(prediction or name, x0, eps, s))
    torch.testing.assert_close(headway.Denoiser(network, fw)(x0 + s * eps, sigma), x0, rtol=0, atol=1e-12)
    torch.testing.assert_close(network.seen["x"], fw.c_in(sigma).reshape(-1, 1, 1, 1) * (x0 + s * eps))
    torch.testing.assert_close(network.seen["c_noise"], fw.c_noise(sigma))


def test_sigma_as_number_tensor_or_one_each():
    (x, _), D = images(), headway.Denoiser(Stub(), headway.framework("edm", "released"))
    wanted = D(x, torch.full((B,), 2.0))
    for sigma in (2.0, 2, torch.tensor(2.0), torch.tensor([2.0]), torch.full((B,), 2.0, dtype=torch.float64)):
        assert torch.equal(D(x, sigma), wanted)
        assert D.network.seen["c_noise"].shape == (B,)
    for wrong in (torch.ones(B + 1), torch.ones(B, 1, 1, 1), torch.ones(2)):
        with pytest.raises(HeadwayError, match=r"one value per image \(6\)"):
            D(x, wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_network_dtype_and_state_dtype_are_apart(dtype):
    """A float64 sampler state stays float64, to the last digit, whatever the network computes in."""
    x, _ = images()
    network = Stub(torch.zeros(B, *SHAPE), dtype)
    assert torch.equal(headway.Denoiser(network, headway.framework("vp"))(x, 0.01), x)  # eps-prediction of zero
    assert network.seen["x"].dtype == network.seen["c_noise"].dtype == dtype
    no_parameters = nn.Module()
    no_parameters.forward = lambda x, c_noise, labels: x
    assert headway.Denoiser(no_parameters, headway.framework("vp"))(x.to(dtype), 1.0).dtype == dtype


def test_labels_augmentation_copies_gradients_devices():
    (x, _), labels = images(), torch.arange(B)
    D = headway.Denoiser(Stub(), headway.framework("vp", "propagated", density="momentum"), shape=SHAPE, classes=B)
    twin = copy.deepcopy(D)  # as weight averages do
    assert torch.equal(twin(x, 0.3), D(x, 0.3))
    D(x, 1.0, labels)
    assert D.network.seen["labels"] is labels
    assert "augment" not in D.network.seen  # networks need not know of it
    D(x, 1.0, labels, augment=torch.ones(B, 9))
    assert D.network.seen["augment"].dtype == torch.float64
    D(x.requires_grad_(), 1.0).sum().backward()
    assert x.grad is not None
    elsewhere = headway.Denoiser(Stub().to("meta"), headway.framework("edm", "released"))
    assert elsewhere(x.to("meta"), 1.0).device.type == "meta"


@pytest.mark.parametrize(("source", "goal"), list(itertools.product(READINGS, READINGS)))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_conversions_go_there_and_back(source, goal, dtype):
    x0, eps = images(40)
    s = torch.logspace(-2.7, 2.2, 40, dtype=torch.float64).reshape(-1, 1, 1, 1)
    x, wanted = (x0 + s * eps).to(dtype), {reading: target(reading, x0, eps, s) for reading in READINGS}
    there = headway.convert(wanted[source].to(dtype), x, s.flatten(), source, goal)
    back = headway.convert(there, x, s.flatten(), goal, source)
    assert there.dtype == dtype
    # Of x = x0 + sigma eps, eps is known to rounding / sigma and x0 to rounding * sigma; v and flow are made of both.
    grows = {"x0": 1 + s, "eps": 1 + 1 / s, "v": s + 1 / s, "flow": s + 1 / s, "score": 1 / s + 1 / s**2}
    rounding = 40 * torch.finfo(dtype).eps
    assert ((there.double() - wanted[goal]).abs() / grows[goal]).max() <= rounding
    assert ((back.double() - wanted[source]).abs() / grows[source]).max() <= 2 * rounding


def test_unknown_reading_is_named():
    with pytest.raises(HeadwayError, match="Did you mean 'eps'"):
        headway.convert(torch.zeros(1, 2), torch.zeros(1, 2), 1.0, "esp", "x0")


def test_labels_drop_per_image():
    labels = torch.arange(1000) % 10
    uniform = torch.rand(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    dropped = drop_labels(labels, uniform, 0.1)
    assert dropped.dtype == torch.int64
    assert torch.equal(dropped == -1, uniform < 0.1)
    assert torch.equal(dropped[uniform >= 0.1], labels[uniform >= 0.1])
    assert torch.equal(drop_labels(labels, uniform, 0.0), labels)
    assert (drop_labels(labels, uniform, 1.0) == -1).all()
