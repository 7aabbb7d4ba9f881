"""The worst of every constant over points that are looked at one after the other."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array
from optax import tree

from bilevel.batch import Batch
from bilevel.problem import Problem
from bilevel.theory.estimation.curvature import Curvature, curvature, inner_spectrum
from bilevel.theory.estimation.estimated import BLOCKS, Estimated
from bilevel.theory.estimation.lanczos import Ritz
from bilevel.theory.estimation.third import random_unit
from bilevel.types import PyTree

RESOLVED = 0.1  # a smallest eigenvalue is sought on while its residual is a larger share of it
MOST_DOUBLINGS = 3


class Place(NamedTuple):
    """A point to look at."""

    x: PyTree
    y: PyTree
    solved: bool = False  # whether y is y*(x)


class Survey:
    """Places of one problem, known to fit it, and the local constants found there."""

    def __init__(self, problem: Problem, data: Batch | None, iterations: int, key: Array) -> None:
        self.problem, self.data, self.iterations, self.key = problem, data, iterations, key
        self.places: list[Place] = []
        self.found: list[Curvature] = []

    def look(self, places: Sequence[Place]) -> None:
        """The local constants at further places; the third derivatives are sought in the direction of the next one."""
        at_place = self.problem.compiled(_at, self.iterations)
        for place, following in zip(places, [*places[1:], *places[-1:]], strict=True):
            here, there = (place.x, place.y), (following.x, following.y)
            at = at_place(*here, there, self.data, self.key, len(self.found))
            at = jax.tree.map(float, jax.device_get(at))
            if not all(math.isfinite(number) for number in at):
                raise ValueError(
                    "the derivatives of f or g are not finite at a point given: give points where they are"
                )
            self.places.append(place)
            self.found.append(at)

    @property
    def estimated(self) -> Estimated:
        """The worst that was seen of each constant, with the smallest curvature resolved where it was found."""
        most = lambda name, among=self.found: max(float(getattr(point, name)) for point in among)
        solved = [point for point, place in zip(self.found, self.places, strict=True) if place.solved]
        mu, residual = self._smallest()
        same = (name for name in BLOCKS if name not in ("mu", "M_y"))
        return Estimated(
            mu_at_most=mu,
            mu_residual=residual,
            L_at_least=max(most("inner"), most("L_yy"), most("outer")),
            M_at_least=most("slope"),
            rho_at_least=max(most(name) for name in ("third", "rho_xxy", "rho_xyy", "rho_yyy")),
            M_y_at_least=most("slope_y", solved or self.found),
            M_aid_at_least=most("slope_y"),
            points=len(self.found),
            iterations=self.iterations,
            **{f"{name}_at_least": most(name) for name in same},
        )

    def _smallest(self) -> tuple[float, float]:
        """The smallest eigenvalue and its residual, by more Lanczos steps while the residual is a large part of it."""
        at, place = min(zip(self.found, self.places, strict=True), key=lambda pair: float(pair[0].mu))
        mu, residual = float(at.mu), float(at.mu_residual)
        for doubling in range(1, MOST_DOUBLINGS + 1):
            if residual <= RESOLVED * abs(mu):
                break
            ends = self.problem.compiled(_ends, self.iterations * 2**doubling)
            more = jax.device_get(ends(place.x, place.y, self.data, self.key))
            mu, residual = min((mu, residual), (float(more.values[0]), float(more.residuals[0])))
        return mu, residual


def _at(problem: Problem, iterations: int, x, y, there, data, key, number) -> Curvature:
    key = jax.random.fold_in(key, number)
    step, drawn = tree.sub(there, (x, y)), random_unit((x, y), jax.random.fold_in(key, 7))
    apart = tree.norm(step) > 0
    direction = jax.tree.map(lambda a, b: jnp.where(apart, a, b), step, drawn)
    return curvature(problem, x, y, data, direction, key, iterations)


def _ends(problem: Problem, iterations: int, x, y, data, key) -> Ritz:
    return inner_spectrum(problem, x, y, data, key, iterations)
