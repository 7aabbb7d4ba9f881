"""Trials of a rule on synthetic gradients with y held fixed, by one compiled program.

y, gradients and updates are float64 vectors of all entries of y, the last axis of an array. They are rounded
to the dtypes of the leaves when the program is called.

If a rule treats all entries of an array alike, a few entries show everything. To find out, the update is traced on the
true shapes and on smaller ones, but not run. Both programs must consist of operations entry by entry, sums over whole
arrays and numbers, and differ only in shapes. Other rules give another program and are tried on the true shapes:
factors by rows (Adafactor), matrix products (Muon), masks by position, decisions by size.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.core import Tracer
from jax.extend import core
from optax import tree

from bilevel.solvers.optax_rules import Transformation, optax_update
from bilevel.solvers.rules import Rule
from bilevel.types import PyTree

STEPS, CASES = 48, 32  # per call
FEWER, MANY = 4, 100_000  # steps of one case at a time, if y has more entries than MANY
SIZE = 0.05  # ‖γ‖ and ‖y‖ of the trial, below the usual limits of clipping by norm
EDGE = 3  # the length of each side of a smaller array, at most
# fmt: off
ENTRYWISE = frozenset(["abs", "add", "add_any", "and", "atan2", "cbrt", "ceil", "clamp", "convert_element_type",
    "copy", "cos", "cosh", "div", "eq", "erf", "erf_inv", "exp", "exp2", "expm1", "floor", "ge", "gt",
    "integer_pow", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg",
    "nextafter", "not", "or", "pow", "reduce_precision", "rem", "round", "rsqrt", "select_n", "sign", "sin",
    "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor"])
WHOLE = frozenset(["reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"])
CALLS = frozenset(["jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "cond",
    "while", "remat", "checkpoint"])
# fmt: on
LENGTHS = re.compile(r"(?<=\w\[)[\d,]+(?=\])|(?<=shape=\()[\d, ]+|(?<=0x)[0-9a-f]+|\s")  # and addresses

Shapes = tuple[tuple[tuple[int, ...], Any], ...]


class Case(NamedTuple):
    """y, a gradient for every step, and the increase of the rule's counters before every step."""

    y: np.ndarray  # [entries]
    gradients: np.ndarray  # [steps, entries]
    ahead: np.ndarray  # [steps], or [steps, counters] for different counters


class Outcome(NamedTuple):
    updates: np.ndarray  # the change of y in each step, [steps, entries]
    memory: list[Any]  # after the last step


class Trial:
    rule: Rule
    structure: Any
    shapes: Shapes
    cuts: np.ndarray
    size: int
    eps: np.ndarray
    steps: int
    together: int

    def __init__(self, rule: Rule, structure: Any, shapes: Shapes):
        self.rule, self.structure, self.shapes = rule, structure, shapes
        sizes = [int(np.prod(shape)) for shape, _ in shapes]
        self.cuts, self.size = np.cumsum(sizes)[:-1], sum(sizes)
        self.eps = np.repeat([float(jnp.finfo(dtype).eps) for _, dtype in shapes], sizes)
        self.steps, self.together = (FEWER, 1) if self.size > MANY else (STEPS, CASES)

    def of_one_step(self) -> "Trial":
        """Return the trial of a single step if y has many entries, to save time; else the same trial."""
        if self.size <= MANY:
            return self
        other = Trial(self.rule, self.structure, self.shapes)
        other.steps = 1
        return other

    def draw(self, seed: int) -> np.ndarray:
        """Return random numbers of norm `SIZE`, with none near zero."""
        drawn = np.random.default_rng(seed).uniform(-0.5, 0.5, self.size)
        drawn = drawn + np.where(drawn < 0, -0.5, 0.5)
        norm = np.sqrt(sum(np.sum(leaf * leaf) for leaf in self.leaves(drawn)))
        return self.rounded(SIZE / norm * drawn)

    def rounded(self, values: np.ndarray) -> np.ndarray:
        parts = zip(np.split(values, self.cuts, axis=-1), self.shapes, strict=True)
        return np.concatenate([part.astype(dtype).astype(np.float64) for part, (_, dtype) in parts], axis=-1)

    def leaves(self, values: np.ndarray) -> list[np.ndarray]:
        """Return the parts of a vector, shaped like the leaves of y."""
        parts = zip(np.split(values, self.cuts, axis=-1), self.shapes, strict=True)
        return [part.reshape((*values.shape[:-1], *shape)) for part, (shape, _) in parts]

    def largest(self, values: np.ndarray) -> np.ndarray:
        """Return the largest entry of every leaf, at least zero, as a last axis [leaves]."""
        parts = np.split(values, self.cuts, axis=-1)
        return np.stack([part.max(axis=-1, initial=0) for part in parts], axis=-1)

    def spread(self, of_leaves: Any) -> np.ndarray:
        """Return a vector with the value of its leaf in every entry."""
        return np.repeat(of_leaves, [int(np.prod(shape)) for shape, _ in self.shapes])

    def repeat(self, values: np.ndarray, weights: Any = 1.0) -> np.ndarray:
        """Return the same gradient for every step, times one weight per step."""
        return self.rounded(np.broadcast_to(weights, self.steps)[:, None] * values)

    def start_at(self, time: int) -> np.ndarray:
        return np.array([time] + [0] * (self.steps - 1))

    def is_close(self, left: np.ndarray, right: np.ndarray, times: float = 8.0) -> bool:
        """Return whether both are equal up to the rounding that differs between two compilations of one formula."""
        slack = times * self.eps * np.maximum(np.abs(left), np.abs(right))
        return bool(np.all(np.abs(left - right) <= slack))

    def mixed(self, parity: int, even: np.ndarray, odd: np.ndarray) -> np.ndarray:
        """Return every other entry of each leaf from one vector, the remaining ones from the other."""
        place = np.concatenate([np.arange(int(np.prod(shape))) for shape, _ in self.shapes])
        return np.where(place % 2 == parity, even, odd)

    def run(self, cases: Sequence[Case]) -> list[Outcome]:
        found = []
        for first in range(0, len(cases), self.together):
            some = list(cases[first : first + self.together])
            found += self._call(some + some[:1] * (self.together - len(some)))[: len(some)]
        return found

    def _call(self, cases: list[Case]) -> list[Outcome]:
        counters = len(self.counters)
        wide = lambda ahead: np.broadcast_to(ahead.reshape(self.steps, -1), (self.steps, counters))
        leaves = lambda vectors: self.arrays(np.stack(vectors))
        updates, memory = self._program(
            leaves([case.y for case in cases]),
            leaves([case.gradients for case in cases]),
            np.stack([wide(case.ahead) for case in cases]).astype(np.int32),
        )
        flat = [np.asarray(leaf, np.float64).reshape(len(cases), self.steps, -1) for leaf in updates]
        kept = [[np.asarray(leaf[i], np.float64) for leaf in memory] for i in range(len(cases))]
        return [Outcome(*each) for each in zip(np.concatenate(flat, axis=-1), kept, strict=True)]

    def arrays(self, values: np.ndarray) -> list[np.ndarray]:
        pairs = zip(self.leaves(values), self.shapes, strict=True)
        return [leaf.astype(dtype) for leaf, (_, dtype) in pairs]

    @cached_property
    def counters(self) -> list[int]:
        """Return the places of the leaves of the memory that count steps."""
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
        """Return the compiled series of several cases. It also runs while something else is being traced.

        The compiler of a CPU must not replace divisions by multiplications: schedules would end at other
        steps.
        """
        example = (
            self.arrays(np.zeros((self.together, self.size))),
            self.arrays(np.zeros((self.together, self.steps, self.size))),
            np.zeros((self.together, self.steps, len(self.counters)), np.int32),
        )
        as_written = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
        function = jax.vmap(self._series)
        with jax.numpy_dtype_promotion("standard"):  # optax's Adam needs that
            program = jax.jit(function, compiler_options=as_written).lower(*example).compile()

        def call(*arguments):
            try:
                return jax.device_get(program(*arguments))
            except TypeError:  # traced numbers in the rule: operation by operation they may drop out
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
    """Return the memory with each counter increased by its jump."""
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


def smaller_shapes(rule: Any, structure: Any, shapes: Shapes) -> Shapes:
    """Return smaller shapes to try the rule on, or `shapes` if the rule depends on them."""
    smaller = tuple((tuple(min(n, EDGE) for n in shape), dtype) for shape, dtype in shapes)
    if smaller == shapes:
        return shapes
    true = _traced(rule, structure, shapes)
    if any(jnp.ndim(each) for each in true.consts) or not all(map(_is_alike, true.jaxpr.eqns)):
        return shapes
    try:
        other = _traced(rule, structure, smaller)
    except Exception:  # a user's rule that needs the exact shapes
        return shapes
    return smaller if _without_lengths(true) == _without_lengths(other) else shapes


def _traced(rule: Any, structure: Any, shapes: Shapes) -> Any:
    trial = Trial(rule, structure, shapes)

    def once(y, gradient):
        y, gradient = structure.unflatten(y), structure.unflatten(gradient)
        return trial.step(gradient, rule.init(y), y)

    arrays = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
    with jax.numpy_dtype_promotion("standard"):
        return jax.make_jaxpr(once)(arrays, arrays)


def _without_lengths(program: Any) -> str:
    """Return the text of a program without the lengths of its arrays; their ranks remain."""
    return LENGTHS.sub(lambda found: "," * found.group().count(","), str(program))


def _is_alike(equation: Any) -> bool:
    """Return whether an equation treats all entries of an array alike."""
    name, inner = equation.primitive.name, list(_programs(equation))
    if inner:
        alike = all(all(map(_is_alike, each.jaxpr.eqns)) for each in inner)
        return name in CALLS and alike and not any(jnp.ndim(c) for each in inner for c in each.consts)
    ranks = {v.aval.ndim for v in (*equation.invars, *equation.outvars)}
    if ranks <= {0} or name in ENTRYWISE:
        return True
    if name in WHOLE:
        return len(equation.params["axes"]) == equation.invars[0].aval.ndim
    return name == "broadcast_in_dim" and equation.invars[0].aval.ndim == 0


def _programs(equation: Any) -> Iterator[Any]:
    for value in equation.params.values():
        for each in value if isinstance(value, tuple | list) else [value]:
            if isinstance(each, core.ClosedJaxpr):
                yield each
            elif isinstance(each, core.Jaxpr):
                yield core.ClosedJaxpr(each, [])
