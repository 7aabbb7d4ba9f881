"""Runs of `advise`: the way to y*(x0), the trial of a proposed β, and points of longer runs of AID and ITD."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array
from optax import tree

from bilevel.batch import Batch, Draws
from bilevel.loop.scan import scan, warm_up
from bilevel.problem import Problem
from bilevel.solvers.algorithms.aid import AID
from bilevel.solvers.algorithms.itd import itd
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.parts.inner import Carried
from bilevel.theory.estimation.estimates import Estimated, StartErrors
from bilevel.theory.estimation.local_constants import inner_spectrum
from bilevel.theory.estimation.observations import (
    InnerSolution,
    Observations,
    Place,
    host_distance,
    host_norm,
    places,
    solve_inner,
)
from bilevel.theory.estimation.stationarity import Stationarity, measure_stationarity, most_cg_steps
from bilevel.types import PyTree, Scalar

FLAT = 1e-6  # a smaller share of the largest curvature counts as zero
MOST_HALVINGS = 40  # of a proposed β
MOST_RUN_HALVINGS = 10  # of the β of a longer run
POINTS = 12  # observed of a run: its end, a half of it, a quarter, an eighth, ...


class StartPoint(NamedTuple):
    star: InnerSolution  # y*(x0), or y after the warm-up if g is not convex there
    convex: bool
    damping: float
    mu: float  # of g with the damping
    alpha: float
    at: Stationarity

    @property
    def proposal(self) -> float:
        """Return the first outer step to try: αμ/L̂_Φ."""
        real = np.finfo(float)
        return min(self.alpha * self.mu / max(float(self.at.smoothness), real.tiny), float(real.max))

    def errors(self, y: PyTree, infimum: float) -> StartErrors:
        """Return the errors of a run from (x0, y) and v = 0."""
        value = float(self.at.value)
        if value <= infimum:
            raise ValueError(
                f"Φ(x0) = {value:g} is not above infimum = {infimum:g}: pass infimum=, a number that f is never below"
            )
        y_error = host_distance(y, self.star.y) + float(self.star.gradient) / self.mu
        v_error = float(self.at.adjoint) if self.at.residual < 1e-8 else None
        return StartErrors(value - infimum, y_error, v_error)


def examine_start(
    observations: Observations, x: PyTree, y: PyTree, warmup: int, project: Callable[[PyTree], PyTree] | None
) -> StartPoint:
    """Take `warmup` gradient steps on y, then Newton steps to y*(x0) if g is convex; observe the places."""
    problem, data, key = observations.problem, observations.data, observations.key
    warm = jax.device_get(problem.compiled(_descend, warmup, observations.iterations)(x, y, data, key))
    if not np.isfinite(host_norm(warm)):
        raise ValueError("gradient descent on y from y0 diverges even with step size 1/L: pass another y0")
    observations.add([Place(x, y), Place(x, warm)])
    star = InnerSolution(warm, np.inf, False)
    if is_convex(observations.estimated):
        star = solve_inner(problem, x, warm, data, observations.estimated.L_yy_at_least)
        observations.add(places(x, y, star))
    estimated = observations.estimated
    convex, L = is_convex(estimated), estimated.L_yy_at_least
    damping = 0.0 if convex else 2 * max(-estimated.mu_at_most, FLAT * L)
    alpha = 1 / (L + damping)
    measured = problem.compiled(measure_stationarity, min(observations.iterations, 8), project)
    at = jax.device_get(measured(x, star.y, data, alpha, damping, key))
    return StartPoint(star, convex, damping, estimated.mu_at_most + damping, alpha, at)


def is_convex(estimated: Estimated) -> bool:
    """Return whether g was numerically strongly convex in y at every place."""
    return estimated.mu_at_most > FLAT * estimated.L_yy_at_least


def _descend(problem: Problem, warmup: int, iterations: int, x: PyTree, y: PyTree, data: Any, key: Array):
    """Take `warmup` gradient steps on y with step size 1/L, L the largest curvature at the start."""
    L = inner_spectrum(problem, iterations, x, y, data, key).values[-1]
    solver = itd(problem, inner=1 / L, outer=1.0)
    return warm_up(solver, solver.init(x, y, data), data, steps=warmup).y


class BetaTrial(NamedTuple):
    beta: float
    halvings: int
    passed: bool  # whether a trial was within the limit; otherwise `beta` is the proposal


def halve_beta(beta: float, gain: Callable[[float], float], limit: float) -> BetaTrial:
    """Halve β until the loop's gain over a trial run is within `limit`."""
    for halvings in range(MOST_HALVINGS + 1):
        if gain(beta / 2**halvings) <= limit:
            return BetaTrial(beta / 2**halvings, halvings, passed=True)
    return BetaTrial(beta, MOST_HALVINGS, passed=False)


class SlopeState(NamedTuple):
    """Solver's state, with the previous x and estimate."""

    state: PyTree
    x: PyTree  # x_{k−1}
    estimate: PyTree  # ∇̂Φ(x_{k−1})


class SlopeReporting(Solver):
    """Solver with the metric "slope", the change of its estimate relative to the step of x."""

    solver: Solver

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | None = None) -> SlopeState:
        """Solve AID's adjoint system. Then take one step, because the first slope needs two estimates."""
        oracles, state = self.problem.oracles, self.solver.init(x0, y0, batch)
        if isinstance(self.solver, AID):
            inner, f = oracles.linearize(x0, y0, batch), oracles.outer_gradients(x0, y0, batch)
            tolerance = 1e-10 if f.value.dtype == jnp.float64 else 1e-5
            state = state._replace(v=cg(inner.hessian, f.y, tol=tolerance, maxiter=most_cg_steps(y0))[0])
        after, info = self.solver.step(state, batch)
        return SlopeState(after, state.x, info.hypergradient)

    def step(self, state: SlopeState, batch: Batch | Draws | None = None) -> tuple[SlopeState, Info]:
        after, info = self.solver.step(state.state, batch)
        moved = tree.norm(tree.sub(state.state.x, state.x))
        changed = tree.norm(tree.sub(info.hypergradient, state.estimate))
        noise = 16 * jnp.finfo(changed.dtype).eps * tree.norm(state.estimate)
        slope = jnp.maximum(changed - noise, 0) / jnp.maximum(moved, jnp.finfo(moved.dtype).tiny)
        reported = replace(info, metrics=info.metrics | {"slope": slope})
        return SlopeState(after, state.state.x, info.hypergradient), reported

    def point(self, state: SlopeState, batch: Any) -> tuple[PyTree, PyTree, Batch | None]:
        return self.solver.point(state.state, batch)

    def observe(self, before: SlopeState, after: SlopeState, batch: Any, model: Carried | None = None):
        return self.solver.observe(before.state, after.state, batch, model)


def largest_slope(solver: Solver, steps: int, x: PyTree, y: PyTree, data: Batch | None) -> Scalar:
    """Return the largest ‖∇̂Φ(x_{k+1}) − ∇̂Φ(x_k)‖/‖x_{k+1} − x_k‖ over `steps` steps; infinite on divergence.

    AID starts from a solved adjoint system, and y should be y*(x). Then the estimate changes only as x moves.
    """
    reporting = SlopeReporting(solver.problem, solver)
    record = lambda state, info: info.metrics["slope"]
    _, slopes = scan(reporting, reporting.init(x, y, data), data, steps=steps, record=record)
    return jnp.where(jnp.all(jnp.isfinite(slopes)), jnp.max(slopes), jnp.inf)


class TrialRun(NamedTuple):
    """Run and its observed moments."""

    beta: float
    steps: int
    # x, ŷ and y*(x) at POINTS moments; empty if all β diverged
    seen: list[tuple[PyTree, PyTree, InnerSolution]]


def follow(
    make: Callable[[float], Solver],
    beta: float,
    length: Callable[[float], int],
    x: PyTree,
    y: PyTree,
    data: Batch | None,
    L: float,
) -> TrialRun:
    """Take `length(β)` steps of `make(β)` from (x, y). Halve β until they are finite."""
    for _ in range(MOST_RUN_HALVINGS + 1):
        solver, steps, seen = make(beta), length(beta), []
        state, done = solver.compiled(_initialize)(x, y, data), 0
        for moment in sorted({math.ceil(steps / 2**j) for j in range(POINTS)}):
            state, done = solver.compiled(_advance)(state, data, moment - done), moment
            at_x, at_y = jax.device_get((state.x, state.y))
            if not math.isfinite(host_norm((at_x, at_y))):
                break
            seen.append((at_x, at_y, solve_inner(solver.problem, at_x, at_y, data, L)))
        else:
            return TrialRun(beta, steps, seen)
        beta = beta / 2
    return TrialRun(beta, 0, [])


_initialize = lambda solver, x, y, data: solver.init(x, y, data)


def _advance(solver: Solver, state: PyTree, data: Batch | None, count: Array) -> PyTree:
    step = lambda _, state: scan(solver, state, data, steps=1, record=lambda state, info: ())[0]
    return lax.fori_loop(0, count, step, state)
