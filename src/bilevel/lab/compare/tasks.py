"""Three tasks: an instance each, and the length and density of its measurement.

On the quadratic and on ridge-logistic regularization the yardstick is ‖∇Φ(x)‖, exact. On MNIST reweighting
the inner problem is not convex, y*(x) is not unique and ∇Φ is not defined. There the yardstick is the
validation loss of a network trained with the weights x. A method's own y is no yardstick: with penalty
methods it depends on the validation data.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bilevel.data import Examples, corrupt_labels, mnist
from bilevel.problems import Instance, quadratic, ridge_logistic
from bilevel.problems.reweighting import data_reweighting, initial_mlp

LARGE = 10**6  # entries of x times entries of y


@dataclass(frozen=True, eq=False)
class Task:
    """Instance with the grid of outer step sizes and a budget of oracle calls."""

    instance: Instance
    title: str
    rates: tuple[float, ...]
    calls: int  # oracle calls each method may spend
    per_octave: int  # points measured each time the number of steps doubles
    outer: Callable[[Any], Any] = field(default=lambda rate: rate)  # from a step size to the outer rule
    repeats: int = 5  # of every timing; the shortest counts

    def __post_init__(self) -> None:
        _ = self.measure

    @property
    def measure(self) -> Callable[[Any], Any]:
        if self.instance.measure is None:
            raise ValueError(
                f"the instance {self.name!r} has no yardstick: give it measure=, a function of x to be made small, "
                "e.g. bilevel.problems.instance.stationarity(problem, y0, data)"
            )
        return self.instance.measure

    @property
    def name(self) -> str:
        return self.instance.name

    @property
    def label(self) -> str:
        return self.instance.label or "yardstick"

    @property
    def x64(self) -> bool:
        """Return whether the task needs double precision, because the answer is known to rounding."""
        return any(jnp.result_type(leaf) == jnp.float64 for leaf in jax.tree.leaves(self.instance.x0))

    @property
    def large_x(self) -> bool:
        """Return whether x is too large for a copy of y per entry of x."""
        entries = lambda tree: sum(jnp.size(leaf) for leaf in jax.tree.leaves(tree))
        return entries(self.instance.x0) * entries(self.instance.y0) > LARGE


def quadratic_task(quick: bool) -> Task:
    return replace(task_of(quadratic(kappa=10.0).instance(), quick), title="(a) quadratic, κ = 10")


def ridge_task(quick: bool) -> Task:
    instance = ridge_logistic(features=20, train=200, valid=200).instance()
    title, calls = "(b) ridge-logistic, one strength a feature", 2_000 if quick else 10_000
    return Task(instance, title, grid(64.0, quick), calls, per_octave=2)


def reweighting_task(quick: bool) -> Task:
    rows, training_steps = (400, 60) if quick else (1_000, 150)
    train, valid = mnist().train.split(rows, rows // 2, seed=0)
    noisy, _ = corrupt_labels(train.targets, 0.2, classes=10, seed=1)
    given = Examples(_coarse(train.inputs), jnp.asarray(noisy))
    trusted = Examples(_coarse(valid.inputs), jnp.asarray(valid.targets))
    y0 = jax.tree.map(jnp.asarray, initial_mlp(196, 64, 10, seed=2))
    return Task(
        data_reweighting(given, trusted, y0, L=2.0, training_steps=training_steps),  # inner steps of 0.5
        title="(c) MNIST reweighting, 20 % wrong labels",
        rates=(0.1,),
        calls=400 if quick else 2_000,
        per_octave=1,
        outer=optax.adam,
        repeats=1,
    )


def task_of(instance: Instance, quick: bool) -> Task:
    """Return a task for a user's instance, with the quadratic's settings, which follow from L."""
    calls = 3_000 if quick else 30_000
    return Task(instance, instance.name, grid(16 / instance.L, quick), calls, per_octave=2)


def grid(largest: float, quick: bool) -> tuple[float, ...]:
    """Return outer step sizes from `largest` down, each a quarter of the previous one."""
    return tuple(float(largest * 4.0**-i) for i in ((0, 2, 4) if quick else range(7)))


def _coarse(images: Any) -> Any:
    """Return the 14 × 14 means of 28 × 28 pixels, so that twenty methods take minutes."""
    return jnp.asarray(images.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(-1, 196))


TASKS: dict[str, Callable[[bool], Task]] = {
    "quadratic": quadratic_task,
    "ridge_logistic": ridge_task,
    "reweighting": reweighting_task,
}
