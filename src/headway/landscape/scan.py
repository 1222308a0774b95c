"""The loss on a line or on a plane of weights, point by point, and where it was left off."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.errors import HeadwayError
from headway.landscape.directions import Plane, along
from headway.landscape.weights import Loss, written


def loss_at(loss: Loss, module: nn.Module, vector: Tensor) -> float:
    """The loss with the weights (n,); the module is afterwards as it was. NaN and infinity are returned as they are.

    The loss runs in the caller's own gradient mode, because kernels may differ by a bit between modes: wrap it in
    ``torch.no_grad()`` to save memory.
    """
    with written(module, vector):
        value = loss(module)
        if value.numel() != 1:
            raise HeadwayError(
                f"The loss must be one number, got a tensor of shape {tuple(value.shape)}: take its mean."
            )
        return float(value.detach())


def line(
    loss: Loss,
    module: nn.Module,
    origin: Tensor,
    direction: Tensor,
    alphas: Iterable[float],
    done: MutableMapping[float, float] | None = None,
) -> NDArray[np.float64]:
    """The losses (len(alphas),) at origin + alpha direction; at alpha 0, with the origin ``flat(module)``, the checkpoint's own.

    Args:
        done: losses by alpha. Points in it are not evaluated again, and every new one is put in as soon as it is known: give a
            mapping that writes itself down, and a scan that is interrupted goes on where it was.
    """
    done = {} if done is None else done
    wanted = [float(alpha) for alpha in alphas]
    for alpha in wanted:
        if alpha not in done:
            done[alpha] = loss_at(loss, module, along(origin, direction, alpha))
    return np.array([done[alpha] for alpha in wanted], dtype=np.float64)


def plane(
    loss: Loss,
    module: nn.Module,
    where: Plane,
    xs: Iterable[float],
    ys: Iterable[float],
    done: MutableMapping[tuple[float, float], float] | None = None,
) -> NDArray[np.float64]:
    """The losses (len(ys), len(xs)) on a grid of the plane, as contour plots take them.

    ``done`` is as in :func:`line`, by (x, y). Keys are coordinates, so several processes may each take some of the rows and a
    finer grid keeps the points it shares.
    """
    done = {} if done is None else done
    columns, rows = [float(x) for x in xs], [float(y) for y in ys]
    for y in rows:
        for x in columns:
            if (x, y) not in done:
                done[x, y] = loss_at(loss, module, where.point(x, y))
    return np.array([[done[x, y] for x in columns] for y in rows], dtype=np.float64).reshape(len(rows), len(columns))
