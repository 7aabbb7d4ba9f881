"""The three tasks, and how good an x is on each of them.

On the quadratic and on ridge-logistic regularisation that is ‖∇Φ(x)‖, exact. On MNIST reweighting the inner
problem is not convex, y*(x) is not unique and ∇Φ not defined; there an x is judged by what it is for: the
validation loss of a network trained with its weights, from a common start and for a common number of steps,
whatever y the method itself arrived at. (A method's own y would not do: penalty methods let theirs see the
validation data.)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from optax import tree

from bilevel.data import corrupt_labels, mnist
from bilevel.problem import Batch, Problem
from bilevel.problems import quadratic, ridge_logistic
from bilevel.tasks.reweighting import Labelled, initial_mlp, losses, validation_loss
from bilevel.theory.reference import exact

PyTree = Any


@dataclass(frozen=True, eq=False)
class Task:
    """A problem with a start, the grid of outer step sizes, a budget of oracle calls, and a yardstick."""

    name: str
    title: str
    problem: Problem
    x0: PyTree
    y0: PyTree
    data: Batch | None
    L: float
    outer: Callable[[Any], Any]  # from a step size of the grid to the outer rule
    rates: tuple[float, ...]
    calls: int  # oracle calls each method may spend
    per_octave: int  # points measured each time the number of steps doubles
    measure: Callable[[PyTree], Any]  # of x
    label: str
    repeats: int = 5  # of every timing; the shortest counts
    x64: bool = True  # double precision, where the answer is known to rounding
    large_x: bool = False


def quadratic_task(quick: bool) -> Task:
    q = quadratic(kappa=10.0)
    x0 = jnp.ones(2)
    return Task(
        name="quadratic",
        title="(a) quadratic, κ = 10",
        problem=q.problem,
        x0=x0,
        y0=jnp.zeros(2),
        data=None,
        L=float(q.L),
        outer=lambda rate: rate,
        rates=_grid(16 / float(q.L), quick),
        calls=3_000 if quick else 30_000,
        per_octave=2,
        measure=lambda x: jnp.linalg.norm(q.hypergradient(x)),
        label="‖∇Φ(x)‖",
    )


def ridge_task(quick: bool) -> Task:
    p = ridge_logistic(features=20, train=200, valid=200)
    x0 = jnp.zeros(20)
    return Task(
        name="ridge_logistic",
        title="(b) ridge-logistic, one strength a feature",
        problem=p.problem,
        x0=x0,
        y0=jnp.zeros(20),
        data=p.data,
        L=p.L,
        outer=lambda rate: rate,
        rates=_grid(64.0, quick),
        calls=2_000 if quick else 10_000,
        per_octave=2,
        measure=lambda x: tree.norm(exact(p.problem, x, jnp.zeros(20), p.data).hypergradient),
        label="‖∇Φ(x)‖",
    )


class Weighted(NamedTuple):
    examples: Labelled
    rows: Any  # which weights are theirs, so that a part of the examples is a batch too


def weighted_training_loss(x, y, batch: Weighted):
    return jnp.mean(jax.nn.sigmoid(x[batch.rows]) * losses(y, batch.examples))


def reweighting_task(quick: bool) -> Task:
    rows, training_steps = (400, 60) if quick else (1_000, 150)
    train, valid = mnist().train.split(rows, rows // 2, seed=0)
    noisy, _ = corrupt_labels(train.targets, 0.2, classes=10, seed=1)
    data = Batch(
        inner=Weighted(
            Labelled(_coarse(train.inputs), jnp.asarray(noisy)), jnp.arange(rows, dtype=jnp.int32)
        ),
        outer=Labelled(_coarse(valid.inputs), jnp.asarray(valid.targets)),
    )
    problem = Problem(outer=validation_loss, inner=weighted_training_loss)
    y0 = jax.tree.map(jnp.asarray, initial_mlp(196, 64, 10, seed=2))

    def after_training(x):
        descend = lambda _, y: tree.add_scale(y, -1.0, problem.oracles.inner_gradient(x, y, data))
        return problem.f(x, lax.fori_loop(0, training_steps, descend, y0), data)

    return Task(
        name="reweighting",
        title="(c) MNIST reweighting, 20 % wrong labels",
        problem=problem,
        x0=jnp.zeros(rows, jnp.float32),
        y0=y0,
        data=data,
        L=2.0,  # inner steps of 0.5; a network has no global L
        outer=optax.adam,
        rates=(0.1,),
        calls=400 if quick else 2_000,
        per_octave=1,
        measure=after_training,
        label="validation loss after training with weights σ(x)",
        repeats=1,
        x64=False,
        large_x=True,
    )


def _coarse(images: Any) -> Any:
    """28 × 28 pixels as 14 × 14 means, so that twenty methods take minutes."""
    return jnp.asarray(images.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(-1, 196))


TASKS = {"quadratic": quadratic_task, "ridge_logistic": ridge_task, "reweighting": reweighting_task}


def _grid(largest: float, quick: bool) -> tuple[float, ...]:
    return tuple(float(largest * 4.0**-i) for i in ((0, 2, 4) if quick else range(7)))
