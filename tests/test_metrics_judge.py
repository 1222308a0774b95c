"""The judge: floor, value and ceiling are measured alike, on files or tensors, in one process or several."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from headway.data import ImageSet, load, open_images
from headway.errors import HeadwayError
from headway.metrics import Judge, classifier_for, frechet_distance, gaussian_baseline, module_extractor


class Pixels(nn.Module):
    """Every other pixel: a quick extractor with a distance that can be computed by hand."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 0, ::2, ::2].flatten(1)


@pytest.fixture(scope="module")
def digits():
    return load("digits", heldout=0.3)


@pytest.fixture
def judge(digits, tmp_path):
    train, heldout = digits
    return Judge(train, heldout, module_extractor(Pixels(), (1, 8, 8)), n=300, cache=tmp_path)


def rows(images: ImageSet, n: int) -> torch.Tensor:
    return images.pixels(range(n))


def test_value_is_the_frechet_distance_from_all_training_images(judge, digits):
    train, heldout = digits
    quality = judge.quality(rows(heldout, 300))
    net = Pixels()
    assert quality.value == pytest.approx(frechet_distance(net(rows(heldout, 300)), net(train.pixels())), rel=1e-9)
    assert (quality.n, quality.floor_n, quality.reference_n) == (300, 300, len(train))
    assert quality.name.endswith(":Pixels@300")
    assert quality.extractor.startswith(quality.name.removeprefix("fd-").removesuffix("@300"))
    assert quality.accuracy is quality.classes_found is quality.class_counts is None
    assert quality.warnings == ()


def test_noise_only_makes_it_worse_and_real_images_are_near_the_floor(judge, digits):
    _, heldout = digits
    images, noise = rows(heldout, 300), torch.randn(300, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    values = [judge.quality(images + sigma * noise).value for sigma in (0.0, 0.1, 0.3, 1.0)]
    assert values == sorted(values)
    assert values[0] == pytest.approx(judge.floor, rel=0.5)
    assert values[0] < values[-1]


def test_the_ceiling_is_the_distance_of_the_pixel_gaussian(judge, digits):
    train, _ = digits
    assert judge.quality(gaussian_baseline(train, 300)).value == pytest.approx(judge.ceiling, rel=1e-9)


def test_the_number_is_that_of_the_saved_files(judge, digits, tmp_path):
    _, heldout = digits
    noise = torch.randn(300, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    images = rows(heldout, 300) + 0.3 * noise  # out of range here and there, between levels everywhere
    (tmp_path / "png").mkdir()
    for i, image in enumerate(images):
        levels = np.rint((image[0].numpy().clip(-1, 1) + 1) * 127.5).astype(np.uint8)
        Image.fromarray(levels).save(tmp_path / "png" / f"{i:03}.png")
    saved = open_images(tmp_path / "png", cache=tmp_path)
    assert judge.quality(images).value == pytest.approx(judge.quality(saved.pixels()).value, rel=1e-12)


def test_batches_of_any_size_give_the_same_number(judge, digits):
    _, heldout = digits
    images = rows(heldout, 300)
    whole = judge.quality(images).value
    assert judge.quality(iter(images.split([1, 256, 0, 43]))).value == pytest.approx(whole, rel=1e-9)
    judge.batch = 7
    assert judge.quality(images.double()).value == pytest.approx(whole, rel=1e-9)


def processes(count: int, work) -> list:
    """`work(rank, reduce)` in threads that meet in every reduction, as processes do; errors are returned."""
    barrier, shared = Barrier(count, timeout=30), [torch.empty(0)] * count

    def run(rank: int):
        def total(tensor: torch.Tensor) -> torch.Tensor:
            shared[rank] = tensor
            barrier.wait()
            result = torch.stack(shared).sum(0)
            barrier.wait()
            return result

        try:
            return work(rank, total)
        except HeadwayError as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_several_processes_give_the_number_of_one(judge, digits, tmp_path):
    train, heldout = digits
    images = rows(heldout, 300)
    alone = judge.quality(images)

    def share(rank, reduce):
        return Judge(train, heldout, judge.extractor, n=300, cache=tmp_path, reduce=reduce).quality(images[rank::2])

    for quality in processes(2, share):
        assert quality == replace(alone, value=quality.value)
        assert quality.value == pytest.approx(alone.value, rel=1e-9)


def test_nan_in_one_process_stops_them_all(judge, digits, tmp_path):
    train, heldout = digits
    images = rows(heldout, 300)
    images[4:11:2, 0, 3, 3] = float("nan")

    def share(rank, reduce):
        return Judge(train, heldout, judge.extractor, n=300, cache=tmp_path, reduce=reduce).quality(images[rank::2])

    assert [str(error)[:30] for error in processes(2, share)] == ["4 of 300 samples contain NaN o"] * 2


def test_what_cannot_be_judged_is_refused(judge, digits):
    train, heldout = digits
    images = rows(heldout, 300)
    for wrong, message in [
        (images[:0], "no samples"),
        ([], "no samples"),
        (images[:299], "Got 299 samples.*for 300"),
        (images.repeat(1, 3, 1, 1), r"\(n, 1, 8, 8\)"),
        (((images + 1) * 127).byte(), "uint8"),
        (images[0], r"\(n, 1, 8, 8\)"),
        (torch.full_like(images, float("inf")), "300 of 300 samples contain NaN or infinity"),
    ]:
        with pytest.raises(HeadwayError, match=message):
            judge.quality(wrong)
    with pytest.raises(HeadwayError, match="Cannot judge 1 samples"):
        Judge(train, heldout, judge.extractor, n=1)
    other = ImageSet(np.zeros((9, 3, 8, 8), np.uint8), None, None, "colour", "f")
    with pytest.raises(HeadwayError, match="two parts of one data set"):
        Judge(train, other, judge.extractor, n=10)


def test_doubtful_numbers_carry_warnings(digits, judge, tmp_path):
    train, heldout = digits

    def doubts(n: int, images: torch.Tensor) -> str:
        quality = Judge(train, heldout, judge.extractor, n=n, cache=tmp_path).quality(images)
        assert len(quality.warnings) == 1
        return quality.warnings[0]

    assert doubts(16, rows(heldout, 16)).startswith("16 images for 16 features")
    assert f"floor is that of {len(heldout)} held-out" in doubts(600, rows(train, 600) * 0.9)
    everything = Judge(train, heldout, judge.extractor, n=len(train), cache=tmp_path).quality(train.pixels())
    assert "training images" in everything.warnings[-1]


def test_a_data_set_is_measured_once_for_one_extractor(digits, tmp_path):
    train, heldout = digits
    measured = []

    class Scaled(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor  # code or configuration, not a weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            measured.append(len(x))
            return self.factor * x[:, 0, ::2, ::2].flatten(1)

    def judged(factor: float) -> tuple[float, float, float, int]:
        measured.clear()
        extractor = module_extractor(Scaled(factor), (1, 8, 8))
        judge = Judge(train, heldout, extractor, n=200, cache=tmp_path)
        values = judge.quality(rows(heldout, 200)).value, judge.floor, judge.ceiling
        return *values, sum(measured)

    *first, images = judged(1.0)
    *second, fewer = judged(1.0)
    assert first == second
    assert images == 1 + 8 + len(train) + 3 * 200
    assert fewer == 1 + 8 + 200
    *third, again = judged(2.0)  # the same name and no weights, but other features
    assert again == images
    assert third == pytest.approx([4 * value for value in first], rel=1e-6)


def test_progress_reports_the_images_of_the_data_set(digits, tmp_path):
    train, heldout = digits
    seen = []
    extractor = module_extractor(Pixels(), (1, 8, 8))
    judge = Judge(train, heldout, extractor, n=100, cache=tmp_path, progress=lambda *at: seen.append(at))
    assert judge.reference.n == len(train)
    assert seen[-1] == (len(train), len(train))
    assert seen == sorted(seen)


def test_the_classifier_counts_classes():
    train, heldout = load("digits")
    extractor = classifier_for(train, heldout)
    judge = Judge(train, heldout, extractor, n=100)
    ones = train.pixels(np.flatnonzero(train.labels == 1)[:100])
    quality = judge.quality(ones)
    assert quality.name == "fd-classifier@100"
    assert quality.accuracy == extractor.accuracy > 0.95
    assert quality.class_counts[1] > 90
    assert sum(quality.class_counts) == 100
    assert quality.classes_found == sum(count > 0 for count in quality.class_counts) < 10
    assert judge.floor < judge.ceiling < quality.value  # one class alone is worse than a blur of all


# The Gaussian


def test_the_gaussian_has_the_training_mean_and_covariance():
    rng = np.random.default_rng(0)
    low = rng.normal(128, 10, (40, 5)) @ rng.normal(0, 0.3, (5, 12)) + 100
    images = ImageSet(low.clip(0, 255).astype(np.uint8).reshape(40, 3, 2, 2), None, None, "toy", "f")
    pixels = images.pixels().flatten(1).double()
    samples = gaussian_baseline(images, 40_000, seed=1)
    assert samples.shape == (40_000, 3, 2, 2)
    assert samples.dtype == torch.float32
    flat = samples.flatten(1).double()
    scale = pixels.T.cov().diagonal().max()
    torch.testing.assert_close(flat.mean(0), pixels.mean(0), rtol=0, atol=float(0.03 * scale.sqrt()))
    torch.testing.assert_close(flat.T.cov(), pixels.T.cov(), rtol=0, atol=float(0.03 * scale))


def test_the_gaussian_stays_in_the_span_of_the_images_and_in_range():
    rng = np.random.default_rng(0)
    calm = rng.integers(100, 150, (6, 1, 8, 8)).astype(np.uint8)
    images = ImageSet(calm, None, None, "toy", "f")
    pixels = images.pixels().flatten(1)
    offsets = gaussian_baseline(images, 300).flatten(1) - pixels.mean(0)
    basis = torch.linalg.svd(pixels - pixels.mean(0)).Vh[:5]
    torch.testing.assert_close(offsets @ basis.T @ basis, offsets, rtol=0, atol=1e-5)
    harsh = ImageSet((calm > 125).astype(np.uint8) * 255, None, None, "toy", "g")
    assert gaussian_baseline(harsh, 300).abs().max() == 1
    assert torch.equal(gaussian_baseline(images, 300), gaussian_baseline(images, 300))
    assert torch.equal(gaussian_baseline(images, 300)[:256], gaussian_baseline(images, 256))
    assert not torch.equal(gaussian_baseline(images, 9, seed=1), gaussian_baseline(images, 9, seed=2))
