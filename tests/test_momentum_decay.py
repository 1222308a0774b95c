"""MomentumDecay around torch's optimisers, against recursions written by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR, OneCycleLR, ReduceLROnPlateau

from headway.errors import HeadwayError
from headway.optim import MomentumDecay, law

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
KINDS = [{"foreach": False}, {"foreach": True}, {"fused": True}, {"capturable": True}]
LR, STEPS = 1e-2, 30


def parameters(device="cpu", dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(n, generator=generator, dtype=dtype).to(device)) for n in (3, 4)]


def gradients(step, weights):
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(w.shape, generator=generator, dtype=w.dtype).to(w.device) + 0.5 * w.detach() for w in weights]


def take(optimizer, weights, step):
    for weight, gradient in zip(weights, gradients(step, weights), strict=True):
        weight.grad = gradient
    optimizer.step()


def by_hand(steps, total, rule, decay=0.0, b2=0.999, warmup=0, b0=0.9):
    """AdamW in plain arithmetic with torch's bias correction; ``rule``: (lr factor, beta1) at tau."""
    weights = [w.detach().clone() for w in parameters()]
    m, v = [torch.zeros_like(w) for w in weights], [torch.zeros_like(w) for w in weights]
    for i in range(steps):
        factor, b1 = rule(min(1.0, max(0.0, (i - warmup) / (total - warmup))), b0)
        lr = LR * factor
        for j, g in enumerate(gradients(i, weights)):
            m[j] = b1 * m[j] + (1 - b1) * g
            v[j] = b2 * v[j] + (1 - b2) * g * g
            step = m[j] / (1 - b1 ** (i + 1)) / ((v[j] / (1 - b2 ** (i + 1))).sqrt() + 1e-8)
            weights[j] = weights[j] * (1 - lr * decay) - lr * step
    return weights


def demon(tau, b0):
    return 1 - b0 * tau, b0 * (1 - tau) / (1 - b0 * tau)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: next(iter(kind)) + str(next(iter(kind.values()))))
@pytest.mark.parametrize("tensors", [False, True], ids=["floats", "tensors"])
@pytest.mark.parametrize(("factory", "decay"), [(Adam, 0.0), (AdamW, 0.1)])
def test_adam_of_every_kind_follows_the_recursion(factory, decay, kind, tensors, device):
    if kind.get("capturable") and device == "cpu":
        pytest.skip("torch steps capturable optimisers on accelerators only; test_compiled covers them here")
    if tensors and kind.get("foreach"):
        with pytest.raises(ValueError, match=r"lr as a Tensor is not supported .* foreach=True"):
            factory(parameters(), lr=torch.tensor(LR), **kind)
        return
    weights = parameters(device)
    lr = torch.tensor(LR, dtype=torch.float64, device=device) if tensors else LR
    optimizer = factory(weights, lr=lr, weight_decay=decay, **kind)
    momentum = MomentumDecay(optimizer, STEPS, warmup_steps=5)
    for i in range(STEPS + 3):  # past the end it stays at the end
        take(optimizer, weights, i)
        momentum.step()
    for weight, expected in zip(weights, by_hand(STEPS + 3, STEPS, demon, decay, warmup=5), strict=True):
        torch.testing.assert_close(weight.detach().cpu(), expected, rtol=1e-10, atol=1e-12)
    assert optimizer.param_groups[0]["betas"][0] == 0
    assert optimizer.param_groups[0]["betas"][1] == 0.999
    assert (optimizer.param_groups[0]["lr"] is lr) == tensors


@pytest.mark.parametrize(
    "options", [{"beta_end": 0.5}, {"floor": 0.6}, {"law": "decay-only"}, {"law": "compensation-only"}]
)
def test_options_and_controls(options):
    weights = parameters()
    optimizer = AdamW(weights, lr=LR, weight_decay=0.0)
    momentum = MomentumDecay(optimizer, STEPS, **options)
    for i in range(STEPS):
        take(optimizer, weights, i)
        momentum.step()
    rule = law(options.pop("law", "mdlrc"), **options)
    for weight, expected in zip(weights, by_hand(STEPS, STEPS, rule), strict=True):
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dampening", [0.0, 0.9])
@pytest.mark.parametrize("fused", [False, True])
def test_sgd_by_the_form_of_its_momentum(dampening, fused):
    """dampening 0: v = b v + g at a constant rate. dampening = momentum: v = b v + (1 - b) g at the rate lr D."""
    weights, hand = parameters(), [w.detach().clone() for w in parameters()]
    optimizer = SGD(weights, lr=LR, momentum=0.9, dampening=dampening, fused=fused)
    momentum = MomentumDecay(optimizer, STEPS)
    velocity: list[torch.Tensor] = []
    for i in range(STEPS + 2):
        factor, b1 = demon(min(1, i / STEPS), 0.9)
        group = optimizer.param_groups[0]
        assert group["momentum"] == pytest.approx(b1, abs=1e-15)
        assert group["lr"] == pytest.approx(LR * (factor if dampening else 1))
        newest = 1 - b1 if dampening else 1.0
        grads = gradients(i, hand)
        velocity = [b1 * v + newest * g for v, g in zip(velocity, grads, strict=True)] if velocity else grads
        hand = [w - group["lr"] * v for w, v in zip(hand, velocity, strict=True)]
        take(optimizer, weights, i)
        momentum.step()
    for weight, expected in zip(weights, hand, strict=True):
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("total", "bound"), [(100, 0.0261), (1_000, 0.0028), (10_000, 0.0003)])
def test_the_error_of_torch_s_bias_correction_is_bounded(total, bound):
    """torch divides by 1 - beta1^t with today's beta1; exact were 1 - (product of all). On a constant gradient of 1:"""
    product, errors = 1.0, []
    for i in range(total):
        b1 = law("mdlrc")(i / total, 0.9).beta1
        product *= b1
        errors.append(1 - (1 - product) / (1 - b1 ** (i + 1)))
    assert min(errors) > -1e-12  # the step is never too long
    assert bound / 2 < max(errors) < bound

    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = Adam([weight], lr=LR)
    momentum = MomentumDecay(optimizer, total)
    for i in range(50):
        b1 = optimizer.param_groups[0]["betas"][0]
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        momentum.step()
        assert optimizer.state[weight]["exp_avg"].item() / (1 - b1 ** (i + 1)) == pytest.approx(1 - errors[i], rel=1e-9)


def test_compensation_makes_it_demon_adam():
    """Demon-Adam sums m = g + b m at a constant rate lr (1 - b0); EMA-Adam with compensation is that up to O(d beta1 / dt)."""

    def furthest(total, compensated):
        generator = torch.Generator().manual_seed(3)
        m = total_m = largest = apart = 0.0
        for i in range(total):
            factor, b1 = demon(i / total, 0.9)
            g = torch.randn((), generator=generator, dtype=torch.float64).item()
            m, total_m = b1 * m + (1 - b1) * g, b1 * total_m + g
            largest = max(largest, abs(total_m) * 0.1)
            apart = max(apart, abs((factor if compensated else 1.0) * m - 0.1 * total_m))
        return apart / largest

    errors = [furthest(total, True) for total in (200, 2_000, 20_000)]
    assert errors[0] < 0.1
    assert errors[1] < errors[0] / 4
    assert errors[2] < errors[1] / 4
    assert furthest(20_000, False) > 1


def test_groups_keep_their_own_rate_and_momentum():
    shared = torch.tensor(LR)
    a, b = parameters()
    optimizer = AdamW([{"params": [a]}, {"params": [b], "betas": (0.5, 0.9)}], lr=shared)  # torch shares the tensor
    momentum = MomentumDecay(optimizer, 10)
    for _ in range(5):
        momentum.step()
    for group, (b0, b2) in zip(optimizer.param_groups, [(0.9, 0.999), (0.5, 0.9)], strict=True):
        factor, b1 = demon(0.5, b0)
        assert float(group["lr"]) == pytest.approx(LR * factor)
        assert group["betas"] == (pytest.approx(b1), b2)


SCHEDULERS = {
    "warm-up": lambda o: LambdaLR(o, lambda i: min(1, (i + 1) / 5)),
    "chained": lambda o: ExponentialLR(o, 0.9),  # computes from the rate it finds: must find it uncompensated
    "cosine": lambda o: CosineAnnealingLR(o, 20),
}


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("tensor", [False, True])
def test_a_scheduler_handed_over_multiplies(name, tensor):
    plain, driven = (AdamW(parameters(), lr=torch.tensor(LR, dtype=torch.float64) if tensor else LR) for _ in range(2))
    reference, scheduler = SCHEDULERS[name](plain), SCHEDULERS[name](driven)
    momentum = MomentumDecay(driven, 20, warmup_steps=4, lr_scheduler=scheduler)
    for i in range(25):
        factor = demon(min(1, max(0, (i - 4) / 16)), 0.9)[0]
        assert float(driven.param_groups[0]["lr"]) == pytest.approx(float(plain.param_groups[0]["lr"]) * factor)
        for optimizer in (plain, driven):
            take(optimizer, optimizer.param_groups[0]["params"], i)
        reference.step()
        momentum.step()


def test_a_plateau_scheduler_gets_its_metric():
    optimizer = AdamW(parameters(), lr=LR)
    momentum = MomentumDecay(optimizer, 10, lr_scheduler=ReduceLROnPlateau(optimizer, factor=0.1, patience=0))
    for i, metric in enumerate((1.0, 2.0, 3.0)):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(LR * 0.1 ** max(0, i - 1) * demon(i / 10, 0.9)[0])
        take(optimizer, optimizer.param_groups[0]["params"], i)
        momentum.step(metric)


@pytest.mark.parametrize("momentum_first", [False, True])
@pytest.mark.parametrize("name", [None, *SCHEDULERS])
@pytest.mark.parametrize("tensor", [False, True])
def test_resuming_in_mid_schedule_is_as_if_never_stopped(name, tensor, momentum_first):
    if tensor and momentum_first:
        pytest.skip("documented order: the optimizer's state first")

    def start():
        weights = parameters()
        optimizer = AdamW(weights, lr=torch.tensor(LR) if tensor else LR)
        scheduler = SCHEDULERS[name](optimizer) if name else None
        return weights, optimizer, MomentumDecay(optimizer, 20, warmup_steps=2, lr_scheduler=scheduler)

    def run(weights, optimizer, momentum, steps):
        for i in steps:
            take(optimizer, weights, i)
            momentum.step()
            yield float(optimizer.param_groups[0]["lr"]), optimizer.param_groups[0]["betas"]

    whole, part, resumed = start(), start(), start()
    expected = list(run(*whole, range(25)))
    list(run(*part, range(9)))
    with torch.no_grad():
        for to, source in zip(resumed[0], part[0], strict=True):
            to.copy_(source)
    saved = part[2].state_dict()
    for k in (2, 1) if momentum_first else (1, 2, 2):  # loading twice is loading once
        resumed[k].load_state_dict(saved if k == 2 else part[1].state_dict())
    assert list(run(*resumed, range(9, 25))) == expected[9:]
    for a, b in zip(whole[0], resumed[0], strict=True):
        assert torch.equal(a, b)


def test_state_of_other_settings_is_refused():
    def build(**options):
        return MomentumDecay(AdamW(parameters(), lr=LR), **({"total_steps": 10} | options))

    state = build().state_dict()
    assert state == {
        "settings": {"law": "mdlrc", "total_steps": 10, "warmup_steps": 0, "beta_end": None, "floor": 0.0},
        "steps": 0,
        "lr": [LR],
        "beta1": [0.9],
        "lr_scheduler": None,
    }
    with pytest.raises(HeadwayError, match="saved with total_steps=10 and built with total_steps=20"):
        build(total_steps=20).load_state_dict(state)
    with pytest.raises(HeadwayError, match="floor"):
        build(floor=0.1).load_state_dict(state)
    optimizer = AdamW(parameters(), lr=LR)
    with pytest.raises(HeadwayError, match="scheduler"):
        MomentumDecay(optimizer, 10, lr_scheduler=ExponentialLR(optimizer, 0.9)).load_state_dict(state)
    two = AdamW([{"params": [p]} for p in parameters()], lr=LR)
    with pytest.raises(HeadwayError, match="1 parameter groups, the optimizer has 2"):
        MomentumDecay(two, 10).load_state_dict(state)


class Stub(torch.optim.Optimizer):
    """Has whatever an optimiser's groups may have; the class gets its name in the test."""

    def __init__(self, defaults):
        super().__init__([nn.Parameter(torch.zeros(2, 2))], {"lr": LR} | defaults)


def named(name, **defaults):
    return type(name, (Stub,), {})(defaults)


REFUSED = {
    "Lion": (lambda: named("Lion", betas=(0.9, 0.99)), "sign"),
    "AdamWScheduleFree": (lambda: named("AdamWScheduleFree", betas=(0.9, 0.99)), "between two sequences"),
    "Prodigy": (lambda: named("Prodigy", betas=(0.9, 0.99)), "owns the learning rate"),
    "Adan": (lambda: named("Adan", betas=(0.98, 0.92, 0.99)), "3 betas"),
    "Muon": (lambda: torch.optim.Muon([nn.Parameter(torch.zeros(2, 2))]), "orthogonalised"),
    "NAdam": (lambda: torch.optim.NAdam(parameters()), "schedule of its own"),
    "RMSprop": (lambda: torch.optim.RMSprop(parameters(), momentum=0.9), "neither betas nor SGD's momentum"),
    "Adagrad": (lambda: torch.optim.Adagrad(parameters()), "neither"),
    "SGD": (lambda: SGD(parameters(), lr=LR), "between 0 and 1; SGD has 0"),
    "Adam": (lambda: Adam(parameters(), betas=(0.0, 0.9)), "between 0 and 1; Adam has 0"),
    "SGD nesterov": (lambda: SGD(parameters(), lr=LR, momentum=0.9, nesterov=True), "nesterov=True"),
    "SGD dampened": (lambda: SGD(parameters(), lr=LR, momentum=0.9, dampening=0.5), "dampening=0.5"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_optimisers_without_one_momentum_are_refused_by_name(name):
    build, reason = REFUSED[name]
    with pytest.raises(HeadwayError, match=name.split()[0]) as caught:
        MomentumDecay(build(), 10)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"law": "cosine"}, "torch's schedulers"),
        ({"total_steps": 0}, "warm-up must end"),
        ({"warmup_steps": 10}, "warm-up must end"),
        ({"beta_end": 0.95}, "beta_end must lie between 0 and beta1 = 0.9"),
    ],
)
def test_wrong_settings_are_refused(options, message):
    with pytest.raises(HeadwayError, match=message):
        MomentumDecay(AdamW(parameters(), lr=LR), **({"total_steps": 10} | options))


def test_a_control_of_the_heavy_ball_is_refused():
    with pytest.raises(HeadwayError, match="dampening = momentum"):
        MomentumDecay(SGD(parameters(), lr=LR, momentum=0.9), 10, law="decay-only")


def test_second_owners_are_refused():
    optimizer = AdamW(parameters(), lr=LR)
    MomentumDecay(optimizer, 10)
    with pytest.raises(HeadwayError, match="already has a MomentumDecay"):
        MomentumDecay(optimizer, 10)

    scheduled = AdamW(parameters(), lr=LR)
    scheduler = ExponentialLR(scheduled, 0.9)
    with pytest.raises(HeadwayError, match=r"a torch scheduler .* MomentumDecay multiplies it"):
        MomentumDecay(scheduled, 10)
    with pytest.raises(HeadwayError, match="another optimizer"):
        MomentumDecay(AdamW(parameters(), lr=LR), 10, lr_scheduler=scheduler)

    cycled = AdamW(parameters(), lr=LR)
    with pytest.raises(HeadwayError, match="cycle_momentum=False"):
        MomentumDecay(cycled, 10, lr_scheduler=OneCycleLR(cycled, 0.1, 10))
    uncycled = AdamW(parameters(), lr=LR)
    MomentumDecay(uncycled, 10, lr_scheduler=OneCycleLR(uncycled, 0.1, 10, cycle_momentum=False))


@pytest.mark.parametrize("tensors", [False, True])
def test_somebody_else_s_change_is_refused(tensors):
    def start():
        lr, b1 = (torch.tensor(LR), torch.tensor(0.9)) if tensors else (LR, 0.9)
        optimizer = AdamW(parameters(), lr=lr, betas=(b1, torch.tensor(0.99) if tensors else 0.99))
        return optimizer, MomentumDecay(optimizer, 10)

    optimizer, momentum = start()
    momentum.step()
    optimizer.param_groups[0]["lr"] *= 0.5
    with pytest.raises(HeadwayError, match="learning rate or momentum of parameter group 0 was changed"):
        momentum.step()
    optimizer, momentum = start()
    ExponentialLR(optimizer, 0.9)  # built afterwards and not handed over
    with pytest.raises(HeadwayError, match="hand a scheduler over"):
        momentum.step()
    optimizer, momentum = start()
    momentum.step()
    fresh, late = start()
    fresh.load_state_dict(optimizer.state_dict())
    with pytest.raises(HeadwayError, match="state after the optimizer's"):  # and this object's was forgotten
        late.step()
    optimizer, momentum = start()
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    with pytest.raises(HeadwayError, match="1 parameter groups, the optimizer has 2"):
        momentum.step()


def test_wrappers_are_seen_through():
    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    inner = SGD(parameters(), lr=LR, momentum=0.9, dampening=0.9)
    scheduler = ExponentialLR(inner, 0.5)
    momentum = MomentumDecay(Wrapper(inner), 10, lr_scheduler=scheduler)
    take(inner, inner.param_groups[0]["params"], 0)
    momentum.step()
    assert inner.param_groups[0]["lr"] == pytest.approx(LR * 0.5 * 0.91)
    with pytest.raises(HeadwayError, match="SGD"):
        MomentumDecay(Wrapper(SGD(parameters(), lr=LR)), 10)


# How many graphs torch.compile makes of AdamW's step over a whole schedule and past its end, floats and tensors.
COMPILED = [({}, 2), ({"foreach": False}, 2), ({"capturable": True}, 2), ({"foreach": True}, 3)]


@pytest.mark.parametrize(("kind", "graphs"), COMPILED, ids=lambda value: str(value))
@pytest.mark.parametrize("tensors", [False, True], ids=["floats", "tensors"])
def test_compiled(kind, graphs, tensors):
    if tensors and kind.get("foreach"):
        pytest.skip("torch refuses tensors with foreach=True")
    torch._dynamo.reset()
    counter = CompileCounter()
    weights = parameters()
    lr, betas = LR, (0.9, 0.999)
    if tensors:
        lr, betas = torch.tensor(LR, dtype=torch.float64), tuple(torch.tensor(b, dtype=torch.float64) for b in betas)
    optimizer = AdamW(weights, lr=lr, betas=betas, weight_decay=0.0, **kind)
    momentum = MomentumDecay(optimizer, STEPS)
    step = torch.compile(optimizer.step, backend=counter)
    for i in range(STEPS + 3):
        for weight, gradient in zip(weights, gradients(i, weights), strict=True):
            weight.grad = gradient
        step()
        momentum.step()
    assert counter.frame_count <= (1 if tensors else graphs)
    for weight, expected in zip(weights, by_hand(STEPS + 3, STEPS, demon), strict=True):
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-5, atol=1e-6)  # its counter is float32
