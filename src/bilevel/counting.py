"""How often a solver really asks for each derivative: counted while the compiled program runs.

    problem, counts = counted(problem)
    bl.run(bl.aid(problem, ...), x0, y0, steps=100)
    counts.total            # Counts(gradients_f=200, gradients_g=100, hessian_products=100, cross_products=100)

Oracles carry callbacks into the compiled program, so a product inside a loop counts once per turn of the
loop, and a turn not taken does not count. A partial gradient counts when the solver first looks at it: a
half of `outer_gradients`, or a linearisation's gradient, that nobody looks at is dropped by the compiler.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import jax

from bilevel.oracles import InnerGradients, Joint, Linearised, Oracles, OuterGradients
from bilevel.problem import Problem

PyTree = Any


class Counts(NamedTuple):
    """How many partial gradients and products were evaluated."""

    gradients_f: int = 0  # ∇_x f and ∇_y f, each on its own
    gradients_g: int = 0  # ∇_x g and ∇_y g, likewise
    hessian_products: int = 0  # ∇²_yy g · v (and ∇²_yy f · v, for the few methods that take it)
    cross_products: int = 0  # ∇²_xy g · v and its transpose, likewise

    @property
    def Gc(self) -> int:
        """The paper's gradient complexity; single-loop AID has Gc = 3K after K steps."""
        return self.gradients_f + self.gradients_g

    @property
    def Mv(self) -> int:
        """The paper's matrix-vector complexity; single-loop AID has Mv = 2K after K steps."""
        return self.hessian_products + self.cross_products

    def __add__(self, other: "Counts") -> "Counts":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))

    def __sub__(self, other: "Counts") -> "Counts":
        return Counts(*(a - b for a, b in zip(self, other, strict=True)))


class Counter:
    """The running totals of one counted problem."""

    def __init__(self):
        self._lock = threading.Lock()  # callbacks come on the runtime's threads
        self._total = Counts()

    def reset(self) -> None:
        """Starts again from zero, once everything already dispatched has been counted."""
        jax.effects_barrier()
        with self._lock:
            self._total = Counts()

    @property
    def total(self) -> Counts:
        """What has been evaluated since the last reset by the programs whose results have arrived."""
        jax.effects_barrier()
        with self._lock:
            return self._total

    def tick(self, at: PyTree, **evaluated: int) -> None:
        """Puts "count these" into the program being traced; `at` is what they are evaluated at."""
        more = Counts(**evaluated)

        def add(_) -> None:
            with self._lock:
                self._total = self._total + more

        # An operand that depends on `at` makes the callback one per element where vmap batches the call.
        jax.debug.callback(add, jax.tree.leaves(at)[0].ravel()[:1])


class CountedLinearised(Linearised):
    """A linearisation whose products count when called, and whose gradient counts when first looked at."""

    look: Callable[[], None]

    @cached_property
    def gradient(self) -> PyTree:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.look()
        return self[0]


class _CountedPair:
    """A pair of partial gradients, each of which counts when it is first looked at."""

    look: Callable[[], None]

    @cached_property
    def x(self) -> PyTree:
        self.look()
        return self[1]  # pyright: ignore[reportIndexIssue]

    @cached_property
    def y(self) -> PyTree:
        self.look()
        return self[2]  # pyright: ignore[reportIndexIssue]

    def __iter__(self):
        return iter((self.value, self.x, self.y))  # pyright: ignore[reportAttributeAccessIssue]

    def tree_flatten(self):
        return tuple(iter(self)), ()


@jax.tree_util.register_pytree_node_class
class CountedOuterGradients(_CountedPair, OuterGradients):
    @classmethod
    def tree_unflatten(cls, _, children):
        return OuterGradients(*children)  # all of it has been counted


@jax.tree_util.register_pytree_node_class
class CountedInnerGradients(_CountedPair, InnerGradients):
    @classmethod
    def tree_unflatten(cls, _, children):
        return InnerGradients(*children)


class CountedJoint(Joint):
    """A linearisation in both variables, whose gradient counts when first looked at."""

    look: Callable[[], None]

    @cached_property
    def gradient(self) -> PyTree:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.look()
        return self[0]


@dataclass(frozen=True, eq=False)
class CountedOracles(Oracles):
    """The oracles of a problem, counting."""

    plain: Oracles
    counter: Counter

    def inner_gradient(self, x: PyTree, y: PyTree, batch: Any = None) -> PyTree:
        self.counter.tick(y, gradients_g=1)
        return self.plain.inner_gradient(x, y, batch)

    def outer_gradients(self, x: PyTree, y: PyTree, batch: Any = None) -> OuterGradients:
        pair = CountedOuterGradients._make(self.plain.outer_gradients(x, y, batch))
        return self._when_looked_at(pair, y, gradients_f=1)

    def inner_gradients(self, x: PyTree, y: PyTree, batch: Any = None) -> InnerGradients:
        pair = CountedInnerGradients._make(self.plain.inner_gradients(x, y, batch))
        return self._when_looked_at(pair, y, gradients_g=1)

    def linearise(self, x: PyTree, y: PyTree, batch: Any = None) -> Linearised:
        counted = self._count_products(self.plain.linearise(x, y, batch))
        return self._when_looked_at(counted, y, gradients_g=1)

    def linearise_outer(self, x: PyTree, y: PyTree, batch: Any = None) -> Linearised:
        counted = self._count_products(self.plain.linearise_outer(x, y, batch))
        return self._when_looked_at(counted, y, gradients_f=1)

    def linearise_jointly(self, x: PyTree, y: PyTree, batch: Any = None) -> Joint:
        plain = self.plain.linearise_jointly(x, y, batch)
        push = self._before(plain.push, hessian_products=1, cross_products=1)  # a push is one of each
        return self._when_looked_at(CountedJoint(plain.gradient, push), y, gradients_g=1)

    def _count_products(self, plain: Linearised) -> CountedLinearised:
        hessian = self._before(plain.hessian, hessian_products=1)
        return CountedLinearised(plain.gradient, hessian, self._before(plain.cross, cross_products=1))

    def _before(self, product: Callable, **evaluated: int) -> Callable:
        def counting(*directions: PyTree) -> PyTree:
            self.counter.tick(directions, **evaluated)
            return product(*directions)

        return counting

    def _when_looked_at(self, derivatives: Any, at: PyTree, **evaluated: int) -> Any:
        derivatives.look = lambda: self.counter.tick(at, **evaluated)
        return derivatives


@dataclass(frozen=True, eq=False)
class _CountedProblem(Problem):
    plain: Problem
    counter: Counter = field(default_factory=Counter)

    @cached_property
    def oracles(self) -> Oracles:
        plain = self.plain.oracles
        return CountedOracles(plain.f, plain.g, plain, self.counter)


def counted(problem: Problem) -> tuple[Problem, Counter]:
    """The same problem with oracles that count, and the counter.

    Counting is for one device and costs about 10 µs a call: time a solver on the plain problem. What vmap
    batches counts as often as it is wide. Values of f and g are not counted.
    """
    wrapped = _CountedProblem(problem.outer, problem.inner, problem)
    return wrapped, wrapped.counter
