"""Derivatives for solvers, matrix-free. Second derivatives are taken only here.

A product with a second derivative is a tangent of a gradient, forward over reverse. ∇²_yy g·v is a tangent of
∇_y g, and ∇²_xy g·v of ∇_x g. One pass gives both if a method needs both along one v. No residuals are kept
after the pass, and a user's custom backward pass is used. A linearization stores the forward and backward
pass of every layer of a model. It is only for several products at one point.
"""

import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import jax

from bilevel.types import PyTree, Scalar

Product = Callable[[PyTree], PyTree]


class Curvature(NamedTuple):
    """Second derivatives of the inner objective at one point (x, y)."""

    hessian: Product  # v ↦ ∇²_yy g · v, shaped like y
    cross: Product  # v ↦ ∇²_xy g · v, shaped like x
    # () ↦ (v ↦ G·v), the Gauss–Newton curvature, if the objective offers it
    gauss_newton: Callable[[], Product] | None = None
    linearized: Callable[[], Product] | None = None  # () ↦ the Hessian's product, from one linearization

    def shared(self) -> "Curvature":
        """Return the same for several Hessian products: they share one pass through the model."""
        return self if self.linearized is None else self._replace(hessian=self.linearized(), linearized=None)

    def knowing(self, v: PyTree, along: "Along") -> "Curvature":
        """Return the same with the known products along this v, which are not computed again."""
        same = lambda u: all(map(operator.is_, jax.tree.leaves(u), jax.tree.leaves(v)))
        return self._replace(
            hessian=lambda u: along.hessian if same(u) else self.hessian(u),
            cross=lambda u: along.cross if same(u) else self.cross(u),
        )


class Along(NamedTuple):
    """Inner objective at one point (x, y), and along one direction v there."""

    gradient: PyTree  # ∇_y g
    hessian: PyTree  # ∇²_yy g · v
    cross: PyTree  # ∇²_xy g · v


class Linearized(NamedTuple):
    """Inner objective at one point (x, y), with any number of products."""

    gradient: PyTree  # ∇_y g
    both: Callable[[PyTree], tuple[PyTree, PyTree]]  # v ↦ (∇²_yy g · v, ∇²_xy g · v)

    def hessian(self, v: PyTree) -> PyTree:
        return self.both(v)[0]

    def cross(self, v: PyTree) -> PyTree:
        return self.both(v)[1]


class Joint(NamedTuple):
    """Inner gradient at one point (x, y), linearized in both variables."""

    gradient: PyTree  # ∇_y g
    push: Callable[[PyTree, PyTree], PyTree]  # (ẋ, ẏ) ↦ ∇²_yx g · ẋ + ∇²_yy g · ẏ, shaped like y


class Gradients(NamedTuple):
    """Objective at one point (x, y), with its partial gradients."""

    value: Scalar
    x: PyTree  # ∇_x f or ∇_x g
    y: PyTree  # ∇_y f or ∇_y g


OuterGradients = InnerGradients = Gradients  # the names in earlier versions, for custom oracles


@dataclass(frozen=True, eq=False)
class Oracles:
    """First- and second-order derivatives of f and g, both called as `(x, y, batch)`."""

    f: Callable[..., Scalar]
    g: Callable[..., Scalar]

    def inner_gradient(self, x: PyTree, y: PyTree, batch: Any = None) -> PyTree:
        """Return ∇_y g(x, y)."""
        return jax.grad(self.g, argnums=1)(x, y, batch)

    def outer_gradients(self, x: PyTree, y: PyTree, batch: Any = None) -> Gradients:
        """Return f(x, y), ∇_x f(x, y) and ∇_y f(x, y)."""
        value, both = jax.value_and_grad(self.f, argnums=(0, 1))(x, y, batch)
        return Gradients(value, *both)

    def inner_gradients(self, x: PyTree, y: PyTree, batch: Any = None) -> Gradients:
        """Return g(x, y), ∇_x g(x, y) and ∇_y g(x, y), for methods without second derivatives."""
        value, both = jax.value_and_grad(self.g, argnums=(0, 1))(x, y, batch)
        return Gradients(value, *both)

    def curvature(self, x: PyTree, y: PyTree, batch: Any = None) -> Curvature:
        """Return the products with second derivatives of g at (x, y), each in a separate pass."""
        return _curvature(self.g, x, y, batch)

    def outer_curvature(self, x: PyTree, y: PyTree, batch: Any = None) -> Curvature:
        """Return the products with second derivatives of f at (x, y), each in a separate pass."""
        return _curvature(self.f, x, y, batch)

    def along(self, x: PyTree, y: PyTree, v: PyTree, batch: Any = None) -> Along:
        """Return ∇_y g(x, y), ∇²_yy g·v and ∇²_xy g·v from one pass."""
        (_, gradient), (cross, hessian) = jax.jvp(partial(_gradient, self.g, (0, 1), x, batch), (y,), (v,))
        return Along(gradient, hessian, cross)

    def linearize(self, x: PyTree, y: PyTree, batch: Any = None) -> Linearized:
        """Return ∇_y g(x, y) and a function for any number of products, from one linearization."""
        return _linearize(self.g, x, y, batch)

    def linearise(self, x: PyTree, y: PyTree, batch: Any = None) -> Linearized:
        """Call `linearize`. This spelling is deprecated."""
        warnings.warn("oracles.linearise is now oracles.linearize", DeprecationWarning, stacklevel=2)
        return self.linearize(x, y, batch)

    def linearize_outer(self, x: PyTree, y: PyTree, batch: Any = None) -> Linearized:
        """Return ∇_y f with ∇²_yy f·v and ∇²_xy f·v."""
        return _linearize(self.f, x, y, batch)

    def linearize_jointly(self, x: PyTree, y: PyTree, batch: Any = None) -> Joint:
        """Return ∇_y g(x, y) with its derivative along directions in both x and y, for forward mode."""
        gradient, tangent = jax.linearize(lambda x, y: jax.grad(self.g, argnums=1)(x, y, batch), x, y)
        return Joint(gradient, tangent)


def _gradient(objective: Callable[..., Scalar], argnums: Any, x: PyTree, batch: Any, y: PyTree) -> PyTree:
    """Return a gradient, as a function of y."""
    return jax.grad(objective, argnums)(x, y, batch)


def _curvature(objective: Callable[..., Scalar], x: PyTree, y: PyTree, batch: Any) -> Curvature:
    by_x, by_y, both = (partial(_gradient, objective, i, x, batch) for i in (0, 1, (0, 1)))
    tangent = lambda gradient, v: jax.jvp(gradient, (y,), (v,))[1]
    has_own_backward = cache(lambda: _has_own_backward(objective, x, y, batch))

    def cross(v: PyTree) -> PyTree:
        # JAX uses the user's backward pass only if y is differentiated too. That half is dropped.
        return tangent(both, v)[0] if has_own_backward() else tangent(by_x, v)

    return Curvature(
        hessian=partial(tangent, by_y),
        cross=cross,
        gauss_newton=_gauss_newton(objective, x, y, batch),
        linearized=lambda: jax.linearize(by_y, y)[1],
    )


def _linearize(objective: Callable[..., Scalar], x: PyTree, y: PyTree, batch: Any) -> Linearized:
    (_, gradient), tangents = jax.linearize(partial(_gradient, objective, (0, 1), x, batch), y)
    return Linearized(gradient, lambda v: tangents(v)[::-1])


def _has_own_backward(objective: Callable[..., Scalar], x: PyTree, y: PyTree, batch: Any) -> bool:
    """Return whether the objective calls, at any depth, a function with its own backward pass (`jax.custom_vjp`)."""
    try:
        used = operations(jax.make_jaxpr(lambda x, y: objective(x, y, batch))(x, y))
        return any(name.startswith("custom_vjp") for name in used)
    except jax.errors.ConcretizationTypeError:  # the objective uses concrete values, as it may outside `jit`
        return True


def operations(program: Any) -> set[str]:
    """Return the names of JAX's primitives in a jaxpr, at any depth."""
    names = set()
    for eqn in getattr(getattr(program, "jaxpr", program), "eqns", ()):
        names.add(eqn.primitive.name)
        names |= set().union(*map(operations, jax.tree.leaves(eqn.params)))
    return names


def _gauss_newton(objective: Any, x: PyTree, y: PyTree, batch: Any) -> Callable[[], Product] | None:
    """Return the `gauss_newton` of the user's function, for the arguments of the function; None without one."""
    offered = getattr(getattr(objective, "function", None), "gauss_newton", None)
    if offered is None:
        return None
    data = None if batch is None else getattr(batch, objective.level)
    arguments = (x, y) if data is None else (x, y, data)
    return lambda: offered(*arguments, **objective._extras(batch))
