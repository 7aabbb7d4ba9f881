"""Certificates for AID and SOBA on minibatches."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax

from bilevel.solvers.options import check_batches
from bilevel.theory.certificates.certificate import GAP, StepSizes
from bilevel.theory.certificates.gain import EVERY_STEP
from bilevel.theory.certificates.stochastic.mean_bounds import (
    Method,
    Numbers,
    Tracking,
    best_weighted_bound,
    mean_bound,
    unit_gain,
    weighted_bound,
)
from bilevel.theory.certificates.stochastic.noise import Noise
from bilevel.theory.certificates.storage import largest_step
from bilevel.theory.constants import Blocks, Constants
from bilevel.theory.reals import Real, check_kappa, nonnegative, positive, scalar, step_count
from bilevel.words import shown

LONGEST = 20_000  # steps of a schedule in a search, which stores all candidates at once


class Schedule(NamedTuple):
    """Step sizes of every step."""

    alpha: np.ndarray
    eta: np.ndarray
    beta: np.ndarray

    @property
    def rules(self) -> StepSizes:
        """Return rules for `bl.aid(problem, **rules._asdict(), batches="independent")`; the last repeats."""
        at = lambda sizes: lambda count: jnp.asarray(sizes)[jnp.minimum(count, len(sizes) - 1)]
        return StepSizes(*(optax.sgd(at(sizes)) for sizes in self))


@dataclass(frozen=True)
class StochasticCertificate:
    """Bounds on E‖∇Φ‖² for every run of `method` with these constants, on draws with this noise.

    `theory.stochastic.check(solver, data)` raises unless the theorem covers a run. The start is described
    before the first update: `gap` = Φ(x₀) − inf Φ, `y_error` = ‖y₀ − y*(x₀)‖ and `v_error` = ‖v₀ − v*(x₀)‖.
    Without `v_error`, v₀ = 0 and its error is at most M_y/μ.
    """

    method: str
    constants: Blocks
    noise: Noise
    _method: Method

    analysis = "stochastic"

    def bound(
        self,
        steps: Real,
        gap: Real,
        y_error: Real = 0.0,
        v_error: Real | None = None,
        sizes: StepSizes | tuple[Real, Real, Real] | None = None,
    ) -> float:
        """Return the bound on (1/K) Σ_{k<K} E‖∇Φ(x_k)‖² with constant `sizes` (default: `step_sizes`).

        It is infinite where the sizes (α, η, β) are not certified.
        """
        K, start = scalar(step_count(steps), "steps"), self._start(gap, y_error, v_error)
        sizes = self.step_sizes(steps, gap, y_error, v_error) if sizes is None else sizes
        alpha, eta, beta = (np.asarray(scalar(size, name)) for name, size in _three(sizes).items())
        return float(mean_bound(Tracking(self._method, alpha, eta, beta), np.asarray(K), *start))

    def step_sizes(
        self, steps: Real, gap: Real, y_error: Real = 0.0, v_error: Real | None = None
    ) -> StepSizes:
        """Search for the constant (α, η, β) with the lowest bound after K steps.

        With noise all three shrink with K. If the Jacobians of y* and v* are Lipschitz (`v_bend`), the sizes
        and the bound are of order K^(−1/2). Otherwise η and the bound are of order K^(−2/5), and β is of
        order K^(−3/5).
        """
        K, start = scalar(step_count(steps), "steps"), self._descending(gap, y_error, v_error)
        objective = lambda at: mean_bound(at, np.asarray(K), *start)
        reach = 3.0 + float(np.log10(K))  # none shrinks faster than 1/K
        found = _lowest(self._method, objective, decades=(reach, reach, reach), points=13, rounds=10)
        return StepSizes(float(found.alpha), float(found.eta), float(found.beta))

    def schedule_bound(
        self, schedule: Any, gap: Real, y_error: Real = 0.0, v_error: Real | None = None
    ) -> float:
        """Return the bound on Σ_k β_k E‖∇Φ(x_k)‖² / Σ_k β_k for arrays (α_k), (η_k), (β_k), k < K.

        This is the expected ‖∇Φ‖² at a step drawn with probability β_k/Σβ. It is infinite if the schedule is
        not certified. Constant sizes may be floats, if one of the three is an array. For constant steps the
        bound is at most `bound`, which sums over infinitely many steps.
        """
        alpha, eta, beta = map(np.asarray, _three(schedule).values())
        try:
            sizes = np.broadcast_arrays(alpha, eta, beta)
        except ValueError:
            shapes = ", ".join(str(np.shape(each)) for each in (alpha, eta, beta))
            raise ValueError(f"the three schedules must have one length, got shapes {shapes}") from None
        if sizes[0].ndim != 1 or not sizes[0].size:
            got = f"an array of shape {sizes[0].shape}" if sizes[0].ndim else "single numbers"
            raise ValueError(
                f"a schedule is an array with one step size per step, got {got}: use `bound` for constant ones"
            )
        gap, y_error, v_error = self._start(gap, y_error, v_error)
        return best_weighted_bound(Tracking(self._method, *sizes), gap, y_error, v_error)

    def decreasing(
        self,
        steps: Real,
        gap: Real,
        y_error: Real = 0.0,
        v_error: Real | None = None,
        power: Real = 0.5,
        outer_power: Real | None = None,
    ) -> Schedule:
        """Return α_k = α₀(k+1)^(−power), η_k likewise, β_k = β₀(k+1)^(−outer_power), with the lowest bound.

        `outer_power` is `power` by default; without `v_bend` use 2/5 and 3/5. The search for α₀, η₀ and β₀
        evaluates `schedule_bound` several hundred times. For long runs search at fewer steps, and extend the powers.
        """
        K = scalar(step_count(steps), "steps")
        if K > LONGEST:
            raise ValueError(
                f"steps = {K:g} are too many to search over: use at most {LONGEST}, and extend the powers to more"
            )
        power = scalar(nonnegative(power, "power", "steps must not grow"), "power")
        outer = power if outer_power is None else outer_power
        outer = scalar(nonnegative(outer, "outer_power", "steps must not grow"), "outer_power")
        start = self._descending(gap, y_error, v_error)
        k = np.arange(1.0, K + 1)[:, None]
        slow, fast = k**-power, k**-outer
        along = lambda at: Tracking(at.method, at.alpha * slow, at.eta * slow, at.beta * fast)
        objective = lambda at: weighted_bound(along(at), *start)
        found = along(_lowest(self._method, objective, decades=(3.0, 3.0, 4.0), points=5, rounds=7))
        return Schedule(found.alpha[:, 0], found.eta[:, 0], found.beta[:, 0])

    def _descending(self, gap: Real, y_error: Real, v_error: Real | None) -> tuple[float, float, float]:
        """Return `_start`; raise unless some step sizes are best from there."""
        positive(gap, "gap", GAP)
        start = self._start(gap, y_error, v_error)
        if self.constants.L_Phi == 0:
            raise ValueError(EVERY_STEP)
        return start

    def _start(self, gap: Real, y_error: Real, v_error: Real | None) -> tuple[float, float, float]:
        k = self.constants
        v_error = k.M_y / k.mu if v_error is None else v_error
        start = {"gap": gap, "y_error": y_error, "v_error": v_error}
        gap, y_error, v_error = (scalar(nonnegative(value, name), name) for name, value in start.items())
        return gap, y_error, v_error


def aid(constants: Constants | Blocks, noise: Noise, v_bend: Real | None = None) -> StochasticCertificate:
    """Return the certificate of `bl.aid(..., batches="independent")`: three independent draws per step.

    Args:
        constants: the problem's constants, as single numbers.
        noise: the noise of one draw.
        v_bend: Lipschitz constant of the Jacobian of v*(x) = (∇²_yy g)⁻¹∇_y f at y*(x). It exists if f has bounded
            third and g bounded fourth derivatives; zero if both are quadratic. Without it, the noise of x moves v* in
            the worst direction at every step.
    """
    return _certificate("AID", constants, noise, v_bend, shared=False)


def soba(
    constants: Constants | Blocks, noise: Noise, v_bend: Real | None = None, batches: str = "shared"
) -> StochasticCertificate:
    """Return the certificate of SOBA: all directions are at the old point, so one draw may serve all three.

    Args:
        constants: the problem's constants, as single numbers.
        noise: the noise of one draw.
        v_bend: as for `bl.theory.stochastic.aid`.
        batches: as for `bl.soba`. "independent" draws have a slightly smaller bound.
    """
    return _certificate("SOBA", constants, noise, v_bend, shared=check_batches(batches) == "shared")


def _certificate(
    name: str, constants: Constants | Blocks, noise: Noise, v_bend: Real | None, shared: bool
) -> StochasticCertificate:
    k = Blocks.of(constants)
    if not isinstance(noise, Noise):
        raise TypeError(f"noise must be a theory.Noise(inner, adjoint, outer), not {shown(noise)}")
    check_kappa(np.max(k.kappa, initial=1.0))
    k = Blocks(**{field.name: scalar(getattr(k, field.name), field.name) for field in fields(k)})
    bend = np.inf if v_bend is None else scalar(nonnegative(v_bend, "v_bend", "it bounds a norm"), "v_bend")
    return StochasticCertificate(name, k, noise, Method(k, noise, y_bend(k), bend, name == "AID", shared))


def _three(sizes: Any) -> dict[str, Any]:
    """Return α, η and β by name, or raise if one is not positive."""
    if not isinstance(sizes, tuple | list) or len(sizes) != 3:
        raise TypeError(f"step sizes must be three, (α, η, β), got {shown(sizes)}")
    return {name: positive(size, name) for name, size in zip(("alpha", "eta", "beta"), sizes, strict=True)}


def y_bend(k: Blocks) -> float:
    """Return (ρ_xxy + 2ρ_xyy·s + ρ_yyy·s²)/μ with s = L_xy/μ: Lipschitz constant of the Jacobian of y*(x)."""
    s = k.y_slope
    return float((k.rho_xxy + 2 * k.rho_xyy * s + k.rho_yyy * s * s) / k.mu)


def candidates(method: Method, exponents: np.ndarray) -> Tracking:
    """Return 10^exponents times 2/(L_yy + μ) for α and η, and times the limit of exact gradients for β."""
    k, share = method.blocks, 10.0**exponents
    largest = 2 / (k.L_yy + k.mu)
    alpha, eta = largest * share[0], largest * share[1]
    still = Tracking(method, alpha, eta, np.asarray(0.0))
    beta = largest_step(k.L_Phi, unit_gain(still)) * share[2]
    return Tracking(method, *map(np.asarray, (alpha, eta, beta)))


def _lowest(
    method: Method,
    objective: Callable[[Tracking], Numbers],
    decades: tuple[float, float, float],
    points: int,
    rounds: int,
) -> Tracking:
    """Return the candidate with the smallest objective on [10^−decades, 1]³, by a zooming grid."""
    low, high = -np.asarray(decades, float), np.zeros(3)
    grid = np.array(list(product(np.linspace(0, 1, points), repeat=3))).T
    best = low
    for _ in range(rounds):
        exponents = low[:, None] + grid * (high - low)[:, None]
        values = objective(candidates(method, exponents))
        best, cell = exponents[:, np.argmin(values)], (high - low) / (points - 1)
        low, high = np.maximum(best - cell, -np.asarray(decades)), np.minimum(best + cell, 0)
    return candidates(method, best)
