"""Where to look: random directions of a fair length, lines between checkpoints, planes through three of them or along a path.

All vectors are flat weights (n,), see :mod:`headway.landscape.weights`; results are float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvTransposeNd

from headway.errors import HeadwayError, unknown
from headway.landscape.weights import flat, parameters, shaped

_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, _NormBase)


def random_direction(
    module: nn.Module, generator: torch.Generator, *, by: str = "filter", vectors: str = "zero"
) -> Tensor:
    """A Gaussian direction (n,), normalised to the module's weights; see :func:`normalised`."""
    n = len(flat(module))
    noise = torch.randn(n, dtype=torch.float64, device=generator.device, generator=generator)
    return normalised(module, noise, by=by, vectors=vectors)


def normalised(module: nn.Module, direction: Tensor, *, by: str = "filter", vectors: str = "zero") -> Tensor:
    """The direction (n,) with every filter as long as the module's own (Li et al. 2018, arXiv 1712.09913, section 4).

    d <- d |w| / |d| for each filter, that is all the weights into one output. A network whose filters are scaled up and then
    normalised away computes the same function, and is as flat; without this, it would look flatter.

    Args:
        by: "filter", or "layer" for one length per parameter tensor.
        vectors: what becomes of biases and of the parameters of normalisation layers: "zero" leaves them alone, "layer" gives
            each tensor the length of its weights. Filters of zeros get zeros.
    """
    if by not in ("filter", "layer"):
        raise unknown("normalisation", by, ["filter", "layer"])
    if vectors not in ("zero", "layer"):
        raise unknown("rule for biases and norms", vectors, ["zero", "layer"])
    named = [(name, weight) for name, weight in module.named_parameters() if weight.requires_grad]
    pieces = []
    for (name, weight), piece in zip(named, shaped(parameters(module), direction), strict=True):
        owner = _owner(module, name)
        w, d = weight.detach().double(), piece.to(weight.device, torch.float64)
        if weight.ndim < 2 or isinstance(owner, _NORMS):
            d = _rescaled(d, w, w.shape, None) if vectors == "layer" else torch.zeros_like(d)
        else:
            d = _rescaled(d, w, *(_filters(owner, w.shape) if by == "filter" else (w.shape, None)))
        pieces.append(d.reshape(-1))
    return torch.cat(pieces)


def between(start: Tensor, end: Tensor) -> Tensor:
    """The direction (n,) from one checkpoint to another: 0 is the start, 1 the end, and alphas beyond look further on.

    For weights of 32 bits or fewer the end, too, is met to the last bit, but for weights that are 2^28 times smaller than the
    way they have come.
    """
    return end.double() - start.double()


def along(origin: Tensor, direction: Tensor, alpha: float) -> Tensor:
    """origin + alpha direction in float64; at alpha 0 the origin itself."""
    return origin if alpha == 0 else origin.double() + alpha * direction.double()


@dataclass(frozen=True)
class Plane:
    """The points origin + x u + y v. ``u`` and ``v`` (n,) need be neither orthogonal nor of length one."""

    origin: Tensor
    u: Tensor
    v: Tensor

    def point(self, x: float, y: float) -> Tensor:
        """The weights (n,) at (x, y); at (0, 0) the origin itself."""
        return along(along(self.origin, self.u, x), self.v, y)

    def coordinates(self, points: Sequence[Tensor]) -> NDArray[np.float64]:
        """(x, y) of the nearest point of the plane to each of the weights: (len(points), 2)."""
        axes = torch.stack([self.u.double(), self.v.double()])
        offsets = torch.stack([axes @ (point.double() - self.origin.double()) for point in points])
        return np.asarray(np.linalg.solve(_numpy(axes @ axes.T), _numpy(offsets).T).T, dtype=np.float64)


def plane_through(a: Tensor, b: Tensor, c: Tensor) -> Plane:
    """The plane of three checkpoints: origin a, u towards b, v at a right angle towards c, both of length one.

    So distances in the picture are distances of weights: a is (0, 0), b is (|b - a|, 0), c lies above (Garipov et al. 2018, arXiv
    1802.10026, section 4.1).
    """
    to_b, to_c = between(a, b), between(a, c)
    u = to_b / to_b.norm()
    rest = to_c - (to_c @ u) * u
    v = rest - (rest @ u) * u  # once more, for what rounding left
    if not v.norm() > 1e-6 * to_c.norm():  # float32 rounding alone bends a line by 1e-7
        raise HeadwayError("These three checkpoints lie on one line and span no plane: give three that differ.")
    return Plane(a, u, v / v.norm())


@dataclass(frozen=True)
class PathPlane:
    """The plane that holds most of a training path."""

    plane: Plane
    """Through the last point, axes of length one at a right angle, first the longer."""
    path: NDArray[np.float64]
    """(points, 2), the path's coordinates in the plane; the last are (0, 0)."""
    explained: NDArray[np.float64]
    """(points,), each principal direction's share of the path's variance, descending; the plane has the first two."""


def path_plane(path: Sequence[Tensor]) -> PathPlane:
    """The two principal directions of a training path of at least three points (n,) (Li et al. 2018, section 7.2).

    Principal directions are about the path's mean, the plane is laid through its last point. The axes point to the side the path
    comes from. Needs the path in float64 three times.
    """
    if len(path) < 3:
        raise HeadwayError(f"A path needs at least 3 points to span a plane, got {len(path)}.")
    points = torch.stack([point.double() for point in path])
    centred = points - points.mean(dim=0)
    # The right singular vectors by way of the small matrix: points are few, weights many.
    vectors, squares, _ = np.linalg.svd(_numpy(centred @ centred.T), hermitian=True)
    if not squares[1] > len(path) * np.finfo(np.float64).eps * squares[0]:
        raise HeadwayError("This path lies on one line and spans no plane: look along that line instead.")
    mix = torch.as_tensor(vectors[:, :2].T / np.sqrt(squares[:2, None]), device=points.device)
    axes = mix @ centred
    axes *= torch.where(axes @ (points[0] - points[-1]) < 0, -1.0, 1.0)[:, None].double()
    plane = Plane(path[-1], axes[0], axes[1])
    return PathPlane(plane, plane.coordinates(path), squares / squares.sum())


def _owner(module: nn.Module, name: str) -> nn.Module:
    """The layer a parameter belongs to, seen through torch's parametrisations (spectral norm)."""
    parts = name.split(".")
    depth = parts.index("parametrizations") if "parametrizations" in parts else len(parts) - 1
    return module.get_submodule(".".join(parts[:depth]))


def _filters(owner: Any, shape: torch.Size) -> tuple[Sequence[int], Sequence[int]]:
    """The shape to view a weight in, and its axes that run inside one filter. Transposed convolutions have the outputs second."""
    if isinstance(owner, _ConvTransposeNd):
        grouped = (owner.groups, shape[0] // owner.groups, *shape[1:])
        return grouped, (1, *range(3, len(grouped)))
    return shape, tuple(range(1, len(shape)))


def _rescaled(d: Tensor, w: Tensor, shape: Sequence[int], axes: Sequence[int] | None) -> Tensor:
    d, w = d.reshape(tuple(shape)), w.reshape(tuple(shape))
    old: Tensor = torch.linalg.vector_norm(d, dim=axes, keepdim=True)
    new: Tensor = torch.linalg.vector_norm(w, dim=axes, keepdim=True)
    return d * (new / old.clamp_min(torch.finfo(d.dtype).tiny))


def _numpy(tensor: Tensor) -> NDArray[np.float64]:
    found: NDArray[np.float64] = tensor.detach().cpu().double().numpy()
    return found
