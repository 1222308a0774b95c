"""FDM: momentum in the diffusion process, as a wrapper of any framework (Wu et al. 2023, arXiv 2306.06991).

Samplers and losses live in the unscaled variable, where a deterministic rescaling of x_t changes nothing but the network's input.
So momentum is a change of c_in (and of the forward scale, which equals it); the rest of the framework stays. Three readings of
the paper are kept apart, because its released code and its derivation are not the same thing; and one control:

- ``released``: what the published code does, to the last digit: s = mean(m B(t')), t' linear in sigma over the framework's range.
- ``literal``: the same s, with t' the framework's own time.
- ``propagated``: the damped process itself, its noise carried through the oscillator: c_in = mean(B(sigma)).
- ``unit``: c_in = 1, the control that would explain the released form away (99 % of EDM's training sigma have s > 0.996).
"""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

from headway.errors import HeadwayError, unknown
from headway.frameworks.base import Framework, Value, as_tensor
from headway.frameworks.oscillator import BETA_D, BETA_MIN, Oscillator, integrated_beta, time_of_integrated_beta
from headway.noise import UniformTime

Kind = Literal["released", "literal", "propagated", "unit"]
KINDS: tuple[Kind, ...] = ("released", "literal", "propagated", "unit")
DEFAULT_MULTIPLIER = {"edm": 2.0, "vp": 2.0, "flow": 2.0, "ve": 1.0}


class Momentum(Framework):
    """A framework whose network input is scaled by the momentum process. Everything but c_in and scale is the base's.

    Use :func:`with_momentum` to build one; the subclasses say what the scale s(sigma) is.
    """

    kind: Kind

    def __init__(self, base: Framework, zeta: float) -> None:
        super().__init__(base.sigma_data, base.prediction)
        self.base = base
        self.name = base.name
        self.sigma_min, self.sigma_max = base.sigma_min, base.sigma_max
        self.density = base.density
        self.oscillator = Oscillator(zeta)

    def sigma(self, t: Value) -> Tensor:
        return self.base.sigma(t)

    def time(self, sigma: Value) -> Tensor:
        return self.base.time(sigma)

    @property
    def time_range(self) -> tuple[float, float]:
        return self.base.time_range

    def c_in(self, sigma: Value) -> Tensor:
        return self.scale(sigma)

    def c_noise(self, sigma: Value) -> Tensor:
        return self.base.c_noise(sigma)

    def weight(self, sigma: Value) -> Tensor:
        return self.base.weight(sigma)

    def own_skip_out(self, sigma: Tensor) -> tuple[Tensor, Tensor]:
        return self.base.own_skip_out(sigma)

    def describe(self) -> str:
        zeta = f", zeta {self.oscillator.zeta:g}" if self.oscillator.zeta != 1 else ""
        return f"{self.base.describe()} with {self.kind} momentum{self._detail()}{zeta}"

    def _detail(self) -> str:
        return ""


class Released(Momentum):
    """s(sigma) = mean(m B(t')), t' = (sigma - sigma_min) / (sigma_max - sigma_min): the published code's c_in.

    A sigma outside the range is extrapolated, as there (EDM's density exceeds 80 in 2e-6 of draws). With zeta < 1 the factor
    changes its sign where m B passes B* (see :class:`Oscillator`); the network then sees the negative image.
    """

    kind: Kind = "released"

    def __init__(self, base: Framework, zeta: float, multiplier: float) -> None:
        super().__init__(base, zeta)
        self.multiplier = multiplier

    def _fraction(self, sigma: Tensor) -> Tensor:
        return (sigma - self.sigma_min) / (self.sigma_max - self.sigma_min)

    def scale(self, sigma: Value) -> Tensor:
        return self.oscillator.mean(self.multiplier * integrated_beta(self._fraction(as_tensor(sigma))))

    def _detail(self) -> str:
        return f", multiplier {self.multiplier:g}"


class LiteralTime(Released):
    """As released, with t' the framework's own time: t for VP and flow, the geometric time for VE."""

    kind: Kind = "literal"

    def _fraction(self, sigma: Tensor) -> Tensor:
        return self.base.time(sigma)


class Propagated(Momentum):
    """The damped process itself: sigma_p(B) = sqrt(variance) / mean, and c_in = mean at B(sigma).

    The time map is the process's: B = 0.1 t + 9.95 t^2, sigma(t) = sigma_p(B). For VE and flow, which have no such process of
    their own, this is our extension. Under-damped motion (zeta < 1) ends before B*, where sigma_p is infinite.

    Args:
        density: "base" keeps the framework's density of sigma; "momentum" draws t uniformly over the base's sampling range.
    """

    kind: Kind = "propagated"

    def __init__(self, base: Framework, zeta: float, density: Literal["base", "momentum"]) -> None:
        super().__init__(base, zeta)
        if density == "momentum":
            self.density = UniformTime(self.sigma, self.time, self._slope, *self.time_range)

    def _detail(self) -> str:
        return "" if self.density is self.base.density else ", its density uniform in time"

    @property
    def time_range(self) -> tuple[float, float]:
        low, high = self.sampling_range
        return float(self.time(low)), float(self.time(high))

    def b(self, sigma: Value) -> Tensor:
        """B(sigma), in float64: the inverse has no digits to spare in float32."""
        return self.oscillator.solve(as_tensor(sigma).double())

    def sigma(self, t: Value) -> Tensor:
        t = as_tensor(t)
        return self.oscillator.sigma(integrated_beta(t.double())).to(t.dtype)

    def time(self, sigma: Value) -> Tensor:
        return time_of_integrated_beta(self.b(sigma)).to(as_tensor(sigma).dtype)

    def _slope(self, sigma: Tensor) -> Tensor:
        b = self.b(sigma)
        beta = BETA_MIN + BETA_D * time_of_integrated_beta(b)
        return (1 / (beta * self.oscillator.log_slope(b) * sigma)).to(sigma.dtype)

    def scale(self, sigma: Value) -> Tensor:
        return self.oscillator.mean(self.b(sigma)).to(as_tensor(sigma).dtype)


class Unit(Momentum):
    """c_in = 1: no momentum at all. For VE this is the plain framework."""

    kind: Kind = "unit"

    def scale(self, sigma: Value) -> Tensor:
        sigma = as_tensor(sigma)
        return sigma.new_ones(sigma.shape)


def with_momentum(
    base: Framework,
    kind: Kind = "released",
    *,
    multiplier: float | None = None,
    zeta: float = 1.0,
    density: Literal["base", "momentum"] = "base",
) -> Momentum:
    """Wrap ``base`` in the momentum process.

    Args:
        kind: "released", "literal", "propagated" or "unit" (see the module's docstring).
        multiplier: m in s = mean(m B); default as published: 2 for EDM and VP (and flow), 1 for VE. It cancels in ``propagated``.
        zeta: damping; 1 is critical, < 1 under-damped, > 1 over-damped (the paper's comparison).
        density: only for ``propagated``: see :class:`Propagated`.

    Raises:
        HeadwayError: for a combination that has no meaning or would silently equal another one.
    """
    if isinstance(base, Momentum):
        raise HeadwayError(f"{base.describe()} has momentum already; wrap a plain framework.")
    if kind not in KINDS:
        raise unknown("momentum", kind, KINDS)
    if density not in ("base", "momentum"):
        raise unknown("density", density, ["base", "momentum"])
    if density == "momentum" and kind != "propagated":
        raise HeadwayError(
            f"density='momentum' belongs to momentum='propagated', got momentum={kind!r}; leave density='base'."
        )
    if multiplier is not None and not (multiplier > 0 and math.isfinite(multiplier)):
        raise HeadwayError(f"The momentum multiplier must be a positive number, got {multiplier}.")
    if kind == "unit":
        if multiplier not in (None, 1.0) or zeta != 1:
            raise HeadwayError("momentum='unit' is c_in = 1 and has no multiplier or zeta; leave both out.")
        return Unit(base, zeta)
    if kind == "propagated":
        if multiplier not in (None, 1.0):
            raise HeadwayError(
                f"momentum='propagated' has no multiplier (it cancels): leave it out or say 1, got {multiplier:g}."
            )
        return Propagated(base, zeta, density)
    if kind == "literal" and base.name == "edm":
        raise HeadwayError(
            "momentum='literal' equals 'released' for EDM, whose time is sigma: use momentum='released'."
        )
    m = DEFAULT_MULTIPLIER[base.name] if multiplier is None else multiplier
    return LiteralTime(base, zeta, m) if kind == "literal" else Released(base, zeta, m)
