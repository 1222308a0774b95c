"""Two networks that each descend a loss of their own: the Jacobian of their joint gradient field, and how much of it rotates.

The field is F(w) = (dL_1/dw_1, dL_2/dw_2, ...) over the weights of all players. Descending one loss is a field without rotation:
its Jacobian is a symmetric Hessian. A game's need not be, and where J differs from J^T the players circle (Balduzzi et al. 2018,
arXiv 1802.05642; Mescheder, Nowozin and Geiger 2017, arXiv 1705.10461).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator
from torch import nn

from headway.errors import HeadwayError
from headway.landscape.curvature import Array, Estimate, hessian
from headway.landscape.weights import Loss, guarded, parameters


def jacobian(players: Sequence[tuple[nn.Module, Loss]]) -> LinearOperator:
    """J (n, n) of the joint gradient field, with products J u and, as ``rmatvec``, J^T u.

    With H_i the Hessian of loss i over the weights of all players and E_i the projection onto player i's,
    J = sum E_i H_i and J^T = sum H_i E_i: one product with each H_i for either. The restrictions of
    :func:`headway.landscape.curvature.hessian` apply.

    Args:
        players: (module, loss) each; a loss takes its own module and reaches the others' by closure. No ``detach()`` and no
            frozen opponent: those leave a player's gradient as it is, but hide how it changes with the others' weights.
    """
    joint = nn.ModuleList([module for module, _ in players])
    sizes = [sum(weight.numel() for weight in parameters(module)) for module, _ in players]
    n = sum(sizes)
    if n != sum(weight.numel() for weight in parameters(joint)):
        raise HeadwayError("The players share weights: each weight must belong to one player.")
    for i in range(len(players)):
        _refuse_detached(players, i, joint)
    hessians = [_joint_hessian(module, loss, joint) for module, loss in players]
    ends = list(accumulate(sizes))
    own = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]

    def forward(u: Array) -> Array:
        return np.concatenate([h.matvec(np.ravel(u))[part] for h, part in zip(hessians, own, strict=True)])

    def transposed(u: Array) -> Array:
        total = np.zeros(n)
        for h, part in zip(hessians, own, strict=True):
            alone = np.zeros(n)
            alone[part] = np.ravel(u)[part]
            total += h.matvec(alone)
        return total

    return LinearOperator((n, n), matvec=forward, rmatvec=transposed, dtype=np.float64)


def rotation_share(operator: LinearOperator, probes: int, generator: torch.Generator) -> Estimate:
    """E|Ju - J^T u|^2 / (E|Ju - J^T u|^2 + E|Ju + J^T u|^2) over Gaussian u: |A|^2 / (|A|^2 + |S|^2) of J = A + S.

    A is the antisymmetric part, S the symmetric, |.| the Frobenius norm. 0 for any single loss, 1 for a bilinear zero-sum game. It
    depends on the units of the weights; :func:`headway.landscape.curvature.preconditioned` gives those of the optimiser.

    Returns:
        the ratio of the two means, and its standard error to first order.
    """
    if probes < 2:
        raise HeadwayError(f"A standard error needs at least 2 probes, got {probes}.")
    turning, total = np.empty(probes), np.empty(probes)
    for i in range(probes):
        u = (
            torch.randn(operator.shape[0], generator=generator, device=generator.device, dtype=torch.float64)
            .cpu()
            .numpy()
        )
        ju, jtu = operator.matvec(u), operator.rmatvec(u)
        turning[i] = np.square(ju - jtu).sum()
        total[i] = turning[i] + np.square(ju + jtu).sum()
    if not total.any():
        raise HeadwayError("The Jacobian of this game is zero here: nothing turns and nothing contracts.")
    share = turning.mean() / total.mean()
    residual = (turning - share * total) / total.mean()
    return Estimate(float(share), float(residual.std(ddof=1) / np.sqrt(probes)))


def _joint_hessian(module: nn.Module, loss: Loss, joint: nn.Module) -> LinearOperator:
    return hessian(lambda _: loss(module), joint)


def _refuse_detached(players: Sequence[tuple[nn.Module, Loss]], i: int, joint: nn.Module) -> None:
    module, loss = players[i]
    others = [weight for j, (other, _) in enumerate(players) if j != i for weight in parameters(other)]
    with torch.enable_grad(), guarded(joint):
        reached = torch.autograd.grad(loss(module), others, allow_unused=True) if others else ()
    if others and all(found is None for found in reached):
        raise HeadwayError(
            f"The loss of player {i} does not reach the other players' weights: take out the detach() or no_grad() that keeps "
            "it from them."
        )
