"""Parts that several applications share."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import bilevel as bl
from bilevel.applications.base import Outcome
from bilevel.data.examples import Examples


class FreshStream(eqx.Module):
    """Stream of new data: step k has the batch of `fold_in(key, k)`, whatever was drawn before."""

    key: Any

    def start(self, step: int) -> Any:
        return jnp.uint32(step)

    def next(self, cursor: Any) -> tuple[Any, bl.Batch]:
        return cursor + jnp.uint32(1), self.batch(jax.random.fold_in(self.key, cursor))

    @abstractmethod
    def batch(self, key: Any) -> bl.Batch: ...


def mnist_parts(train: int, valid: int, test: int, seed: int) -> tuple[Examples, Examples, Examples]:
    """Return so many images of MNIST for training, validation and test."""
    images = bl.data.mnist()
    for_training, for_validation = images.train.split(train, valid, seed=seed)
    (for_test,) = images.test.split(test, seed=seed)
    return for_training, for_validation, for_test


def joined(one: Any, other: Any) -> Any:
    """Return two sets of examples as one."""
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), one, other)


def halved(images: Any) -> Any:
    """Return images of 28 × 28 at half their resolution: n × 14 × 14."""
    return images.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4))


def patches(images: Any) -> jax.Array:
    """Return n × ⌈h/2⌉ × ⌈w/2⌉ × 9c for n × h × w × c: every second pixel and its neighbors, zero outside.

    Patches times a matrix are a 3 × 3 convolution with stride 2.
    """
    _, h, w, _ = images.shape
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return jnp.concatenate(
        [padded[:, i : i + h : 2, j : j + w : 2] for i in range(3) for j in range(3)], axis=3
    )


def run_all(
    methods: Mapping[str, bl.Solver], task: bl.problems.Instance, steps: int, progress: bool, **options: Any
) -> dict[str, bl.Result]:
    """Run every method on the task, and raise if a run fails."""
    options |= {"data": task.data, "steps": steps, "progress": progress}
    return {name: bl.run(method, task.x0, task.y0, **options).check() for name, method in methods.items()}


def share_right(scores: Any, labels: Any) -> jax.Array:
    return jnp.mean(jnp.argmax(scores, axis=1) == jnp.asarray(labels))


def mean(outcomes: Sequence[Outcome], method: str, measure: str) -> Any:
    """Return the mean of a score over the seeds."""
    return np.mean([one.scores[method][measure] for one in outcomes])


def descend(
    rule: optax.GradientTransformation,
    gradient: Callable[..., Any],
    y: Any,
    keys: Any,
    length: int | None = None,
) -> Any:
    """Return y after a step of the rule along `gradient(y, key)` for every key, or `length` times None."""

    def step(carry: Any, key: Any) -> Any:
        y, memory = carry
        updates, memory = rule.update(gradient(y, key), memory, y)
        return (optax.apply_updates(y, updates), memory), None

    return lax.scan(step, (y, rule.init(y)), keys, length)[0][0]


def adapted(
    problem: bl.Problem, score: Callable[..., Any], x: Any, new: bl.Batch, rate: Any, tie: Any, steps: int
) -> tuple[Any, Any]:
    """Adapt x to every task of `new` by gradient steps on g + tie/2 ‖y − x‖².

    Returns:
        The values of `score(y, query)` after 0, 1, … steps, one row per task, and the last y of every task.
    """

    def one(support: Any, query: Any) -> tuple[Any, Any]:
        distance = lambda y: optax.tree.norm(optax.tree.sub(y, x), squared=True)
        tied = lambda y: problem.g(x, y, bl.Batch(support)) + tie / 2 * distance(y)
        step = lambda y, _: (optax.tree.add_scale(y, -rate, jax.grad(tied)(y)), score(y, query))
        y, scores = lax.scan(step, x, length=steps)
        return jnp.append(scores, score(y, query)), y

    return jax.vmap(one)(new.inner, new.outer)
