"""Certificates for AID and SOBA on minibatches."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax

from bilevel.solvers.options import check_batches
from bilevel.theory.blocks import Blocks
from bilevel.theory.certificates.certificate import GAP, StepSizes
from bilevel.theory.certificates.gain import EVERY_STEP
from bilevel.theory.certificates.stochastic.constant import mean_bound
from bilevel.theory.certificates.stochastic.noise import Noise
from bilevel.theory.certificates.stochastic.search import lowest
from bilevel.theory.certificates.stochastic.tracking import Method, Tracking
from bilevel.theory.certificates.stochastic.varying import best_weighted_bound, weighted_bound
from bilevel.theory.constants import Constants
from bilevel.theory.reals import Real, horizon, nonnegative, one, positive, resolved
from bilevel.words import shown

STEP = "it is a step size"
LONGEST = 20_000  # steps of a schedule that is searched for: all of its candidates are held at once


class Schedule(NamedTuple):
    """Step sizes of every step."""

    alpha: np.ndarray
    eta: np.ndarray
    beta: np.ndarray

    @property
    def rules(self) -> StepSizes:
        """The sizes as optax rules, for `bl.aid(problem, **rules._asdict(), batches="independent")`.

        After its end a rule keeps the last size.
        """
        return StepSizes(*(optax.sgd(_looked_up(sizes)) for sizes in self))


@dataclass(frozen=True)
class StochasticCertificate:
    """Bounds on E‖∇Φ‖² for every run of `method` with these constants, on draws with this noise.

    `theory.stochastic.check(solver, data)` refuses runs whose draws are not those of the theorem. A start is described
    as in the certificates for exact gradients: `gap` = Φ(x₀) − inf Φ, `y_error` = ‖y₀ − y*(x₀)‖ and
    `v_error` = ‖v₀ − v*(x₀)‖ before the first update; left out, v₀ = 0 and the latter is at most M_y/μ.
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
        """Bound on (1/K) Σ_{k<K} E‖∇Φ(x_k)‖² with constant `sizes` (α, η, β), by default those of `step_sizes`.

        Infinite where they are not certified.
        """
        K, start = one(horizon(steps), "steps"), self._start(gap, y_error, v_error)
        sizes = self.step_sizes(steps, gap, y_error, v_error) if sizes is None else sizes
        alpha, eta, beta = (np.asarray(one(size, name)) for name, size in _three(sizes).items())
        return float(mean_bound(Tracking(self._method, alpha, eta, beta), np.asarray(K), *start))

    def step_sizes(
        self, steps: Real, gap: Real, y_error: Real = 0.0, v_error: Real | None = None
    ) -> StepSizes:
        """The constant (α, η, β) with the lowest bound after K steps, found by a search; any others give a valid bound.

        With noise all three shrink with K. Of order K^(−1/2), and the bound too, if the Jacobians of y* and v* are
        Lipschitz (`v_bend`); otherwise η of order K^(−2/5), β of K^(−3/5), and the bound of K^(−2/5).
        """
        K = one(horizon(steps), "steps")
        positive(gap, "gap", GAP)
        start = self._start(gap, y_error, v_error)
        self._check_curvature()
        objective = lambda at: mean_bound(at, np.asarray(K), *start)
        reach = 3.0 + float(np.log10(K))  # none shrinks faster than 1/K
        found = lowest(self._method, objective, decades=(reach, reach, reach), points=13, rounds=10)
        return StepSizes(float(found.alpha), float(found.eta), float(found.beta))

    def schedule_bound(
        self, schedule: Any, gap: Real, y_error: Real = 0.0, v_error: Real | None = None
    ) -> float:
        """Bound on Σ_k β_k E‖∇Φ(x_k)‖² / Σ_k β_k for arrays (α_k), (η_k), (β_k), k < K; infinite if not certified.

        It is what a step picked at random, with probability β_k/Σβ, has to expect. Equal numbers may be floats, if one
        of the three is an array; for constant steps it is at most `bound`, which sums to the end of time.
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
        """α_k = α₀(k+1)^(−power), η_k likewise, β_k = β₀(k+1)^(−outer_power), with α₀, η₀, β₀ for the lowest bound.

        `outer_power` is `power` by default; without `v_bend` take 2/5 and 3/5. The search costs some hundred
        evaluations of `schedule_bound`; for long runs search at fewer steps, and extend the powers.
        """
        K = one(horizon(steps), "steps")
        if K > LONGEST:
            raise ValueError(
                f"steps = {K:g} are too many to search over: take at most {LONGEST}, and extend the powers to more"
            )
        power = one(nonnegative(power, "power", "steps must not grow"), "power")
        outer = (
            power
            if outer_power is None
            else one(nonnegative(outer_power, "outer_power", STEP), "outer_power")
        )
        positive(gap, "gap", GAP)
        start = self._start(gap, y_error, v_error)
        self._check_curvature()
        k = np.arange(1.0, K + 1)[:, None]
        slow, fast = k**-power, k**-outer
        along = lambda at: Tracking(at.method, at.alpha * slow, at.eta * slow, at.beta * fast)
        objective = lambda at: weighted_bound(along(at), *start)
        found = along(lowest(self._method, objective, decades=(3.0, 3.0, 4.0), points=5, rounds=7))
        return Schedule(found.alpha[:, 0], found.eta[:, 0], found.beta[:, 0])

    def _check_curvature(self) -> None:
        if self.constants.L_Phi == 0:
            raise ValueError(EVERY_STEP)

    def _start(self, gap: Real, y_error: Real, v_error: Real | None) -> tuple[float, float, float]:
        k = self.constants
        gap = nonnegative(gap, "gap", "it is Φ(x₀) − inf Φ")
        y_error = nonnegative(y_error, "y_error", "it is the distance of y₀ from y*(x₀)")
        v_error = k.M_y / k.mu if v_error is None else v_error
        v_error = nonnegative(v_error, "v_error", "it is the distance of v₀ from v*(x₀)")
        return one(gap, "gap"), one(y_error, "y_error"), one(v_error, "v_error")


def aid(constants: Constants | Blocks, noise: Noise, v_bend: Real | None = None) -> StochasticCertificate:
    """AID (Algorithm 1) with three independent draws a step, for y, v and x: `bl.aid(..., batches="independent")`.

    Args:
        constants: of the problem; single numbers.
        noise: of one draw.
        v_bend: Lipschitz constant of the Jacobian of v*(x) = (∇²_yy g)⁻¹∇_y f at y*(x). It exists if f has bounded
            third and g bounded fourth derivatives; zero if both are quadratic. Left out, it is not assumed, and the
            noise of x moves v* in the worst direction at every step.
    """
    return _certificate("AID", constants, noise, v_bend, sequential=True, shared=False)


def soba(
    constants: Constants | Blocks, noise: Noise, v_bend: Real | None = None, batches: str = "shared"
) -> StochasticCertificate:
    """SOBA: every direction at the point the step starts from, so one draw may serve all three.

    Args:
        constants: of the problem; single numbers.
        noise: of one draw.
        v_bend: as for `bl.theory.stochastic.aid`.
        batches: as the solver's. "independent" draws have a slightly smaller bound.
    """
    shared = check_batches(batches) == "shared"
    return _certificate("SOBA", constants, noise, v_bend, sequential=False, shared=shared)


def _certificate(
    name: str,
    constants: Constants | Blocks,
    noise: Noise,
    v_bend: Real | None,
    sequential: bool,
    shared: bool,
) -> StochasticCertificate:
    k = Blocks.of(constants)
    if not isinstance(noise, Noise):
        raise TypeError(f"noise must be a theory.Noise(inner, adjoint, outer), not {shown(noise)}")
    resolved(np.max(k.kappa, initial=1.0))
    k = Blocks(**{field.name: one(getattr(k, field.name), field.name) for field in fields(k)})
    bend = np.inf if v_bend is None else one(nonnegative(v_bend, "v_bend", "it bounds a norm"), "v_bend")
    return StochasticCertificate(name, k, noise, Method(k, noise, y_bend(k), bend, sequential, shared))


def _three(sizes: Any) -> dict[str, Any]:
    """α, η and β by name, all of them positive."""
    if not isinstance(sizes, tuple | list) or len(sizes) != 3:
        raise TypeError(f"step sizes must be three, (α, η, β), got {shown(sizes)}")
    named = zip(("alpha", "eta", "beta"), sizes, strict=True)
    return {name: positive(size, name, STEP) for name, size in named}


def y_bend(k: Blocks) -> float:
    """(ρ_xxy + 2ρ_xyy·s + ρ_yyy·s²)/μ with s = L_xy/μ: Lipschitz constant of the Jacobian of y*(x)."""
    s = k.y_slope
    return float((k.rho_xxy + 2 * k.rho_xyy * s + k.rho_yyy * s * s) / k.mu)


def _looked_up(sizes: np.ndarray) -> Any:
    return lambda count: jnp.asarray(sizes)[jnp.minimum(count, len(sizes) - 1)]
