"""Constants estimated from a problem at the points of a trajectory."""

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from bilevel.arrays import as_arrays
from bilevel.batch import Batch
from bilevel.checks import check_count, check_known, check_problem, check_seed, prepare
from bilevel.problem import Problem
from bilevel.theory.estimation.estimated import Estimated
from bilevel.theory.estimation.survey import Place, Survey
from bilevel.types import PyTree
from bilevel.words import shown


def estimate(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    data: Batch | None = None,
    points: Iterable[Any] = (),
    iterations: int = 30,
    seed: int = 0,
) -> Estimated:
    """Estimates the constants, the paper's four and block by block, at (x, y) and at further `points` of a trajectory.

    μ and the curvatures come from Lanczos on Hessian-vector products, M from gradient norms, and ρ from third
    derivatives by a power method that begins in the direction to the next point (a random one at the last).
    Every estimate is a value that some point and direction attain: M, L and ρ are lower bounds of the true
    constants, and the estimate of μ is an upper bound. At a point where x and y together have at most `iterations`
    entries all come out exact to rounding, ρ excepted, whose maximization may end in a local maximum. μ and L_yy are
    exact at a point with up to 256 inner variables; with more, the iterations for μ are doubled, three times at
    most, until its residual is a tenth of it, and the residual is reported.

    An estimate is of the points given, and of no others. With one point, the very next step may violate the constants:
    `assume()` them only of a problem whose curvature does not change. To certify a run, pass its `points`, or use
    `bl.advise`, which looks along trial runs; `bl.theory.verify` checks the constants along a run.

    Args:
        problem: the two objectives.
        x: the first point's x.
        y: the first point's y.
        data: all the data of both levels.
        points: further pairs (x, y), for instance from `bl.scan(..., record=lambda s, _: (s.x, s.y))`.
        iterations: Lanczos and power steps per quantity and point.
        seed: of the random starting vectors; the same seed gives the same estimates.
    """
    check_problem(problem)
    iterations, key = check_count(iterations, "iterations"), jax.random.key(check_seed(seed))
    data = as_arrays(data, "data")
    places = [Place(*prepare(problem, a, b, data, ("x", "y"))) for a, b in [(x, y), *_pairs(points)]]
    check_known(points=places, data=data)
    survey = Survey(problem, data, iterations, key)
    survey.look(places)
    return survey.estimated


def _pairs(points: Iterable[Any]) -> list[tuple[Any, ...]]:
    array = isinstance(points, jax.Array | np.ndarray)
    if array or not isinstance(points, Iterable) or isinstance(points, str | bytes):
        raise TypeError(f"points must be a list of pairs (x, y), not {shown(points)}: pass e.g. [(x, y)]")
    pairs = list(points)
    for pair in pairs:
        if not (isinstance(pair, tuple | list) and len(pair) == 2):
            raise TypeError(f"points must be pairs (x, y), but one of them is a {type(pair).__name__}")
    return [tuple(pair) for pair in pairs]
