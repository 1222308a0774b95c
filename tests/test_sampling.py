"""headway.sample: seeds, labels, guidance, cost, and what it refuses."""

import pytest
import torch
from torch import Tensor, nn

from headway.denoiser import Denoiser
from headway.errors import HeadwayError
from headway.frameworks import EDM, VE, framework
from headway.ideal import GaussianMixture, IdealDenoiser
from headway.sampling import SOLVERS, sample, seed_noise, steps_for_nfe


class Classes(nn.Module):
    """A denoiser of labelled points: label k lies at (k, -k), "no label" at (0.5, 0.5); it notes how it was called."""

    framework = EDM()
    shape = (1, 1, 2)
    classes = 3

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.evaluated = 0
        self.guided = []

    def forward(self, x: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        self.evaluated += len(x)
        self.guided += [float(sigma[0])] * bool((labels < 0).any())
        at = labels.to(x.dtype)[:, None] * torch.tensor([1.0, -1.0], dtype=x.dtype)
        at = torch.where(labels[:, None] < 0, 0.5, at)
        return self.dropout(at).reshape(x.shape)


def ideal(n: int = 4) -> IdealDenoiser:
    generator = torch.Generator().manual_seed(0)
    return IdealDenoiser(torch.rand(n, 3, 4, 4, dtype=torch.float64, generator=generator) * 2 - 1)


def small_network() -> Denoiser:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 3, 3, padding=1))

        def forward(self, x: Tensor, c_noise: Tensor, labels: Tensor | None) -> Tensor:
            return self.inner(x) * c_noise.cos()[:, None, None, None]

    torch.manual_seed(0)
    return Denoiser(Network(), EDM(), shape=(3, 8, 8))


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_ideal_denoiser_of_some_images_returns_those_images(solver):
    denoiser = ideal()
    images = sample(denoiser, range(24), solver=solver, steps=40).images
    distance = torch.cdist(images.flatten(1).double(), denoiser.data.flatten(1))
    assert images.dtype == torch.float32
    assert distance.min(1).values.max() < 1e-5
    assert len(distance.argmin(1).unique()) > 1  # not one image for all seeds


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 18])
def test_the_cost_reported_is_what_was_spent(solver, steps):
    denoiser = Classes()
    samples = sample(denoiser, range(3), solver=solver, steps=steps, labels=1, batch=2)
    assert samples.nfe * 3 == denoiser.evaluated
    assert samples.nfe == SOLVERS[solver].nfe(steps)
    assert steps_for_nfe(solver, samples.nfe) == steps
    assert steps_for_nfe(solver, samples.nfe + SOLVERS[solver].evaluations - 1) == steps


def test_the_cost_of_the_published_runs():
    # FDM's tables: 25, 49 and 79 evaluations are 13, 25 and 40 Heun steps; singlestep DPM-Solver++ spends one per step.
    assert [steps_for_nfe("heun", nfe) for nfe in (25, 49, 79)] == [13, 25, 40]
    assert [steps_for_nfe("dpmpp-3s", nfe) for nfe in (25, 49, 79)] == [25, 49, 79]
    assert sample(ideal(), [0], steps=18).nfe == 35
    with pytest.raises(HeadwayError, match="nfe=0"):
        steps_for_nfe("heun", 0)


@pytest.mark.parametrize("solver", ["heun", "dpmpp-3s", "ancestral", "churn"])
def test_an_image_depends_on_its_seed_only(solver):
    denoiser, seeds = small_network(), [5, 9, 2**40 + 5, 11, 3]
    together = sample(denoiser, seeds, solver=solver, steps=8).images
    alone = sample(denoiser, reversed(seeds), solver=solver, steps=8, batch=2).images.flip(0)
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-4)
    assert (together[0] - together[2]).abs().max() > 1e-2  # seeds that agree in their lower 32 bits differ


def test_noise_is_keyed_by_seed_and_step():
    noise = seed_noise([3, 4], (1, 50, 50), 2)
    assert torch.equal(seed_noise([4], (1, 50, 50), 2)[0], noise[1])
    draws = torch.stack([noise[0], noise[1], seed_noise([3], (1, 50, 50), 3)[0], seed_noise([2], (1, 50, 50), 3)[0]])
    assert (draws.flatten(1).corrcoef() - torch.eye(4)).abs().max() < 0.1  # 5 standard errors
    assert draws.std() == pytest.approx(1, abs=0.03)
    # Pinned: other numbers here mean that every seed now stands for another image.
    assert seed_noise([0], (2,), 0)[0].tolist() == pytest.approx([0.1593, -1.7742], abs=1e-4)
    assert seed_noise([2**63 - 1], (2,), 5)[0].tolist() == pytest.approx([-0.6561, -1.7989], abs=1e-4)


def test_each_process_can_sample_its_share():
    seeds = range(10)
    whole = sample(Classes(), seeds, labels="cycle", solver="churn", steps=5)
    for rank in range(3):
        share = sample(Classes(), seeds[rank::3], labels="cycle", solver="churn", steps=5)
        assert torch.equal(share.labels, whole.labels[rank::3])
        torch.testing.assert_close(share.images, whole.images[rank::3])


def test_every_batch_is_sampled_with_the_solver_that_was_asked_for():
    """The published code takes the solver out of its options in the first batch, and runs another one from the second on."""
    denoiser, options = small_network(), {"s_churn": 20.0, "s_noise": 1.0}
    kept = dict(options)
    batches = sample(denoiser, range(6), solver="churn", steps=6, options=options, batch=2)
    assert options == kept
    whole = sample(denoiser, range(6), solver="churn", steps=6, options=options, batch=6)
    torch.testing.assert_close(batches.images, whole.images, rtol=0, atol=1e-4)
    heun = sample(denoiser, range(6), solver="heun", steps=6)
    assert ((batches.images - heun.images).flatten(1).abs().amax(1) > 1e-3).all()


@pytest.mark.parametrize("momentum", ["released", "literal", "propagated"])
def test_frameworks_with_momentum_can_be_sampled_in_their_time(momentum):
    fw = framework("vp", momentum)
    mean, variance = torch.tensor([[[[0.4, -0.3]]]], dtype=torch.float64), 0.04
    denoiser = GaussianMixture(mean, variance * torch.eye(2, dtype=torch.float64)[None], framework=fw)
    samples = sample(denoiser, range(400), solver="heun", grid="time", steps=100, batch=400)
    high = fw.sampling_range[1]
    noise = high * seed_noise(range(400), (1, 1, 2), 0)
    exact = mean + (variance / (variance + high**2)) ** 0.5 * (noise - mean)
    torch.testing.assert_close(samples.images.double(), exact, rtol=0, atol=5e-3)


def test_the_range_can_be_chosen():
    seen = []

    class Recorder(Classes):
        def forward(self, x, sigma, labels):
            seen.append(float(sigma[0]))
            return super().forward(x, sigma, labels)

    sample(Recorder(), [0], solver="euler", steps=5, sigma_min=0.5, sigma_max=5.0, labels=0)
    assert (seen[0], seen[-1], len(seen)) == (5.0, 0.5, 5)


def test_labels_reach_the_model_and_none_means_no_label():
    at = {label: sample(Classes(), [8], labels=label, steps=3).images.flatten().tolist() for label in (0, 1, 2, None)}
    assert at == {0: [0.0, 0.0], 1: [1.0, -1.0], 2: [2.0, -2.0], None: [0.5, 0.5]}
    many = sample(Classes(), [8, 9, 10], labels=[2, 0, 1], steps=3, batch=2)
    assert many.images[:, 0, 0, 0].tolist() == [2.0, 0.0, 1.0]
    assert sample(Classes(), [8, 9, 10], labels=torch.tensor([2, -1, 1]), steps=3).labels.tolist() == [2, -1, 1]
    assert sample(Classes(), [8, 9, 3], labels="cycle", steps=3).labels.tolist() == [2, 0, 0]
    assert sample(ideal(), [1], steps=3).labels is None


def test_guidance_extrapolates_and_counts_both_evaluations():
    denoiser = Classes()
    samples = sample(denoiser, [1, 2, 3], labels=1, guidance=3.0, steps=5, solver="euler")
    assert samples.images[0].flatten().tolist() == pytest.approx([0.5 + 3 * 0.5, 0.5 - 3 * 1.5])
    assert samples.nfe == 10
    assert denoiser.evaluated == 30


def test_guidance_acts_in_its_interval_only():
    denoiser = Classes()
    samples = sample(
        denoiser, [1], labels=1, guidance=3.0, guidance_interval=(0.1, 10.0), steps=8, solver="euler", grid="logsnr"
    )
    inside = [s for s in (80 * (0.002 / 80) ** (k / 7) for k in range(8)) if 0.1 < s <= 10]
    assert denoiser.guided == pytest.approx(inside)
    assert samples.nfe == 8 + len(inside)
    assert samples.images.flatten().tolist() == [1.0, -1.0]  # the last level lies outside


def test_the_model_is_evaluated_in_eval_mode_and_left_as_it_was():
    denoiser = Classes()
    denoiser.train()
    frozen = nn.BatchNorm2d(1).eval()
    denoiser.frozen = frozen
    images = sample(denoiser, [1], labels=1, steps=3).images  # dropout off: exact
    assert images.flatten().tolist() == [1.0, -1.0]
    assert denoiser.training
    assert denoiser.dropout.training
    assert not frozen.training
    denoiser.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sample(denoiser, [1], labels=1, steps=3)
    assert denoiser.dropout.training


def test_progress_counts_the_calls_of_the_denoiser(capsys):
    seen = []
    sample(ideal(), range(5), steps=3, batch=2, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(k + 1, 15) for k in range(15)]
    sample(ideal(), range(2), steps=3, progress=True)
    assert "100%" in capsys.readouterr().out


def test_samples_carry_what_made_them():
    samples = sample(ideal(), range(2), solver="dpmpp-2m", steps=7)
    assert (samples.seeds, samples.solver, samples.steps, samples.nfe) == ((0, 1), "dpmpp-2m", 7, 7)
    assert samples.seconds > 0
    assert samples.uint8().dtype == torch.uint8
    assert samples.uint8().shape == (2, 3, 4, 4)
    assert len(repr(samples)) < 200  # no tensors printed


def test_a_broken_model_does_not_pass_for_one_that_works():
    class Broken(Classes):
        def forward(self, x, sigma, labels):
            estimate = super().forward(x, sigma, labels)
            return torch.where(labels[:, None, None, None] == 2, torch.nan, estimate)

    with pytest.raises(HeadwayError, match=r"1 of 3 images .* NaN or infinite \(seeds 5\)"):
        sample(Broken(), [4, 5, 6], labels=[0, 2, 1], steps=3)

    class Narrow(Classes):
        def forward(self, x, sigma, labels):
            return super().forward(x, sigma, labels)[..., :1]

    with pytest.raises(HeadwayError, match=r"\(1, 1, 1, 2\), got \(1, 1, 1, 1\)"):
        sample(Narrow(), [4], labels=0, steps=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seeds": []}, "no seeds"),
        ({"seeds": 64}, r"like range\(64\)"),
        ({"seeds": [1.5]}, "whole numbers"),
        ({"seeds": [-1]}, "got -1"),
        ({"seeds": [2**63]}, r"0 \.\. 2\^63 - 1"),
        ({"solver": "ddim"}, "it is called 'euler' here"),
        ({"solver": "dpmpp-3m"}, "Did you mean 'dpmpp-"),
        ({"steps": 0}, "steps"),
        ({"batch": 0}, "batch"),
        ({"labels": 3}, r"labels 0 \.\. 2"),
        ({"labels": [0, -2]}, "got -2"),
        ({"labels": [0, 1, 2]}, r"one per seed \(2\), got 3"),
        ({"labels": 0.5}, "whole number"),
        ({"labels": "cycles"}, "Did you mean 'cycle'"),
        ({"guidance": 2.0, "labels": None}, "needs a label for every image"),
        ({"guidance": float("nan")}, "finite"),
        ({"guidance_interval": (2.0, 1.0)}, "low < high"),
        ({"options": {"s_churn": 4}}, "has no options"),
        ({"solver": "churn", "options": {"churn": 4}}, "Did you mean 's_churn'"),
        ({"solver": "churn", "options": {"s_churn": -1.0}}, "s_churn"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, message):
    with pytest.raises(HeadwayError, match=message):
        sample(Classes(), **{"seeds": [0, 1], "labels": 0, **arguments})


def test_models_without_classes_or_shape_say_so():
    with pytest.raises(HeadwayError, match="the model has no classes"):
        sample(ideal(), [0], labels=1)
    with pytest.raises(HeadwayError, match="guidance=2 needs a model with classes"):
        sample(ideal(), [0], guidance=2.0)

    class Bare(nn.Module):
        framework = VE()

        def forward(self, x, sigma, labels=None):
            return torch.zeros_like(x)

    with pytest.raises(HeadwayError, match="give shape="):
        sample(Bare(), [0])
    assert sample(Bare(), [0], shape=(2, 5, 6)).images.shape == (1, 2, 5, 6)
