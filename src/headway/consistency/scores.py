"""How alike are the images two models make from the same noise: likeness per image, and a score that chance sets to zero."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from headway.errors import HeadwayError

Measure = Callable[[Tensor, Tensor], Tensor]

_WINDOW, _WINDOW_SIGMA = 11, 1.5
_LEAST_FOR_AN_INTERVAL = 8
_CHUNK = 64  # images, or resamples, at a time: bounds the memory


def psnr(a: Tensor, b: Tensor, data_range: float = 2.0) -> Tensor:
    """Peak signal-to-noise ratio of each pair, (n,) float64 in dB: 10 log10(range^2 / mean squared error); equal images: inf.

    Args:
        a, b: (n, C, H, W) images in [-1, 1]; nothing is clipped here.
    """
    _refuse_mismatch(a, b)
    error = (a.double() - b.double()).square().flatten(1).mean(1)
    return 10 * (data_range**2 / error).log10()


def ssim(a: Tensor, b: Tensor, data_range: float = 2.0) -> Tensor:
    """Structural similarity of each pair, (n,) float64 in [-1, 1], mean over channels (Wang et al. 2004, equation 13).

    Of the images as pictures, in 0 .. range: [-1, 1] is moved up by 1 first, because SSIM compares brightness by ratio and so
    depends on where black is. K1 = 0.01, K2 = 0.03. The window is a Gaussian of 11 x 11 pixels with standard deviation 1.5,
    and the mean is over the places where it lies wholly inside. On images with a side below 11 it shrinks to the largest odd
    size that fits and its standard deviation in proportion; below 3 pixels there is no window.

    Args:
        a, b: (n, C, H, W) images in [-range / 2, range / 2]; nothing is clipped here.
    """
    _refuse_mismatch(a, b)
    side = min(a.shape[2:]) if a.ndim == 4 else 0
    if side < 3:
        raise HeadwayError(f"SSIM needs images (n, C, H, W) of 3 x 3 pixels or more, got shape {tuple(a.shape)}.")
    pairs = zip(torch.split(a, _CHUNK), torch.split(b, _CHUNK), strict=True)
    return torch.cat([_ssim(x.double(), y.double(), min(side, _WINDOW), data_range) for x, y in pairs])


def _ssim(a: Tensor, b: Tensor, side: int, data_range: float) -> Tensor:
    size = side - (side + 1) % 2
    place = torch.arange(size, dtype=a.dtype, device=a.device) - size // 2
    window = (-0.5 * (place / (_WINDOW_SIGMA * size / _WINDOW)).square()).softmax(0)
    # The window is separable, and as two matrices (side, places) several times faster than as a convolution.
    down, across = (F.conv1d(torch.eye(n).to(a)[:, None], window[None, None])[:, 0] for n in a.shape[2:])
    x, y = a + data_range / 2, b + data_range / 2
    mean_x, mean_y, xx, yy, xy = (down.T @ moment @ across for moment in (x, y, x.square(), y.square(), x * y))
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    brightness = (2 * mean_x * mean_y + c1) / (mean_x.square() + mean_y.square() + c1)
    structure = (2 * (xy - mean_x * mean_y) + c2) / (xx - mean_x.square() + yy - mean_y.square() + c2)
    return (brightness * structure).flatten(1).mean(1)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of each pair of feature vectors (n, d), (n,) float64."""
    _refuse_mismatch(a, b)
    return F.cosine_similarity(a.double().flatten(1), b.double().flatten(1))


def derangement(n: int, generator: torch.Generator) -> Tensor:
    """A permutation (n,) int64 that leaves nothing in its place, uniform among those. The generator is on the CPU."""
    if n < 2:
        raise HeadwayError(f"A random pair needs 2 or more noises, got {n}.")
    while True:  # 1 in e permutations is one
        order = torch.randperm(n, generator=generator)
        if not bool((order == torch.arange(n)).any()):
            return order


def same_and_random(measure: Measure, a: Tensor, b: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """``measure`` of the pairs of the same noise, and of as many pairs of different noises (a derangement): the chance level.

    Args:
        measure: :func:`psnr`, :func:`ssim`, :func:`cosine` or any other of two stacks (n, ...) that returns (n,).
        a, b: what two models made of the same n noises.
    """
    other = derangement(len(a), generator).to(b.device)
    return measure(a, b), measure(a, b[other])


@dataclass(frozen=True)
class Consistency:
    """What :func:`consistency_score` returns.

    Attributes:
        score: 1 - same / random, at most 1; 0 is chance. low, high: its bootstrap interval over noises.
        same, random: mean squared distance of pairs of the same noise, and of all pairs of different noises.
        replicates: (resamples,) float64, the score of each resample. Of several pairs of models scored with generators in
            the same state and as many noises they belong together: average or subtract them, then :func:`interval`.
    """

    score: float
    low: float
    high: float
    same: float
    random: float
    replicates: Tensor = field(repr=False)


def consistency_score(
    a: Tensor, b: Tensor, generator: torch.Generator, *, resamples: int = 1000, confidence: float = 0.95
) -> Consistency:
    """1 - E|a_i - b_i|^2 / E|a_i - b_j|^2 (i != j), and its percentile bootstrap interval over noises.

    This is Lin's concordance correlation coefficient (Lin 1989; as a ratio of distances, King and Chinchilli 2001) for vectors:
    2 tr Cov(a, b) / (tr Var a + tr Var b + |E a - E b|^2), with the unbiased estimate of each of its three parts. The sum over
    pairs is taken in closed form, O(n d) per resample. A noise drawn twice in a resample is not a random pair with itself.

    Args:
        a, b: (n, ...) images or features of two models from the same n noises, n >= 8. generator: on the CPU.
        resamples: of the noises, >= 1. confidence: of the interval, in (0, 1).

    Raises:
        HeadwayError: for stacks that do not belong together, and where no image differs from any other.
    """
    _refuse_mismatch(a, b)
    n = len(a)
    if n < _LEAST_FOR_AN_INTERVAL or resamples < 1:
        raise HeadwayError(
            f"A consistency score needs {_LEAST_FOR_AN_INTERVAL} noises and 1 resample or more (1,000 of both is usual), "
            f"got {n} and {resamples}."
        )
    a, b = a.double().flatten(1), b.double().flatten(1)
    centre = (a.mean(0) + b.mean(0)) / 2  # distances do not see it, rounding does
    a, b = a - centre, b - centre
    same, random = (float(value) for value in _distances(a, b, a.new_ones(1, n)))
    if not random > 0:
        raise HeadwayError(
            "All images of both models are one and the same, so there is no chance level to compare with."
        )
    replicates = []
    for first in range(0, resamples, _CHUNK):
        drawn = torch.randint(n, (min(_CHUNK, resamples - first), n), generator=generator)
        counts = torch.zeros(drawn.shape, dtype=a.dtype).scatter_add_(1, drawn, torch.ones_like(drawn, dtype=a.dtype))
        near, far = _distances(a, b, counts.to(a.device))
        replicates.append((1 - near / far).cpu())
    scores = torch.cat(replicates)
    return Consistency(1 - same / random, *interval(scores, confidence), same, random, scores)


def interval(replicates: Tensor, confidence: float = 0.95) -> tuple[float, float]:
    """The percentile interval of bootstrap replicates (R,)."""
    if not 0 < confidence < 1:
        raise HeadwayError(f"confidence must lie between 0 and 1 (0.95 is usual), got {confidence}.")
    tails = torch.tensor([(1 - confidence) / 2, (1 + confidence) / 2], dtype=replicates.dtype, device=replicates.device)
    low, high = replicates.quantile(tails).tolist()
    return low, high


def _distances(a: Tensor, b: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Mean |a_i - b_i|^2 and mean |a_i - b_j|^2 over i != j, each (R,), where noise i occurs counts (R, n) times."""
    own = (a - b).square().sum(1)
    n, repeats = counts.sum(1), counts.square()
    every = n * (counts @ (a.square().sum(1) + b.square().sum(1))) - 2 * ((counts @ a) * (counts @ b)).sum(1)
    return counts @ own / n, (every - repeats @ own) / (n.square() - repeats.sum(1))


def _refuse_mismatch(a: Tensor, b: Tensor) -> None:
    if a.shape != b.shape or a.ndim < 2 or len(a) == 0:
        raise HeadwayError(
            "Two models are compared on the same noises: give two stacks (n, ...) of one shape, "
            f"got {tuple(a.shape)} and {tuple(b.shape)}."
        )
