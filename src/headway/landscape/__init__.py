"""Loss landscapes of any network and any deterministic loss: lines, planes, curvature, smoothness, and games of two losses."""

from headway.landscape.curvature import (
    Estimate,
    Spectrum,
    gradient,
    hessian,
    lanczos,
    preconditioned,
    spectral_density,
    top_eigenvalues,
    trace,
)
from headway.landscape.directions import (
    PathPlane,
    Plane,
    along,
    between,
    normalised,
    path_plane,
    plane_through,
    random_direction,
)
from headway.landscape.games import jacobian, rotation_share
from headway.landscape.scan import line, loss_at, plane
from headway.landscape.smoothness import (
    Roughness,
    adam_preconditioner,
    convexity_share,
    edge_ratio,
    eigenvalue_ratio,
    gradient_predictiveness,
    roughness,
    stability_bound,
)
from headway.landscape.weights import Loss, flat, written

__all__ = [
    "Estimate",
    "Loss",
    "PathPlane",
    "Plane",
    "Roughness",
    "Spectrum",
    "adam_preconditioner",
    "along",
    "between",
    "convexity_share",
    "edge_ratio",
    "eigenvalue_ratio",
    "flat",
    "gradient",
    "gradient_predictiveness",
    "hessian",
    "jacobian",
    "lanczos",
    "line",
    "loss_at",
    "normalised",
    "path_plane",
    "plane",
    "plane_through",
    "preconditioned",
    "random_direction",
    "rotation_share",
    "roughness",
    "spectral_density",
    "stability_bound",
    "top_eigenvalues",
    "trace",
    "written",
]
