"""Problem at the start of a run: y*(x0), the constants observed on the way there, and ∇Φ(x0)."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from bilevel.batch import Batch
from bilevel.loop.scan import warm_up
from bilevel.problem import Problem
from bilevel.solvers.algorithms.itd import itd
from bilevel.theory.estimation.estimates import Estimated
from bilevel.theory.estimation.inner_solution import InnerSolution, host_norm, solve_inner
from bilevel.theory.estimation.local_constants import inner_spectrum
from bilevel.theory.estimation.observations import Observations, Place, places
from bilevel.theory.estimation.stationarity import Stationarity, measure_stationarity
from bilevel.types import PyTree

FLAT = 1e-6  # a smaller share of the largest curvature counts as zero


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
    measured = problem.compiled(_stationarity, min(observations.iterations, 8), project)
    at = jax.device_get(measured(x, star.y, data, alpha, damping, key))
    return StartPoint(star, convex, damping, estimated.mu_at_most + damping, alpha, at)


def is_convex(estimated: Estimated) -> bool:
    """Return whether g was numerically strongly convex in y at every place."""
    return estimated.mu_at_most > FLAT * estimated.L_yy_at_least


def _descend(
    problem: Problem, warmup: int, iterations: int, x: PyTree, y: PyTree, data: Batch | None, key: Array
):
    """Take `warmup` gradient steps on y with step size 1/L, L the largest curvature at the start."""
    L = inner_spectrum(problem, x, y, data, key, iterations).values[-1]
    solver = itd(problem, inner=1 / L, outer=1.0)
    return warm_up(solver, solver.init(x, y, data), data, steps=warmup).y


def _stationarity(problem: Problem, steps: int, project, x, y, data, alpha, damping, key) -> Stationarity:
    return measure_stationarity(problem, x, y, data, alpha, damping, key, steps, project)
