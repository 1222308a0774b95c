"""Weights written and put back: to the last bit, whatever happens inside."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headway.errors import HeadwayError
from headway.landscape import flat, hessian, loss_at, written


def network(dtype=torch.float32):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.Flatten(), nn.Linear(4 * 36, 3), nn.Dropout(0.0)
    )
    net[0].bias.requires_grad_(False)
    net[1].eval()
    return net.to(dtype)


def batch(dtype=torch.float32):
    return torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(1)).to(dtype)


def state(net):
    tensors = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    return tensors, [part.training for part in net.modules()], [p.requires_grad for p in net.parameters()]


def assert_same(before, net):
    tensors, modes, flags = before
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, tensors[name]), name
    assert [part.training for part in net.modules()] == modes
    assert [p.requires_grad for p in net.parameters()] == flags


def vandal(net):
    """A loss that leaves nothing as it was."""
    net.train()
    net(batch())
    net[1].running_var = torch.zeros(4)
    net.requires_grad_(False)
    net[4].weight.fill_(7.0)
    return net[4].weight.sum()


@pytest.mark.parametrize("failure", [None, RuntimeError, KeyboardInterrupt])
def test_everything_is_put_back(failure):
    net = network()
    before, mean = state(net), net[1].running_mean

    def inside():
        with written(net, torch.randn_like(flat(net))):
            vandal(net)
            if failure:
                raise failure

    if failure:
        with pytest.raises(failure):
            inside()
    else:
        inside()
    assert_same(before, net)
    assert net[1].running_mean is mean


def test_ctrl_c_while_putting_back(monkeypatch):
    """Impatience: a second Ctrl-C arrives while the weights are being restored."""
    net = network()
    before, copy, calls = state(net), torch.Tensor.copy_, []

    def interrupted(self, other):
        calls.append(1)
        if len(calls) == 8:  # five weights are written, then put back
            raise KeyboardInterrupt
        return copy(self, other)

    monkeypatch.setattr(torch.Tensor, "copy_", interrupted)
    with pytest.raises(KeyboardInterrupt), written(net, torch.randn_like(flat(net))):
        pass
    monkeypatch.undo()
    assert len(calls) == 13
    assert_same(before, net)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_own_weights_change_no_bit(dtype):
    net = network(dtype)
    before = state(net)
    with written(net, flat(net)):
        assert_same(before, net)


def test_loss_at_own_weights_is_the_loss():
    net = network().train()
    before = state(net)
    x = batch()
    values = {loss_at(lambda m: m(x).square().mean(), net, flat(net)) for _ in range(3)}
    assert_same(before, net)  # three passes of BatchNorm in training mode
    assert values == {net(x).square().mean().item()}


def test_the_vector_is_what_requires_a_gradient_and_is_what_is_written():
    net = network()
    vector = flat(net)
    assert vector.dtype == torch.float64
    assert len(vector) == sum(p.numel() for p in net.parameters()) - 4
    new = torch.randn_like(vector)
    with written(net, new):
        assert torch.equal(flat(net, torch.float32), new.float())


def test_tied_weights_count_once():
    one = nn.Linear(3, 3)
    assert len(flat(nn.Sequential(one, one))) == 12


def test_errors_say_what_to_do():
    net = network()
    with pytest.raises(HeadwayError, match=r"vector of shape \(479,\), got \(3,\)"), written(net, torch.zeros(3)):
        pass
    with pytest.raises(HeadwayError, match="requires_grad_"):
        flat(net.requires_grad_(False))


def test_a_graph_survives_the_guard():
    """BatchNorm saves its statistics for the backward pass; putting the originals back must not spoil it."""
    net = network(torch.float64).train()
    x = batch(torch.float64)
    operator = hessian(lambda m: m(x).square().mean(), net)
    first = operator.matvec(flat(net).numpy())
    assert (first == operator.matvec(flat(net).numpy())).all()
