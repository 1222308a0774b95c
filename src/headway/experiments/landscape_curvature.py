"""What is measured of the curvature at a checkpoint: of one landscape, and of a GAN's game of two."""

from __future__ import annotations

from typing import Any

import torch

from headway.experiments.landscape import Curvature
from headway.experiments.landscape_frozen import Game, Scene
from headway.experiments.landscape_kept import number
from headway.landscape import (
    adam_preconditioner,
    edge_ratio,
    gradient,
    gradient_predictiveness,
    hessian,
    jacobian,
    preconditioned,
    rotation_share,
    spectral_density,
    top_eigenvalues,
)


def curvature_row(scene: Scene, settings: Curvature, generator: torch.Generator) -> dict[str, Any]:
    """Loss, gradient, spectrum, and how far the optimiser's step may trust them, at one checkpoint.

    The trace is Hutchinson's, by the density's own probes: the first moment of each is v^T H v. ``lowest`` is the lowest point
    that Lanczos met, no lower than the lowest eigenvalue.
    """
    c, module, loss = settings, scene.module, scene.loss
    here = gradient(loss, module)
    with torch.no_grad():
        value = float(loss(module))
    h = hessian(loss, module)
    top = top_eigenvalues(h, c.top, generator, tol=c.tol)
    spectrum = spectral_density(h, c.probes, c.steps, generator)
    mean = spectrum.expectation(lambda nodes: nodes)
    row: dict[str, Any] = {
        "loss": value,
        "gradient_norm": float(here.norm()),
        "parameters": h.shape[0],
        "top": top.tolist(),
        "lowest": float(spectrum.nodes.min()),
        "trace": h.shape[0] * mean.value,
        "trace_error": h.shape[0] * mean.error,
        "positive_share": number(spectrum.positive_share()),
        "nodes": spectrum.nodes.tolist(),
        "weights": spectrum.weights.tolist(),
        "lr": scene.lr,
        "beta1": scene.beta1,
        "edge": None,
        "predictiveness": None,
    }
    if type(scene.optimizer) is torch.optim.AdamW:  # no subclass: Muon has other steps
        p = adam_preconditioner(module, scene.optimizer)
        highest = float(top_eigenvalues(preconditioned(h, p), 1, generator, tol=c.tol)[0])
        step = -scene.lr * here / p
        row["edge"] = edge_ratio(scene.lr, highest, scene.beta1)
        row["predictiveness"] = number(float(gradient_predictiveness(loss, module, step)[0]))
    return row


def rotation(game: Game, probes: int, generator: torch.Generator) -> dict[str, Any]:
    """How much of a game turns, with standard errors: by "weights" and, of players under Adam, by "steps" of their optimisers."""
    j, start = jacobian(game.players), generator.get_state()
    found: dict[str, Any] = {"weights": list(rotation_share(j, probes, generator))}
    scales = []
    for scene in game.scenes.values():
        if type(scene.optimizer) is not torch.optim.AdamW:
            return found
        scales.append(adam_preconditioner(scene.module, scene.optimizer) / scene.lr)
    generator.set_state(start)
    found["steps"] = list(rotation_share(preconditioned(j, torch.cat(scales)), probes, generator))
    return found
