"""The weight warm-up, against the published recursion."""

from __future__ import annotations

import math

import pytest
import torch

import headway
from headway.errors import HeadwayError
from headway.weighting import warmed_up, warmup_ceiling


@pytest.mark.parametrize(("calls", "batch"), [(200, 512), (400, 256), (7, 3)])
def test_the_published_recursion(calls, batch):
    """Per call of the loss, from c = 5: while c < 500, clamp at c, then c *= exp(ln 100 / W); so W calls are clamped."""
    c, step, sigma = 5.0, math.exp(math.log(100) / calls), torch.logspace(-3, 1, 50, dtype=torch.float64)
    weight = headway.framework("edm").weight(sigma)
    for call in range(calls + 3):
        expected = weight
        if c < 500 * (1 - 1e-9):  # rounding must not decide whether call W is clamped
            expected = weight.clamp(max=c)
            c *= step
        torch.testing.assert_close(warmed_up(weight, call * batch, calls * batch), expected, rtol=1e-11, atol=0)
    assert [warmup_ceiling(n, 200) for n in (0, 100, 200)] == pytest.approx([5, 50, math.inf])


def test_smooth_end_never_jumps():
    values = torch.tensor([warmup_ceiling(n, 200, smooth=True) for n in range(2000)], dtype=torch.float64)
    torch.testing.assert_close(values[1:] / values[:-1], torch.full((1999,), 100 ** (1 / 200)).double())
    assert values[:200].tolist() == [warmup_ceiling(n, 200) for n in range(200)]
    assert warmup_ceiling(10**12, 1, smooth=True) == math.inf  # not an OverflowError


@pytest.mark.parametrize("smooth", [False, True])
def test_no_warmup_leaves_the_weight_alone(smooth):
    weight = torch.tensor([[1.0, 1e9], [math.inf, 0.0]])
    assert torch.equal(warmed_up(weight, 0, 0, smooth=smooth), weight)


@pytest.mark.parametrize(("nimg", "length"), [(-1, 10), (0, -1)])
def test_negative_counts_are_refused(nimg, length):
    with pytest.raises(HeadwayError, match="nimg >= 0"):
        warmup_ceiling(nimg, length)
