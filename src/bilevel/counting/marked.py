"""Problem whose derivatives have names in the traced program.

A mark is a `jax.jit` of the identity around a derivative, named by the kind of the derivative. Each partial gradient
has a separate mark, so that one half of a pair can be dead while the other is alive.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax import lax

from bilevel.oracles import Along, Curvature, Gradients, Joint, Linearized, Oracles, Product
from bilevel.problem import Problem
from bilevel.types import PyTree


class Counts(NamedTuple):
    """Number of partial gradients and products evaluated: integers, or integer arrays of one shape."""

    gradients_f: Any = 0  # ∇_x f and ∇_y f, counted separately
    gradients_g: Any = 0  # ∇_x g and ∇_y g, likewise
    hessian_products: Any = 0  # ∇²_yy g · v, or Gauss–Newton in its place (a few methods: ∇²_yy f · v)
    cross_products: Any = 0  # ∇²_xy g · v and its transpose, likewise

    @property
    def Gc(self) -> Any:
        """Return the paper's gradient complexity; single-loop AID has Gc = 3K after K steps."""
        return self.gradients_f + self.gradients_g

    @property
    def Mv(self) -> Any:
        """Return the paper's matrix-vector complexity; single-loop AID has Mv = 2K after K steps."""
        return self.hessian_products + self.cross_products

    def __add__(self, other: "Counts") -> "Counts":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))

    def __sub__(self, other: "Counts") -> "Counts":
        return Counts(*(a - b for a, b in zip(self, other, strict=True)))


MARK, LEAF = "bilevel_counts_", "bilevel_leaf_"  # prefixes of the names
KINDS = {MARK + kind: Counts(**{kind: 1}) for kind in Counts._fields}


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def mark(kind: str, derivative: PyTree) -> PyTree:
    """Return `derivative`, marked as one evaluation of `kind`."""
    return _named(MARK + kind, lambda tree: jax.tree.map(_leaf, tree))(derivative)


@mark.defjvp
def _(kind: str, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    return mark(kind, *primals), *tangents


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def differentiated(kind: str, point: PyTree) -> PyTree:
    """Return `point`; differentiation with respect to it evaluates a derivative of `kind`."""
    return point


@differentiated.defjvp
def _(kind: str, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    return differentiated(kind, *primals), mark(kind, *tangents)


@dataclass(frozen=True, eq=False)
class CountedOracles(Oracles):
    """Marked oracles of a problem."""

    plain: Oracles

    def inner_gradient(self, x: PyTree, y: PyTree, batch: Any = None) -> PyTree:
        return mark("gradients_g", self.plain.inner_gradient(*_at(x, y), batch))

    def outer_gradients(self, x: PyTree, y: PyTree, batch: Any = None) -> Gradients:
        return _gradients("gradients_f", self.plain.outer_gradients(*_at(x, y), batch))

    def inner_gradients(self, x: PyTree, y: PyTree, batch: Any = None) -> Gradients:
        return _gradients("gradients_g", self.plain.inner_gradients(*_at(x, y), batch))

    def curvature(self, x: PyTree, y: PyTree, batch: Any = None) -> Curvature:
        return _curvature(self.plain.curvature(*_at(x, y), batch))

    def outer_curvature(self, x: PyTree, y: PyTree, batch: Any = None) -> Curvature:
        return _curvature(self.plain.outer_curvature(*_at(x, y), batch))

    def along(self, x: PyTree, y: PyTree, v: PyTree, batch: Any = None) -> Along:
        gradient, *products = self.plain.along(*_at(x, y), v, batch)
        return Along(mark("gradients_g", gradient), *_both_marked(products))

    def linearize(self, x: PyTree, y: PyTree, batch: Any = None) -> Linearized:
        return _linearized("gradients_g", self.plain.linearize(*_at(x, y), batch))

    def linearize_outer(self, x: PyTree, y: PyTree, batch: Any = None) -> Linearized:
        return _linearized("gradients_f", self.plain.linearize_outer(*_at(x, y), batch))

    def linearize_jointly(self, x: PyTree, y: PyTree, batch: Any = None) -> Joint:
        gradient, plain_push = self.plain.linearize_jointly(*_at(x, y), batch)
        # A push is one product of each kind.
        both = lambda product: mark("cross_products", mark("hessian_products", product))
        return Joint(mark("gradients_g", gradient), lambda dx, dy: both(plain_push(*_at(dx, dy))))


def _at(x: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
    """Return a point for ∇_y g, so that differentiation of ∇_y g counts as products."""
    return differentiated("cross_products", x), differentiated("hessian_products", y)


def _gradients(kind: str, plain: Gradients) -> Gradients:
    return Gradients(plain.value, mark(kind, plain.x), mark(kind, plain.y))


def _curvature(plain: Curvature) -> Curvature:
    def marked(kind: str, product: Product) -> Product:
        return lambda v: mark(kind, product(differentiated(kind, v)))

    deferred = lambda offered: None if offered is None else lambda: marked("hessian_products", offered())
    products = marked("hessian_products", plain.hessian), marked("cross_products", plain.cross)
    return Curvature(*products, deferred(plain.gauss_newton), deferred(plain.linearized))


def _linearized(gradient: str, plain: Linearized) -> Linearized:
    half = lambda i, kind, v: plain.both(differentiated(kind, v))[i]
    both = lambda v: _both_marked((half(0, "hessian_products", v), half(1, "cross_products", v)))
    return Linearized(mark(gradient, plain.gradient), both)


def _both_marked(products: Sequence[PyTree]) -> tuple[PyTree, PyTree]:
    hessian, cross = products
    return mark("hessian_products", hessian), mark("cross_products", cross)


@dataclass(frozen=True, eq=False, kw_only=True)
class _CountedProblem(Problem):
    plain: Problem

    @property
    def oracles(self) -> Oracles:
        plain = self.plain.oracles
        return CountedOracles(plain.f, plain.g, plain)


def counted(problem: Problem) -> Problem:
    """Return the problem with marks on all derivatives, also on derivatives of its objectives in a line search."""
    inner, outer = _marked("gradients_g", problem.inner), _marked("gradients_f", problem.outer)
    return _CountedProblem(inner=inner, outer=outer, prox=problem.prox, plain=problem)


def _marked(kind: str, objective: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(objective)  # `Problem` reads the signature
    def function(x: PyTree, y: PyTree, *batch: Any, **extras: Any) -> Any:
        return objective(differentiated(kind, x), differentiated(kind, y), *batch, **extras)

    return function


def _leaf(leaf: jax.Array) -> jax.Array:
    """Return the array under a name with its size before any `vmap`; jax may drop a call with an empty body."""
    return _named(f"{LEAF}{leaf.size}", lambda a: lax.neg(lax.neg(a)))(leaf)


def _named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    function.__name__ = name
    return jax.jit(function)
