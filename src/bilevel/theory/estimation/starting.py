"""What the problem looks like where a run would start: y*(x0), the constants on the way there, and ∇Φ(x0)."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from bilevel.batch import Batch
from bilevel.loop.scan import warm_up
from bilevel.problem import Problem
from bilevel.solvers.algorithms.itd import itd
from bilevel.theory.estimation.curvature import inner_spectrum
from bilevel.theory.estimation.estimated import Estimated
from bilevel.theory.estimation.exploring import places
from bilevel.theory.estimation.local import Local, local
from bilevel.theory.estimation.settling import Settled, settle
from bilevel.theory.estimation.survey import Place, Survey
from bilevel.theory.estimation.trees import norm
from bilevel.types import PyTree

FLAT = 1e-6  # of the largest curvature: below this share the smallest cannot be told from zero


class Beginning(NamedTuple):
    star: Settled  # y*(x0), or y after the warm-up if g is not convex there
    convex: bool
    damping: float
    mu: float  # of g with the damping
    alpha: float
    at: Local

    @property
    def proposal(self) -> float:
        """The first outer step to try: αμ/L̂_Φ."""
        real = np.finfo(float)
        return min(self.alpha * self.mu / max(float(self.at.smoothness), real.tiny), float(real.max))


def begin(
    survey: Survey, x: PyTree, y: PyTree, warmup: int, project: Callable[[PyTree], PyTree] | None
) -> Beginning:
    """`warmup` gradient steps on y, Newton steps to the end if g is convex there, and a look at all these places."""
    problem, data, key = survey.problem, survey.data, survey.key
    warm = jax.device_get(problem.compiled(_descend, warmup, survey.iterations)(x, y, data, key))
    if not np.isfinite(norm(warm)):
        raise ValueError(
            "gradient descent on y from y0 diverges even with step size 1/L: start from another y0"
        )
    survey.look([Place(x, y), Place(x, warm)])
    star = Settled(warm, np.inf, False)
    if is_convex(survey.estimated):
        star = settle(problem, x, warm, data, survey.estimated.L_yy_at_least)
        survey.look(places(x, y, star))
    estimated = survey.estimated
    convex, L = is_convex(estimated), estimated.L_yy_at_least
    damping = 0.0 if convex else 2 * max(-estimated.mu_at_most, FLAT * L)
    alpha = 1 / (L + damping)
    look = problem.compiled(_local, min(survey.iterations, 8), project)
    at = jax.device_get(look(x, star.y, data, alpha, damping, key))
    return Beginning(star, convex, damping, estimated.mu_at_most + damping, alpha, at)


def is_convex(estimated: Estimated) -> bool:
    """Whether g was strongly convex in y at every place, as far as can be told from zero."""
    return estimated.mu_at_most > FLAT * estimated.L_yy_at_least


def _descend(
    problem: Problem, warmup: int, iterations: int, x: PyTree, y: PyTree, data: Batch | None, key: Array
):
    """`warmup` gradient steps on y with step size 1/L, L the largest curvature at the start."""
    L = inner_spectrum(problem, x, y, data, key, iterations).values[-1]
    solver = itd(problem, inner=1 / L, outer=1.0)
    return warm_up(solver, solver.init(x, y, data), data, steps=warmup).y


def _local(problem: Problem, steps: int, project, x, y, data, alpha, damping, key) -> Local:
    return local(problem, x, y, data, alpha, damping, key, steps, project)
