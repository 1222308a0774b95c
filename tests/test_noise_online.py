"""Densities that learn from losses: their rules, their state, and that several processes learn the same."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.integrate import quad

import headway
from headway.errors import HeadwayError
from headway.noise import EntropyRate, LogNormal, TaskDifficulty, build

EDM = LogNormal()
VP = headway.framework("vp").density
SIGMA = EDM.icdf((torch.arange(640, dtype=torch.float64) + 0.5) / 640)


def feed(density, *losses):
    """Steps of training whose mean loss is given."""
    for loss in losses:
        same = torch.full_like(SIGMA, loss)
        density.observe(SIGMA, same, same)
        density.reduce()


def test_curriculum_starts_noisiest_and_unlocks_downwards():
    density = TaskDifficulty(VP, clusters=4, patience=2)
    q = torch.rand(2000, dtype=torch.float64)
    for stage in (1, 2, 3, 4):
        assert density.stage == stage
        u = VP.cdf(density.icdf(q))
        floor = 1 - stage / 4
        assert u.min() >= floor - 1e-9
        # Within what is unlocked: as the base.
        torch.testing.assert_close(density.law.pdf(u.clamp(floor + 1e-9), 0.0), torch.full_like(u, 4 / stage))
        locked = VP.icdf(torch.tensor([floor / 2]).double())
        assert float(density.log_prob(locked)) == (-math.inf if stage < 4 else VP.log_prob(locked))
        feed(density, 1.0, 1.0, 1.0)
    assert density.stage == 4
    torch.testing.assert_close(density.icdf(q), VP.icdf(q))


def test_curriculum_waits_for_the_loss_to_stall():
    density = TaskDifficulty(EDM, clusters=3, patience=3)
    feed(density, *(1 - 0.01 * k for k in range(50)))
    assert density.stage == 1  # it keeps falling
    feed(density, 0.9, 0.8)
    assert density.stage == 1
    feed(density, 0.4)  # a new low starts the count again
    feed(density, 0.5, 0.5)
    assert density.stage == 1
    feed(density, 0.5)
    assert density.stage == 2
    feed(density, 10.0)  # a new stage starts from no lowest loss
    feed(density, 9.0, 9.5, 9.5)
    assert density.stage == 2


def gaussian_mse(sigma):
    return 0.25 * sigma**2 / (sigma**2 + 0.25)


def edm_weight(sigma):
    return 1 / sigma**2 + 4


def test_adaptive_follows_the_entropy_rate_of_gaussian_data():
    density = EntropyRate(EDM, loss_weight=edm_weight, bins=16, floor=0.25, memory=1000.0)
    for _ in range(20):
        density.observe(SIGMA, SIGMA, gaussian_mse(SIGMA))
        density.reduce()

    def target(x):  # per unit of ln sigma
        sigma = math.exp(x)
        gate = sigma**3 / (sigma**3 + 0.15**3)
        return gaussian_mse(sigma) / sigma**2 * gate / edm_weight(sigma)

    edges = EDM.icdf(torch.arange(1, 16).double() / 16).log().tolist()
    masses = torch.tensor([quad(target, a, b)[0] for a, b in zip([-9, *edges], [*edges, 9], strict=True)])
    expected = 0.25 / 16 + 0.75 * masses / masses.sum()
    found = density.cdf(torch.tensor([0.0, *map(math.exp, edges), math.inf], dtype=torch.float64)).diff()
    torch.testing.assert_close(found[1:-1].float(), expected[1:-1], rtol=0.02, atol=0)
    torch.testing.assert_close(found[[0, -1]].float(), expected[[0, -1]], rtol=0.3, atol=0)


def test_adaptive_begins_as_the_base_and_starves_no_bin():
    density, q = EntropyRate(EDM, bins=8, floor=0.2, memory=6400.0), torch.rand(100, dtype=torch.float64)
    assert torch.equal(density.icdf(q), EDM.icdf(q))
    one = SIGMA[:100]  # the cleanest bins alone
    density.observe(one, one, one)
    density.reduce()
    assert torch.equal(density.icdf(q), EDM.icdf(q))
    u, error = torch.linspace(0.001, 0.999, 200, dtype=torch.float64), torch.where(SIGMA[80] > SIGMA, 1.0, 1e-9)
    lows = []
    for _ in range(60):
        density.observe(SIGMA, error, error)
        density.reduce()
        lows.append(float(density.law.pdf(u, 0.0).min()))
    assert lows[0] > 0.85  # the share of what was learnt grows with what was seen
    assert lows[-1] == pytest.approx(0.2, abs=1e-3)
    assert all(low >= 0.2 for low in lows)


def test_adaptive_forgets():
    density = EntropyRate(EDM, bins=8, memory=640.0)
    feed(density, *[5.0] * 10)
    first = density.law.pdf(torch.linspace(0.05, 0.95, 8).double(), 0.0)
    rising = SIGMA.log() + 10
    for _ in range(40):
        density.observe(SIGMA, rising, rising**2)
        density.reduce()
    fresh = EntropyRate(EDM, bins=8, memory=640.0)
    for _ in range(40):
        fresh.observe(SIGMA, rising, rising**2)
        fresh.reduce()
    u = torch.linspace(0.05, 0.95, 8).double()
    torch.testing.assert_close(density.law.pdf(u, 0.0), fresh.law.pdf(u, 0.0))
    assert (density.law.pdf(u, 0.0) - first).abs().max() > 0.1


MAKERS = {
    "task-difficulty": lambda: TaskDifficulty(EDM, clusters=5, patience=3),
    "adaptive": lambda: EntropyRate(EDM, bins=16, memory=900.0),
}
each = pytest.mark.parametrize("name", MAKERS)


def run(density, steps, start=0, parts=1, total=None):
    for step in range(start, start + steps):
        generator = torch.Generator().manual_seed(step)
        q = torch.rand(64, dtype=torch.float64, generator=generator)
        loss = 1 / (1 + step) + 0.5 * torch.rand(64, dtype=torch.float64, generator=generator)
        for part in range(parts):
            cut = slice(64 * part // parts, 64 * (part + 1) // parts)
            density.observe(density.base.icdf(q[cut]).float(), loss[cut].float(), loss[cut].square())
        density.reduce(*([] if total is None else [total]))


@each
def test_state_resumes_exactly(name):
    whole, first, second = (MAKERS[name]() for _ in range(3))
    run(whole, 60)
    run(first, 35)
    state = {key: value.clone() for key, value in first.state_dict().items()}
    run(first, 5)  # what goes on does not change what was saved
    second.load_state_dict(state)
    run(second, 25, start=35)
    assert all(
        torch.equal(a, b) for a, b in zip(whole.state_dict().values(), second.state_dict().values(), strict=True)
    )
    q = torch.rand(50, dtype=torch.float64)
    assert torch.equal(whole.icdf(q), second.icdf(q))
    assert whole.icdf(q).ne(whole.base.icdf(q)).any(), "it learnt nothing"


@each
def test_two_processes_and_accumulation_learn_the_same(name):
    alone, ranks, accumulated = MAKERS[name](), [MAKERS[name](), MAKERS[name]()], MAKERS[name]()
    for step in range(60):
        run(alone, 1, start=step)
        run(accumulated, 1, start=step, parts=4)
        generator = torch.Generator().manual_seed(step)
        q = torch.rand(64, dtype=torch.float64, generator=generator)
        loss = 1 / (1 + step) + 0.5 * torch.rand(64, dtype=torch.float64, generator=generator)
        for rank, density in enumerate(ranks):
            cut = slice(32 * rank, 32 * rank + 32)
            density.observe(EDM.icdf(q[cut]).float(), loss[cut].float(), loss[cut].square())
        both = ranks[0]._sums + ranks[1]._sums
        for density in ranks:
            density.reduce(lambda mine, both=both: both.clone())
    states = [next(iter(density.state_dict().values())) for density in (alone, *ranks, accumulated)]
    assert torch.equal(states[1], states[2])
    for state in states[1:]:
        torch.testing.assert_close(state, states[0], rtol=1e-12, atol=0)


@each
def test_a_loss_that_is_not_finite_is_left_out(name):
    clean, dirty = MAKERS[name](), MAKERS[name]()
    good = torch.rand_like(SIGMA)
    bad = torch.cat([good, torch.tensor([math.nan, math.inf, 1.0])])
    clean.observe(SIGMA, good, good)
    dirty.observe(torch.cat([SIGMA, SIGMA[:3]]), bad, torch.cat([good, torch.tensor([1.0, 1.0, math.nan])]))
    for density in (clean, dirty):
        density.reduce()
    assert torch.equal(*(next(iter(density.state_dict().values())) for density in (clean, dirty)))


@each
def test_another_ones_state_is_refused(name):
    other = next(key for key in MAKERS if key != name)
    with pytest.raises(HeadwayError, match="saved state"):
        MAKERS[name]().load_state_dict(MAKERS[other]().state_dict())
    with pytest.raises(HeadwayError, match="nothing"):
        MAKERS[name]().load_state_dict({})


def test_other_options_state_is_refused():
    with pytest.raises(HeadwayError, match="5 clusters, this one 6"):
        TaskDifficulty(EDM, clusters=6).load_state_dict(MAKERS["task-difficulty"]().state_dict())
    with pytest.raises(HeadwayError, match=r"\(16, 2\)"):
        EntropyRate(EDM, bins=8).load_state_dict(MAKERS["adaptive"]().state_dict())


def test_one_bin_is_the_base():
    q = torch.rand(20, dtype=torch.float64)
    for name, chosen in (("task-difficulty", {"clusters": 1}), ("adaptive", {"bins": 1})):
        density = build(name, EDM, **chosen)
        feed(density, 1.0, 1.0)
        torch.testing.assert_close(density.icdf(q), EDM.icdf(q))
