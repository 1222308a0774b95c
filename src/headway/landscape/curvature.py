"""The Hessian of a loss without ever writing it down: its extreme eigenvalues, its spectrum and its trace.

A Hessian-vector product costs two to three gradients; everything here is made of them. Vectors are flat weights (n,), as numpy
arrays of float64, whatever the type and the device of the network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, aslinearoperator, eigsh
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from headway.errors import HeadwayError
from headway.landscape.weights import Loss, guarded, parameters, shaped

Array = NDArray[np.float64]


class Estimate(NamedTuple):
    """A mean over random probes and its standard error."""

    value: float
    error: float


def gradient(loss: Loss, module: nn.Module) -> Tensor:
    """The loss's gradient (n,), float64, on the weights' device. The module, its ``.grad`` too, stays as it is."""
    return torch.cat([g.detach().reshape(-1).double() for g in _gradients(loss, module, create_graph=False)])


def hessian(loss: Loss, module: nn.Module) -> LinearOperator:
    """The Hessian (n, n) at the module's weights, as products H v by differentiating the gradient twice (Pearlmutter 1994).

    It keeps the graph of one gradient, so it lives as long as the weights stay: once they have been written, by a step or by a
    scan, a product is refused. Attention is computed by torch's plain formula, the only one that can be differentiated twice. A
    batch too large for one graph is a sum of operators: scipy adds and scales them.
    """
    weights = parameters(module)
    with sdpa_kernel(SDPBackend.MATH):
        gradients = _gradients(loss, module, create_graph=True)
    rooted = [g.requires_grad for g in gradients]  # where the loss is linear nothing is left to differentiate
    versions = [weight._version for weight in weights]

    def product(vector: Array) -> Array:
        if [weight._version for weight in weights] != versions:
            raise HeadwayError("The weights have been written since this Hessian was made: make it anew.")
        if not any(rooted):
            return np.zeros(np.size(vector))
        pieces = shaped(weights, torch.as_tensor(np.ravel(vector).copy(), device=weights[0].device))
        result = torch.autograd.grad(
            [g for g, keep in zip(gradients, rooted, strict=True) if keep],
            weights,
            [p.to(w) for p, w, keep in zip(pieces, weights, rooted, strict=True) if keep],
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        found: Array = torch.cat([r.reshape(-1).double() for r in result]).cpu().numpy()
        if not np.isfinite(found).all():
            raise HeadwayError(
                "A Hessian-vector product is not finite: the loss is too steep here for the weights' type."
            )
        return found

    n = sum(weight.numel() for weight in weights)
    return LinearOperator((n, n), matvec=product, rmatvec=product, dtype=np.float64)


def preconditioned(operator: LinearOperator, diagonal: Tensor) -> LinearOperator:
    """P^-1/2 A P^-1/2 for the diagonal P > 0 (n,): for a Hessian it has the eigenvalues of P^-1 H, and is symmetric."""
    if diagonal.shape != operator.shape[:1] or not bool((diagonal > 0).all()):
        raise HeadwayError(f"A preconditioner is {operator.shape[0]} positive numbers, one for each weight.")
    root = aslinearoperator(scipy.sparse.diags_array(diagonal.detach().cpu().double().numpy() ** -0.5))
    return root @ operator @ root


def top_eigenvalues(
    operator: LinearOperator, k: int, generator: torch.Generator, *, lowest: bool = False, tol: float = 1e-4
) -> Array:
    """The k < n highest eigenvalues of a symmetric operator, descending; or the lowest, ascending (scipy's ARPACK).

    Args:
        generator: draws the vector to start from. tol: relative; float32 networks bear no much smaller one.
    """
    n = operator.shape[0]
    if not 0 < k < n:
        raise HeadwayError(f"An operator of size {n} gives 1 to {n - 1} eigenvalues, got k={k}.")
    start = _probe(n, generator)
    try:
        found = eigsh(operator, k, which="SA" if lowest else "LA", v0=start, tol=tol, return_eigenvectors=False)
    except ArpackNoConvergence as error:
        raise HeadwayError(f"Eigenvalues were not found to a relative {tol:g}: allow a larger tol.") from error
    ascending: Array = np.sort(found)
    return ascending if lowest else ascending[::-1].copy()


def lanczos(operator: LinearOperator, steps: int, start: Array) -> tuple[Array, Array]:
    """Diagonal (m,) and off-diagonal (m - 1,) of the tridiagonal matrix of a symmetric operator, with m <= steps.

    Every vector is made orthogonal to all before it, twice, so that no eigenvalue is found a second time; the basis takes 8
    steps n bytes. It ends early, and is then exact, where the start's eigenvectors are exhausted.
    """
    basis = np.empty((min(steps, len(start)), len(start)))
    diagonal, off = np.empty(len(basis)), np.empty(len(basis))
    vector, scale = start / np.linalg.norm(start), 0.0
    for m in range(len(basis)):
        basis[m] = vector
        vector = operator.matvec(vector)
        diagonal[m] = basis[m] @ vector
        for _ in range(2):
            vector = vector - (basis[: m + 1] @ vector) @ basis[: m + 1]
        off[m] = np.linalg.norm(vector)
        scale = max(scale, abs(diagonal[m]), off[m])
        if off[m] <= 1e-10 * scale:
            return diagonal[: m + 1], off[:m]
        vector = vector / off[m]
    return diagonal, off[:-1]


@dataclass(frozen=True)
class Spectrum:
    """The distribution of an operator's eigenvalues, as one weighted set of points per probe."""

    nodes: Array
    """(probes, steps), Ritz values."""
    weights: Array
    """(probes, steps), >= 0, each row summing to 1."""

    def expectation(self, function: Callable[[Array], Array]) -> Estimate:
        """The mean of a function over all eigenvalues, trace f(A) / n."""
        return _estimate((self.weights * function(self.nodes)).sum(axis=1))

    def density(self, grid: Array, width: float) -> Array:
        """The density at the points of the grid, blurred by a Gaussian of standard deviation ``width`` (in eigenvalues)."""
        bells = np.exp(-0.5 * ((grid[:, None, None] - self.nodes) / width) ** 2) / (width * np.sqrt(2 * np.pi))
        found: Array = (bells * self.weights).sum(axis=2).mean(axis=1)
        return found

    def positive_share(self) -> float:
        """Positive eigenvalues' share of the sum of absolute eigenvalues: 1 for a convex loss, 1/2 for an even saddle."""
        mass = self.weights * self.nodes
        return float(mass.clip(min=0).sum() / np.abs(mass).sum())


def spectral_density(operator: LinearOperator, probes: int, steps: int, generator: torch.Generator) -> Spectrum:
    """Stochastic Lanczos quadrature (Ubaru, Chen and Saad 2017; Ghorbani et al. 2019, arXiv 1901.10159).

    Each probe integrates polynomials up to degree 2 steps - 1 exactly over its own spectral measure, whose mean over probes is
    the density. Costs probes x steps products.
    """
    nodes, weights = np.zeros((probes, steps)), np.zeros((probes, steps))
    for row in range(probes):
        values, vectors = eigh_tridiagonal(*lanczos(operator, steps, _probe(operator.shape[0], generator)))
        nodes[row, : len(values)], weights[row, : len(values)] = values, vectors[0] ** 2
    return Spectrum(nodes, weights)


def trace(operator: LinearOperator, probes: int, generator: torch.Generator) -> Estimate:
    """The trace by the mean of v^T A v over random signs v (Hutchinson 1989); exact for a diagonal operator."""
    signs = (_probe(operator.shape[0], generator) for _ in range(probes))
    return _estimate(np.array([v @ operator.matvec(v) for v in signs]))


def _gradients(loss: Loss, module: nn.Module, create_graph: bool) -> tuple[Tensor, ...]:
    weights = parameters(module)
    with torch.enable_grad(), guarded(module):
        value = loss(module)
        if value.numel() != 1 or not value.requires_grad:
            raise HeadwayError("The loss must be one number that depends on the weights: is it computed under no_grad?")
        return torch.autograd.grad(
            value.squeeze(), weights, create_graph=create_graph, allow_unused=True, materialize_grads=True
        )


def _probe(n: int, generator: torch.Generator) -> Array:
    """Random signs (n,)."""
    bits = torch.randint(2, (n,), generator=generator, device=generator.device)
    signs: Array = (2 * bits - 1).cpu().double().numpy()
    return signs


def _estimate(samples: Array) -> Estimate:
    if len(samples) < 2:
        raise HeadwayError(f"A standard error needs at least 2 probes, got {len(samples)}.")
    return Estimate(float(samples.mean()), float(samples.std(ddof=1) / np.sqrt(len(samples))))
