"""Swapped models, the estimates of every step, and the noise that two models share."""

import math

import pytest
import torch
from torch import Tensor, nn

from headway.consistency import Swapped, consistency_score, trajectory
from headway.denoiser import Denoiser
from headway.errors import HeadwayError
from headway.frameworks import EDM, VE, Framework, framework
from headway.ideal import GaussianMixture
from headway.sampling import SOLVERS, sample, seed_noise, sigma_grid


class Small(nn.Module):
    """One of two architectures; "restless" takes random numbers for itself, as a dropout would."""

    def __init__(self, restless: bool, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.restless = restless
        width = 8 if restless else 4
        middle = [nn.Conv2d(width, width, 1), nn.SiLU()] if restless else []
        self.inner = nn.Sequential(nn.Conv2d(2, width, 3, padding=1), nn.SiLU(), *middle, nn.Conv2d(width, 2, 1))

    def forward(self, x: Tensor, c_noise: Tensor, labels: Tensor | None) -> Tensor:
        if self.restless:
            torch.randn(7)
        return self.inner(x) * c_noise.cos()[:, None, None, None]


def model(restless: bool = False, fw: Framework | None = None, seed: int = 0) -> Denoiser:
    return Denoiser(Small(restless, seed).double(), fw or EDM(), shape=(2, 4, 4))


def gaussian(mean: float, variance: float, fw: Framework | None = None) -> GaussianMixture:
    eye = torch.eye(2, dtype=torch.float64)
    return GaussianMixture(torch.full((1, 1, 1, 2), mean, dtype=torch.float64), variance * eye[None], framework=fw)


def carried(x: Tensor, mean: float, variance: float, sigma: float, to: float) -> Tensor:
    return mean + math.sqrt((variance + to**2) / (variance + sigma**2)) * (x - mean)


@pytest.mark.parametrize("solver", ["ancestral", "churn"])
@pytest.mark.parametrize("restless", [False, True])
def test_models_of_any_architecture_get_the_same_noise_at_every_step(solver, restless):
    """The noise of a step is keyed by (seed, step): handing it to the solver directly repeats headway.sample, for each model."""
    denoiser, seeds, method = model(restless), [3, 2**40, 11], SOLVERS[solver]
    asked = []

    def noise(step: int) -> Tensor:
        asked.append(step)
        return seed_noise(seeds, (2, 4, 4), step + 1)

    sigmas = sigma_grid(denoiser.framework, 6, method.grid)
    with torch.no_grad():
        start = sigmas[0] * seed_noise(seeds, (2, 4, 4), 0)
        expected = method.run(lambda x, s: denoiser(x, s), start, sigmas, noise)
    found = sample(denoiser, seeds, solver=solver, steps=6, batch=2).images
    torch.testing.assert_close(found, expected.float(), rtol=0, atol=1e-5)
    assert len(asked) > 2
    assert asked == sorted(set(asked))


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_trajectory_has_one_estimate_per_step_and_ends_in_the_image(solver):
    denoiser, steps = model(), 7
    path = trajectory(denoiser, range(5), solver=solver, steps=steps, batch=2)
    assert path.x0.shape == (steps, 5, 2, 4, 4)
    assert torch.equal(path.x0[-1], path.samples.images)
    assert torch.equal(path.samples.images, sample(denoiser, range(5), solver=solver, steps=steps, batch=2).images)
    grid = sigma_grid(EDM(), steps, SOLVERS[solver].grid)[:-1]
    if solver == "churn":
        assert (path.sigmas >= grid).all()
    else:
        torch.testing.assert_close(path.sigmas, grid)
    first = denoiser(path.sigmas[0] * seed_noise(range(5), (2, 4, 4), 0), path.sigmas[0])
    if solver != "churn":
        torch.testing.assert_close(path.x0[0], first.detach().float())


def test_two_models_can_be_compared_step_by_step():
    # One-dimensional spreads: estimates are mean + l / (l + sigma^2) (x - mean), so the score at each step is known.
    one, other = (trajectory(gaussian(0, v), range(4000), solver="heun", steps=60, batch=4000) for v in (1.0, 0.25))
    scores = [
        consistency_score(a, b, torch.Generator().manual_seed(0), resamples=1).score
        for a, b in zip(one.x0, other.x0, strict=True)
    ]
    for k, sigma in enumerate(one.sigmas.tolist()):
        # x(sigma) is proportional to sqrt(l + sigma^2), so D is to l / sqrt(l + sigma^2).
        p, q = (v / math.sqrt((v + sigma**2) * (v + 80**2) / 80**2) for v in (1.0, 0.25))
        assert scores[k] == pytest.approx(2 * p * q / (p * p + q * q), abs=0.02)


def test_a_swap_goes_one_way_above_sigma_and_the_other_below():
    swap, seeds = 2.0, range(20)
    both = Swapped(gaussian(0.5, 1.0), gaussian(-0.2, 0.09), swap)
    images = sample(both, seeds, solver="heun", steps=1500, grid="logsnr").images
    start = 80 * seed_noise(seeds, (1, 1, 2), 0)
    exact = carried(carried(start, 0.5, 1.0, 80, swap), -0.2, 0.09, swap, 0)
    torch.testing.assert_close(images, exact.float(), rtol=0, atol=1e-2)
    for other in (0.5, -0.2):
        variance = 1.0 if other == 0.5 else 0.09
        assert (images - carried(start, other, variance, 80, 0).float()).abs().max() > 0.1


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_ends_of_a_swap_are_the_models_themselves(solver):
    first, second = model(seed=1), model(restless=True, seed=2)
    options = {"seeds": range(3), "solver": solver, "steps": 6}
    for sigma, alone in ((1e-3, first), (math.inf, second)):
        found = sample(Swapped(first, second, sigma), **options).images
        torch.testing.assert_close(found, sample(alone, **options).images, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (framework("vp"), framework("edm", momentum="released")),
        (framework("edm", prediction="x0"), framework("flow")),
        (framework("edm", momentum="propagated"), framework("ve")),
        (framework("vp", prediction="v"), framework("vp", prediction="x0")),
    ],
)
def test_models_of_other_frameworks_and_predictions_mix(one, other):
    """Each part is asked for D(x; sigma) with its own scaling of the input, and the range ends where the second's does."""
    first, second = model(fw=one, seed=1), model(fw=other, seed=2)
    both, x = Swapped(first, second, 1.0), torch.randn(4, 2, 4, 4, dtype=torch.float64)
    sigma = torch.tensor([5.0, 1.0, 0.99, 0.1], dtype=torch.float64)
    expected = torch.cat([first(x[:2], sigma[:2]), second(x[2:], sigma[2:])])
    torch.testing.assert_close(both(x, sigma), expected)
    assert both.framework.sampling_range == (other.sampling_range[0], one.sampling_range[1])
    path = trajectory(both, range(2), steps=8, solver="euler", grid="time" if one.name == "vp" else "edm")
    assert float(path.sigmas[-1]) == pytest.approx(other.sampling_range[0])
    assert one.sampling_range == type(one).sampling_range.fget(one)  # the models' own frameworks are left alone
    assert both.framework is not one


def test_a_swap_is_a_module_in_eval_mode_with_labels():
    class Labelled(nn.Module):
        framework, shape, classes = EDM(), (1, 1, 1), 3

        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(factor))
            self.dropout = nn.Dropout(0.9)

        def forward(self, x: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
            return self.dropout(self.factor * labels.to(x.dtype)[:, None, None, None].expand_as(x))

    both = Swapped(Labelled(1.0), Labelled(10.0), 1.0)
    assert sample(both, range(4), labels="cycle", steps=5).images.flatten().tolist() == [0, 10, 20, 0]
    assert both.second.dropout.training


class Bare:
    """Neither a module nor knowing its shape."""

    framework = VE()

    def __call__(self, x: Tensor, sigma: Tensor, labels: Tensor | None = None) -> Tensor:
        return 0.5 * torch.ones_like(x)


def test_any_callable_will_do():
    assert sample(Swapped(Bare(), Bare(), 1.0), [0], shape=(1, 2, 2), steps=4).images.unique().tolist() == [0.5]


def test_what_cannot_be_mixed_is_refused():
    with pytest.raises(HeadwayError, match=r"\(1, 1, 2\) and \(2, 4, 4\)"):
        Swapped(model(), gaussian(0, 1), 1.0)
    labelled = Denoiser(Small(False), EDM(), shape=(2, 4, 4), classes=10)
    with pytest.raises(HeadwayError, match="0 and 10 classes"):
        Swapped(model(), labelled, 1.0)
    with pytest.raises(HeadwayError, match=r"down to sigma 0.01 .* VE knows 0.02 .. 100"):
        Swapped(model(fw=VE()), model(), 0.01)
    for sigma in (0.0, -1.0, math.nan):
        with pytest.raises(HeadwayError, match="sigma > 0"):
            Swapped(model(), model(), sigma)
    Swapped(model(fw=VE()), model(), 0.02)
    Swapped(model(), model(fw=VE()), 0.01)  # ends at 0.02: the first alone
