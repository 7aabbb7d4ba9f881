"""Constants observed at points, and the worst of each: `estimate`, and the observations behind `advise`."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool
from optax import tree

from bilevel.arrays import as_arrays
from bilevel.batch import Batch
from bilevel.checks import check_count, check_known, check_problem, check_seed, prepare
from bilevel.problem import Problem
from bilevel.solvers.parts.newton import minimize
from bilevel.theory.estimation.estimates import Estimated
from bilevel.theory.estimation.local_constants import LocalConstants, inner_spectrum, local_constants
from bilevel.types import PyTree, Scalar
from bilevel.words import shown

RESOLVED = 0.1  # largest residual of the smallest eigenvalue, as a share of it, before more Lanczos steps
MOST_DOUBLINGS = 3
PRODUCTS = 10_000  # the most for one y*(x)
APART = 1e-6  # ŷ and y* closer than this, relative to y*, count as one place


def estimate(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    data: Batch | None = None,
    points: Iterable[Any] = (),
    iterations: int = 30,
    seed: int = 0,
) -> Estimated:
    """Estimate the constants, the paper's four and block by block, at (x, y) and at further `points`.

    μ and the curvatures come from Lanczos on Hessian-vector products, M comes from gradient norms, and ρ from
    third derivatives by a power method, which starts in the direction to the next point (a random one at the
    last). Every estimate is attained at some point in some direction: M, L and ρ are lower bounds of the true
    constants, and the estimate of μ is an upper bound. At a point where x and y together have at most
    `iterations` entries, all are exact to rounding except ρ, which may be a local maximum. μ and L_yy are exact
    with up to 256 inner variables. With more, the iterations for μ are doubled, at most three times, until its
    residual, which is reported, is a tenth of it.

    An estimate covers only the given points. With one point, the very next step may violate the constants:
    `assume()` them only for a problem with constant curvature. To certify a run, pass its `points`, or use
    `bl.advise`, which observes trial runs. `bl.theory.verify` checks the constants along a run.

    Args:
        problem: the two objectives.
        x: the first point's x.
        y: the first point's y.
        data: all the data of both levels.
        points: further pairs (x, y), for instance from `bl.scan(..., record=lambda s, _: (s.x, s.y))`.
        iterations: Lanczos and power steps per quantity and point.
        seed: seed of the random starting vectors; the same seed gives the same estimates.
    """
    check_problem(problem)
    iterations, key = check_count(iterations, "iterations"), jax.random.key(check_seed(seed))
    data = as_arrays(data, "data")
    places = [Place(*prepare(problem, a, b, data, ("x", "y"))) for a, b in [(x, y), *_pairs(points)]]
    check_known(points=places, data=data)
    observations = Observations(problem, data, iterations, key)
    observations.add(places)
    return observations.estimated


class InnerSolution(NamedTuple):
    y: PyTree
    gradient: Scalar | float  # ‖∇_y g(x, y)‖
    done: Bool[Array, ""] | bool  # whether it is as small as requested, or as rounding permits


def solve_inner(problem: Problem, x: PyTree, y: PyTree, data: Batch | None, L: float) -> InnerSolution:
    """Return y*(x) on the host, by Newton from y; L is the largest known curvature of g in y."""
    return jax.device_get(problem.compiled(_solve_inner)(x, y, data, L))


def _solve_inner(problem: Problem, x: PyTree, y: PyTree, data: Batch | None, L: Any) -> InnerSolution:
    real = tree.norm(y).dtype
    accuracy = jnp.asarray(1e-12 if real == jnp.float64 else 1e-6, real)
    solved = minimize(problem, x, y, tree.zeros_like(y), data, accuracy, PRODUCTS)
    gradient = tree.norm(problem.oracles.inner_gradient(x, solved.solution, data))
    rounding = 64 * jnp.finfo(real).eps * jnp.asarray(L, real) * (1 + tree.norm(solved.solution))
    return InnerSolution(solved.solution, gradient, solved.settled | (gradient <= rounding))


class Place(NamedTuple):
    """Point to observe."""

    x: PyTree
    y: PyTree
    solved: bool = False  # whether y is y*(x)


def places(x: PyTree, y: PyTree, star: InnerSolution) -> list[Place]:
    """Return y*(x). If y is apart from it, also return y and the middle of the segment between them."""
    found = [Place(x, star.y, solved=bool(star.done))]
    if host_distance(y, star.y) > APART * host_norm(star.y):
        half = lambda a, b: (np.asarray(a) + np.asarray(b)) / np.asarray(2, a.dtype)
        found += [Place(x, y), Place(x, jax.tree.map(half, y, star.y))]
    return found


@dataclass
class Observations:
    """Places of one problem, checked to fit it, and the local constants found there."""

    problem: Problem
    data: Batch | None
    iterations: int
    key: Array
    places: list[Place] = field(default_factory=list)
    found: list[LocalConstants] = field(default_factory=list)

    def add(self, places: Sequence[Place]) -> None:
        """Observe further places; search third derivatives in the direction of the next place."""
        at_place = self.problem.compiled(local_constants, self.iterations)
        for place, following in zip(places, [*places[1:], *places[-1:]], strict=True):
            here, there = (place.x, place.y), (following.x, following.y)
            key = jax.random.fold_in(self.key, len(self.found))
            at = jax.tree.map(float, jax.device_get(at_place(*here, there, self.data, key)))
            if not all(math.isfinite(number) for number in at):
                raise ValueError(
                    "the derivatives of f or g are not finite at a given point: pass points where they are"
                )
            self.places.append(place)
            self.found.append(at)

    @property
    def estimated(self) -> Estimated:
        """Return the worst observed value of each constant. Resolve the smallest curvature further."""
        most = lambda name, among=self.found: max(getattr(point, name) for point in among)
        solved = [point for point, place in zip(self.found, self.places, strict=True) if place.solved]
        mu, residual = self._smallest()
        bounds = {f"{name}_at_least": most(name) for name in LocalConstants._fields[2:]}
        bounds |= {"M_aid_at_least": most("M_y"), "M_y_at_least": most("M_y", solved or self.found)}
        counts = {"points": len(self.found), "iterations": self.iterations}
        return Estimated(mu_at_most=mu, mu_residual=residual, **bounds, **counts)

    def _smallest(self) -> tuple[float, float]:
        """Return the smallest eigenvalue and its residual; a large residual takes more Lanczos steps."""
        at, place = min(zip(self.found, self.places, strict=True), key=lambda pair: pair[0].mu)
        mu, residual = float(at.mu), float(at.mu_residual)
        for doubling in range(1, MOST_DOUBLINGS + 1):
            if residual <= RESOLVED * abs(mu):
                break
            ends = self.problem.compiled(inner_spectrum, self.iterations * 2**doubling)
            more = jax.device_get(ends(place.x, place.y, self.data, self.key))
            mu, residual = min((mu, residual), (float(more.values[0]), float(more.residuals[0])))
        return mu, residual


def _pairs(points: Iterable[Any]) -> list[tuple[Any, ...]]:
    array = isinstance(points, jax.Array | np.ndarray)
    if array or not isinstance(points, Iterable) or isinstance(points, str | bytes):
        raise TypeError(f"points must be a list of pairs (x, y), not {shown(points)}: pass e.g. [(x, y)]")
    pairs = list(points)
    for pair in pairs:
        if not (isinstance(pair, tuple | list) and len(pair) == 2):
            raise TypeError(f"points must be pairs (x, y), but one of them is a {type(pair).__name__}")
    return [tuple(pair) for pair in pairs]


def host_norm(a: PyTree) -> float:
    """Return ‖a‖ by NumPy, so that JAX compiles nothing for it."""
    return float(np.sqrt(sum(np.sum(np.square(np.asarray(leaf, float))) for leaf in jax.tree.leaves(a))))


def host_distance(a: PyTree, b: PyTree) -> float:
    return host_norm(jax.tree.map(lambda a, b: np.asarray(a, float) - np.asarray(b, float), a, b))
