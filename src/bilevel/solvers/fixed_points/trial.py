"""A rule tried out on made-up gradients while y is held fixed, and how two trials are compared."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.core import Tracer
from optax import tree

from bilevel.solvers.rules import Rule, Transformation
from bilevel.types import PyTree


class Trial(NamedTuple):
    rule: Rule
    y: PyTree
    gradient: PyTree
    other: PyTree
    steps: int

    def updates(self, gradient_at: Callable[[Any], PyTree], y: PyTree, ahead: Any, steps: int) -> PyTree:
        """What the rule adds to y, held fixed, when it is fed `gradient_at(t)` at t = 0, 1, …; stacked."""
        step = lambda memory, t: self._step(gradient_at(t), memory, y)
        return lax.scan(step, self._memory(y, ahead), jnp.arange(steps, dtype=jnp.int32))[1]

    def apart(self, one: tuple[Any, ...], other: tuple[Any, ...], ahead: Any) -> tuple[PyTree, jax.Array]:
        """How far two such series, each of a `gradient_at` and a y, are apart at most, and whether they are equal."""

        def step(carry, t):
            memories, most, equal = carry
            taken = [self._step(at(t), m, y) for (at, y), m in zip((one, other), memories, strict=True)]
            (first, a), (second, b) = taken
            most = jax.tree.map(lambda most, a, b: jnp.maximum(most, jnp.abs(a - b)), most, a, b)
            return ((first, second), most, equal & all_equal(a, b)), None

        start = (self._memory(one[1], ahead), self._memory(other[1], ahead)), tree.zeros_like(self.y)
        times = jnp.arange(self.steps, dtype=jnp.int32)
        return lax.scan(step, (*start, jnp.array(True)), times)[0][1:]

    def _memory(self, y: PyTree, ahead: Any) -> PyTree:
        return _standing_in(self.rule.init(y), ahead)

    def _step(self, gradient: PyTree, memory: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
        value = lambda z: 0.5 * tree.norm(tree.sub(tree.add(z, gradient), y), squared=True)  # ∇ = γ at y
        if isinstance(self.rule, Transformation):  # a small update would be lost in the digits of y
            update, memory = _update(self.rule.transformation.value, gradient, memory, y, value)
            return memory, update
        after, memory = self.rule.update(gradient, memory, y, value)
        return memory, tree.sub(after, y)


def _update(
    transformation: Any, gradient: PyTree, memory: PyTree, y: PyTree, value: Callable[..., Any]
) -> tuple[Any, ...]:
    try:
        return transformation.update(gradient, memory, y)
    except TypeError as error:
        if "required keyword-only argument" not in str(error):
            raise
        return transformation.update(gradient, memory, y, value=value(y), grad=gradient, value_fn=value)


def _standing_in(memory: PyTree, ahead: Any) -> PyTree:
    """A rule's first memory with its counters set ahead, and numbers for those that are traced or zero."""
    injected = lambda part: isinstance(part, optax.InjectStatefulHyperparamsState)

    def number(value):
        known = None if isinstance(value, Tracer) else float(value)
        return jnp.asarray(known if known else 0.1, jnp.result_type(value))

    def filled(part):
        return part._replace(hyperparams=jax.tree.map(number, part.hyperparams)) if injected(part) else part

    memory = jax.tree.map(filled, memory, is_leaf=injected)
    counts = lambda leaf: eqx.is_array(leaf) and leaf.ndim == 0 and jnp.issubdtype(leaf.dtype, jnp.integer)
    return jax.tree.map(lambda leaf: leaf + jnp.asarray(ahead, leaf.dtype) if counts(leaf) else leaf, memory)


def mixed(parity: int, even: PyTree, odd: PyTree) -> PyTree:
    """Every other entry from one tree, the rest from the other."""
    choose = lambda a, b: jnp.where(jnp.arange(a.size).reshape(a.shape) % 2 == parity, a, b)
    return jax.tree.map(choose, even, odd)


def all_equal(left: PyTree, right: PyTree) -> jax.Array:
    """Up to the rounding that differs between two compilations of one formula."""

    def equal(a, b):
        return jnp.all(
            jnp.abs(a - b) <= 8 * float(jnp.finfo(a.dtype).eps) * jnp.maximum(jnp.abs(a), jnp.abs(b))
        )

    return jnp.all(jnp.stack(jax.tree.leaves(jax.tree.map(equal, left, right))))
