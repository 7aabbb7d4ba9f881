"""A rule tried out on synthetic gradients while y is held fixed, by one compiled program."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.core import Tracer
from optax import tree

from bilevel.solvers.rules import Rule, Transformation, optax_update
from bilevel.types import PyTree

STEPS, CASES = 48, 32  # per call
FEWER, MANY = 4, 100_000  # steps of one case at a time, if y has more entries than that
SIZE = 0.05  # ‖γ‖ and ‖y‖ of the trial, below the usual limits of clipping by norm

Leaves = list[Any]  # NumPy arrays and numbers
Shapes = tuple[tuple[tuple[int, ...], Any], ...]


class Case(NamedTuple):
    """y, a gradient for every step, and the increase of the rule's counters before every step."""

    y: Leaves
    gradients: Leaves  # [steps, ...]
    ahead: np.ndarray  # [steps], or [steps, counters] for different counters


class Outcome(NamedTuple):
    updates: Leaves  # the change of y in each step, [steps, ...]
    memory: Leaves  # after the last step


class Trial:
    def __init__(self, rule: Rule, structure: Any, shapes: Shapes):
        self.rule, self.structure, self.shapes = rule, structure, shapes
        self.many = sum(int(np.prod(shape)) for shape, _ in shapes) > MANY
        self.steps, self.together = (FEWER, 1) if self.many else (STEPS, CASES)

    def of_one_step(self) -> "Trial":
        """Return the same trial; if y has many entries, one of a single step, which takes less time."""
        other = Trial(self.rule, self.structure, self.shapes) if self.many else self
        other.steps = 1 if self.many else self.steps
        return other

    def draw(self, seed: int) -> Leaves:
        """Return random numbers of norm `SIZE`, with none near zero."""
        rng = np.random.default_rng(seed)
        drawn = [rng.uniform(-0.5, 0.5, shape) for shape, _ in self.shapes]
        drawn = [a + np.where(a < 0, -0.5, 0.5) for a in drawn]
        norm = np.sqrt(sum(np.sum(a * a) for a in drawn))
        return [np.asarray(SIZE / norm * a, dtype) for a, (_, dtype) in zip(drawn, self.shapes, strict=True)]

    def repeat(self, leaves: Leaves, weights: Any = 1.0) -> Leaves:
        """Return the same leaves for every step, times one number per step."""
        weights = np.broadcast_to(weights, self.steps)
        return [(weights.reshape(-1, *(1,) * a.ndim) * a.astype(np.float64)).astype(a.dtype) for a in leaves]

    def start_at(self, time: int) -> np.ndarray:
        return np.array([time] + [0] * (self.steps - 1))

    def run(self, cases: Sequence[Case]) -> list[Outcome]:
        found = []
        for first in range(0, len(cases), self.together):
            some = list(cases[first : first + self.together])
            found += self._call(some + some[:1] * (self.together - len(some)))[: len(some)]
        return found

    def _call(self, cases: list[Case]) -> list[Outcome]:
        wide = lambda ahead: np.broadcast_to(
            ahead[:, None] if ahead.ndim == 1 else ahead, (self.steps, len(self.counters))
        )
        stacked = lambda parts: [np.stack(leaves) for leaves in zip(*parts, strict=True)]
        updates, memory = self._program(
            stacked([case.y for case in cases]),
            stacked([case.gradients for case in cases]),
            np.stack([wide(case.ahead) for case in cases]).astype(np.int32),
        )
        taken = lambda leaves, i: [np.asarray(leaf[i], np.float64) for leaf in leaves]
        return [Outcome(taken(updates, i), taken(memory, i)) for i in range(len(cases))]

    @cached_property
    def counters(self) -> list[int]:
        """The places of the leaves of the memory that count steps."""
        first = lambda: self.rule.init(self.structure.unflatten([jnp.zeros(*each) for each in self.shapes]))
        with jax.numpy_dtype_promotion("standard"):
            return _counters(jax.tree.leaves(jax.eval_shape(first)))

    def _series(self, y: Any, gradients: Any, ahead: Any) -> tuple[Any, Any]:
        y = self.structure.unflatten(y)

        def step(memory, now):
            gradient, jump = now
            memory, update = self.step(self.structure.unflatten(gradient), set_ahead(memory, jump), y)
            return memory, jax.tree.leaves(update)

        memory, updates = lax.scan(step, _with_numbers(self.rule.init(y)), (gradients, ahead))
        no_keys = lambda leaf: 0 if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        return updates, [no_keys(leaf) for leaf in jax.tree.leaves(memory)]

    def step(self, gradient: PyTree, memory: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
        value = lambda z: 0.5 * tree.norm(tree.sub(tree.add(z, gradient), y), squared=True)  # ∇ = γ at y
        if isinstance(self.rule, Transformation):  # rounding of y would lose a small update
            update, memory = optax_update(self.rule.on(y), gradient, memory, y, value)
            return memory, update
        after, memory = self.rule.update(gradient, memory, y, value)
        return memory, tree.sub(after, y)

    @cached_property
    def _program(self) -> Callable[..., Any]:
        """The compiled series of several cases, which also runs while something else is being traced.

        The compiler of a CPU must not replace divisions by multiplications: schedules would end at other steps.
        """
        example = (
            [np.zeros((self.together, *shape), dtype) for shape, dtype in self.shapes],
            [np.zeros((self.together, self.steps, *shape), dtype) for shape, dtype in self.shapes],
            np.zeros((self.together, self.steps, len(self.counters)), np.int32),
        )
        as_written = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
        function = jax.vmap(self._series)
        with jax.numpy_dtype_promotion("standard"):  # optax's Adam needs that
            program = jax.jit(function, compiler_options=as_written).lower(*example).compile()

        def call(*arguments):
            try:
                return jax.device_get(program(*arguments))
            except (
                TypeError
            ):  # it has numbers that are being traced: operation by operation they may drop out
                with jax.ensure_compile_time_eval(), jax.numpy_dtype_promotion("standard"):
                    found = jax.jit(function)(*arguments)
            if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(found)):
                raise ValueError(
                    "the inner rule was made with a number that is being traced, so that it cannot be tried out: pass "
                    "a step size as it is, make the rule with optax.inject_hyperparams, or compare numbers with "
                    "bl.sweep"
                )
            return jax.device_get(found)

        return call


def set_ahead(memory: PyTree, jumps: Any) -> PyTree:
    """Return the memory with its counters set ahead, each by one of the jumps."""
    leaves, structure = jax.tree.flatten(memory)
    for i, jump in zip(_counters(leaves), jumps, strict=True):
        leaves[i] = leaves[i] + jnp.asarray(jump, leaves[i].dtype)
    return structure.unflatten(leaves)


def _counters(leaves: list[Any]) -> list[int]:
    """Return the places of the leaves that count steps: whole numbers."""
    counts = lambda leaf: leaf.ndim == 0 and jnp.issubdtype(leaf.dtype, jnp.integer)
    return [i for i, leaf in enumerate(leaves) if hasattr(leaf, "ndim") and counts(leaf)]


def _with_numbers(memory: PyTree) -> PyTree:
    """Return a rule's first memory with a number in place of each injected one that is traced or zero."""
    injected = lambda part: isinstance(part, optax.InjectStatefulHyperparamsState)

    def number(value):
        known = None if isinstance(value, Tracer) else float(value)
        return jnp.asarray(known if known else 0.1, jnp.result_type(value))

    filled = lambda part: part._replace(hyperparams=jax.tree.map(number, part.hyperparams))
    return jax.tree.map(lambda part: filled(part) if injected(part) else part, memory, is_leaf=injected)


# Arithmetic on lists of NumPy arrays.


def scaled(leaves: Leaves, by: float) -> Leaves:
    return [(by * leaf.astype(np.float64)).astype(leaf.dtype) for leaf in leaves]


def mixed(parity: int, even: Leaves, odd: Leaves) -> Leaves:
    """Return every other entry from one list, the rest from the other."""
    is_first = lambda a: np.arange(a.size).reshape(a.shape) % 2 == parity
    return [np.where(is_first(a), a, b) for a, b in zip(even, odd, strict=True)]


def eps_of(dtypes: Iterable[Any]) -> list[float]:
    return [float(jnp.finfo(dtype).eps) for dtype in dtypes]


def close(left: Leaves, right: Leaves, eps: list[float], times: float = 8.0) -> bool:
    """Return whether both are equal up to the rounding that differs between two compilations of one formula."""
    return all(
        np.all(np.abs(a - b) <= times * e * np.maximum(np.abs(a), np.abs(b)))
        for a, b, e in zip(left, right, eps, strict=True)
    )
