"""What a row of the table is, and the problems its columns stand for.

The data's row counts are multiples of eight, so that they can be sharded over the forced devices.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

import bilevel as bl
from bilevel.problems import Instance


@dataclass(frozen=True)
class Row:
    """A solver: `make(problem, L)` builds it with step sizes that suit an L-smooth problem.

    `problems` names the columns it belongs to: all those with a fixed inner problem, unless it is made for others.
    """

    name: str
    make: Callable[[bl.Problem, float], bl.Solver]
    problems: tuple[str, ...] = ("quadratic", "ridge_logistic", "trees")

    def __str__(self) -> str:
        return self.name


def quadratic(dtype) -> Instance:
    q = bl.problems.quadratic(kappa=2.0)
    return Instance("quadratic", q.problem, jnp.ones(2, dtype), jnp.zeros(2, dtype), None, q.L)


def ridge_logistic(dtype) -> Instance:
    p = bl.problems.ridge_logistic(train=64, valid=56, dtype=dtype)
    return Instance("ridge_logistic", p.problem, jnp.full(5, 0.3, dtype), jnp.zeros(5, dtype), p.data, p.L)


def trees(dtype) -> Instance:
    """x and y as nested dicts of arrays of several ranks, with data at both levels."""
    rng = np.random.default_rng(1)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)

    def features(x, a):
        return a @ x["map"]["w"] * x["scale"]

    def inner(x, y, batch):
        a, b = batch
        fit = features(x, a) @ y["w"] + y["b"] - b
        return 0.5 * jnp.mean(fit * fit) + 0.5 * (jnp.sum(y["w"] ** 2) + y["b"] ** 2)

    def outer(x, y, batch):
        a, b = batch
        fit = features(x, a) @ y["w"] + y["b"] - b
        return 0.5 * jnp.mean(fit * fit) + 0.05 * (jnp.sum(x["map"]["w"] ** 2) + x["scale"] ** 2)

    x0 = {"map": {"w": 0.3 * draw(3, 2)}, "scale": jnp.ones((), dtype)}
    y0 = {"w": jnp.zeros(2, dtype), "b": jnp.zeros((), dtype)}
    data = bl.Batch(inner=(draw(24, 3), draw(24)), outer=(draw(16, 3), draw(16)))
    return Instance("trees", bl.Problem(inner=inner, outer=outer), x0, y0, data, 8.0)


def tasks(dtype) -> Instance:
    """Eight regression tasks that share an initialization: x has y's tree, the data one row per task."""
    rng = np.random.default_rng(2)
    a = rng.normal(size=(8, 6, 2))
    b = np.einsum("tij,tj->ti", a, rng.normal(size=(8, 2)) + np.array([1.0, -1.0]))
    rows = lambda part: (jnp.asarray(a[:, part], dtype), jnp.asarray(b[:, part], dtype))
    loss = lambda x, y, batch: 0.5 * jnp.mean((batch[0] @ y["w"] - batch[1]) ** 2)
    start = {"w": jnp.zeros(2, dtype)}
    data = bl.Batch(inner=rows(slice(0, 3)), outer=rows(slice(3, 6)))
    return Instance("tasks", bl.Problem(inner=loss, outer=loss), start, start, data, 5.0)


PROBLEMS: dict[str, Callable[[Any], Instance]] = {
    "quadratic": quadratic,
    "ridge_logistic": ridge_logistic,
    "trees": trees,
    "tasks": tasks,
}
