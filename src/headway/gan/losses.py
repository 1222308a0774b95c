"""The two losses of adversarial training that are in use, and the R1 penalty; tensors in, scalars out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class AdversarialLoss:
    """A game of two losses, each to be minimised by its own network.

    Attributes:
        discriminator: of (real, fake), the discriminator's outputs (n,) for real and for generated images.
        generator: of (fake,).
    """

    discriminator: Callable[[Tensor, Tensor], Tensor]
    generator: Callable[[Tensor], Tensor]


def _logistic(real: Tensor, fake: Tensor) -> Tensor:
    return F.softplus(-real).mean() + F.softplus(fake).mean()


def _non_saturating(fake: Tensor) -> Tensor:
    return F.softplus(-fake).mean()


def _hinge(real: Tensor, fake: Tensor) -> Tensor:
    return F.relu(1 - real).mean() + F.relu(1 + fake).mean()


def _mean_output(fake: Tensor) -> Tensor:
    return -fake.mean()


LOSSES = {
    # -log sigmoid(D(x)) - log(1 - sigmoid(D(G(z)))) against -log sigmoid(D(G(z))): Goodfellow et al. 2014, section 3.
    "non-saturating": AdversarialLoss(_logistic, _non_saturating),
    # max(0, 1 - D(x)) + max(0, 1 + D(G(z))) against -D(G(z)): Lim & Ye 2017; Miyato et al. 2018, equations 16 and 17.
    "hinge": AdversarialLoss(_hinge, _mean_output),
}


def r1_penalty(discriminator: Callable[[Tensor], Tensor], real: Tensor) -> Tensor:
    """Mean over the real images of |grad_x D(x)|^2 / 2, to be multiplied by gamma (Mescheder et al. 2018, equation 9).

    Args:
        discriminator: (n, C, H, W) -> (n,); image i must influence output i alone (no batch normalisation).

    Returns:
        A scalar that can be differentiated again, with respect to the discriminator's weights.
    """
    real = real.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(discriminator(real).sum(), real, create_graph=True)
    return gradient.square().flatten(1).sum(1).mean() / 2
