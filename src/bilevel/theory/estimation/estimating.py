"""Constants estimated from a problem at the points of a trajectory, kept apart from declared ones by type."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import Array
from optax import tree

from bilevel.batch import Batch
from bilevel.checks import check_count, prepare
from bilevel.problem import Problem
from bilevel.theory.constants import Constants
from bilevel.theory.estimation.curvature import Curvature, curvature, random_unit
from bilevel.types import PyTree


@dataclass(frozen=True)
class Assumed(Constants):
    """Constants of which those named in `estimated` were estimated and are assumed to hold."""

    estimated: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Estimated:
    """What points seen so far say about the constants. Each is one-sided: a new point can only worsen it.

    No certificate takes these as they are. `assume()` turns them into constants on the reader's own account.
    """

    mu_at_most: float  # smallest curvature of g in y that was found; negative: g is not convex in y
    L_at_least: float  # largest slope of ∇_y g and of ∇f
    M_at_least: float  # largest ‖∇f‖
    rho_at_least: float  # largest slope of ∇²_yy g and ∇²_xy g
    inner_L_at_least: float  # largest curvature of g in y alone: what bounds the inner step size
    M_y_at_least: float  # largest ‖∇_y f‖, all that AID needs of M
    points: int
    iterations: int

    def assume(self, **declared: float) -> Assumed:
        """These estimates as constants, except those declared here, e.g. `assume(M=1.0)`."""
        names = {"mu": "mu_at_most", "L": "L_at_least", "M": "M_at_least", "rho": "rho_at_least"}
        if unknown := set(declared) - set(names):
            raise TypeError(f"{sorted(unknown)[0]!r} is not one of the constants mu, L, M and rho")
        if "mu" not in declared and self.mu_at_most <= 0:
            raise ValueError(
                f"g has curvature {self.mu_at_most:.3g} in y at a point seen, so it is not strongly convex and no "
                "certificate applies: add a ridge term to the inner objective, or look at points nearer its minimum"
            )
        values: dict[str, Any] = {name: getattr(self, field) for name, field in names.items()}
        return Assumed(**values | declared, estimated=frozenset(names) - set(declared))

    def __getattr__(self, name: str) -> Any:
        if name in ("mu", "L", "M", "rho", "kappa", "L_Phi", "L_Phi_blockwise"):
            raise AttributeError(  # a TypeError would make hasattr fail
                f"{name} is not known, only estimated from {self.points} points: read {self._field(name)}, or call "
                ".assume() to go on as if the estimates were the constants"
            )
        raise AttributeError(f"Estimated has no attribute {name!r}")

    @staticmethod
    def _field(name: str) -> str:
        return {"mu": ".mu_at_most", "L": ".L_at_least", "M": ".M_at_least", "rho": ".rho_at_least"}.get(
            name, ".mu_at_most and .L_at_least"
        )

    def __str__(self) -> str:
        return (
            f"estimated at {self.points} point{'s' if self.points > 1 else ''}, {self.iterations} iterations each: "
            f"μ ≤ {self.mu_at_most:.4g}, L ≥ {self.L_at_least:.4g}, M ≥ {self.M_at_least:.4g}, "
            f"ρ ≥ {self.rho_at_least:.4g}"
        )


def estimate(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    data: Batch | None = None,
    points: Iterable[Any] = (),
    iterations: int = 30,
    seed: int = 0,
) -> Estimated:
    """Estimates μ, L, M and ρ at (x, y) and at further `points` of a trajectory.

    μ and the curvatures in L come from Lanczos on Hessian-vector products, M from gradient norms, and ρ from third
    derivatives by a power method that begins in the direction to the next point (a random one at the last).
    Every estimate is a value that some point and direction attain: M, L and ρ are lower bounds of the true
    constants, and the estimate of μ is an upper bound. All come out exact to rounding at a point where y has at most
    `iterations` entries, ρ excepted, whose maximisation may end in a local maximum.

    Args:
        problem: the two objectives.
        x: the first point's x.
        y: the first point's y.
        data: all the data of both levels.
        points: further pairs (x, y), for instance from `bl.scan(..., record=lambda s, _: (s.x, s.y))`.
        iterations: Lanczos and power steps per quantity and point.
        seed: of the random starting vectors; the same seed gives the same estimates.
    """
    iterations = check_count(iterations, "iterations")
    places = [prepare(problem, a, b, data) for a, b in [(x, y), *_pairs(points)]]
    key = jax.random.key(check_count(seed, "seed", least=0))
    return estimate_at(problem, places, data, iterations, key)


def estimate_at(
    problem: Problem, places: list[tuple], data: Batch | None, iterations: int, key: Array
) -> Estimated:
    """`estimate` at points that are known to fit the problem."""
    seen = []
    for k, place in enumerate(places):
        here = jax.random.fold_in(key, k)
        direction = _direction(place, places[k + 1] if k + 1 < len(places) else None, here)
        seen.append(jax.device_get(problem.compiled(_at, iterations)(*place, data, direction, here)))
    return _extremes(seen, iterations)


def _at(problem: Problem, iterations: int, x, y, data, direction, key) -> Curvature:
    return curvature(problem, x, y, data, direction, key, iterations)


def _direction(here: tuple, there: tuple | None, key) -> tuple:
    step = None if there is None else tree.sub(there, here)
    return (
        step
        if step is not None and float(tree.norm(step)) > 0
        else random_unit(here, jax.random.fold_in(key, 7))
    )


def _pairs(points: Iterable) -> list[tuple]:
    pairs = list(points)
    for pair in pairs:
        if not (isinstance(pair, tuple | list) and len(pair) == 2):
            raise TypeError(f"points must be pairs (x, y), but one of them is a {type(pair).__name__}")
    return [tuple(pair) for pair in pairs]


def _extremes(seen: list[Curvature], iterations: int) -> Estimated:
    most = lambda name: max(float(getattr(point, name)) for point in seen)
    estimated = Estimated(
        mu_at_most=min(float(point.inner_low) for point in seen),
        L_at_least=max(most("inner_joint"), most("inner_high"), most("outer_joint")),
        M_at_least=most("slope"),
        rho_at_least=most("third"),
        inner_L_at_least=most("inner_high"),
        M_y_at_least=most("slope_y"),
        points=len(seen),
        iterations=iterations,
    )
    if not all(
        math.isfinite(value) for value in (estimated.mu_at_most, estimated.L_at_least, estimated.M_at_least)
    ):
        raise ValueError(
            "the derivatives of f or g are not finite at a point given: give points where they are"
        )
    return estimated
