"""Every derivative a solver uses, matrix-free. The only second-order automatic differentiation here.

Second derivatives come from one linearisation of (∇_x g, ∇_y g) in y. Its tangent map sends v to
(∇²_xy g·v, ∇²_yy g·v); each product asks for one half, and the compiler drops the other. Forward over
reverse is the cheapest mode for both: one forward pass is shared by every product taken at a point, and
the cross product never pays for the reverse pass through y.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from bilevel.types import PyTree, Scalar


class Linearised(NamedTuple):
    """The inner objective at one point (x, y)."""

    gradient: PyTree  # ∇_y g
    hessian: Callable[[PyTree], PyTree]  # v ↦ ∇²_yy g · v, shaped like y
    cross: Callable[[PyTree], PyTree]  # v ↦ ∇²_xy g · v, shaped like x
    # () ↦ (v ↦ G·v), the Gauss–Newton curvature, if the objective offers it; linearised when asked for
    gauss_newton: Callable[[], Callable[[PyTree], PyTree]] | None = None


class Joint(NamedTuple):
    """The inner gradient at one point (x, y), linearised in both variables."""

    gradient: PyTree  # ∇_y g
    push: Callable[[PyTree, PyTree], PyTree]  # (ẋ, ẏ) ↦ ∇²_yx g · ẋ + ∇²_yy g · ẏ, shaped like y


class OuterGradients(NamedTuple):
    """The outer objective at one point (x, y)."""

    value: Scalar
    x: PyTree  # ∇_x f
    y: PyTree  # ∇_y f


class InnerGradients(NamedTuple):
    """The inner objective at one point (x, y)."""

    value: Scalar
    x: PyTree  # ∇_x g
    y: PyTree  # ∇_y g


@dataclass(frozen=True, eq=False)
class Oracles:
    """First- and second-order derivatives of f and g, both called as `(x, y, batch)`."""

    f: Callable[..., Scalar]
    g: Callable[..., Scalar]

    def inner_gradient(self, x: PyTree, y: PyTree, batch: Any = None) -> PyTree:
        """∇_y g(x, y)."""
        return jax.grad(self.g, argnums=1)(x, y, batch)

    def outer_gradients(self, x: PyTree, y: PyTree, batch: Any = None) -> OuterGradients:
        """f(x, y), ∇_x f(x, y) and ∇_y f(x, y)."""
        value, (f_x, f_y) = jax.value_and_grad(self.f, argnums=(0, 1))(x, y, batch)
        return OuterGradients(value, f_x, f_y)

    def inner_gradients(self, x: PyTree, y: PyTree, batch: Any = None) -> InnerGradients:
        """g(x, y), ∇_x g(x, y) and ∇_y g(x, y), for methods that never take a second derivative."""
        value, (g_x, g_y) = jax.value_and_grad(self.g, argnums=(0, 1))(x, y, batch)
        return InnerGradients(value, g_x, g_y)

    def linearise(self, x: PyTree, y: PyTree, batch: Any = None) -> Linearised:
        """∇_y g(x, y) with its products: as many as wanted from the one linearisation."""
        return _linearise(self.g, x, y, batch)

    def linearise_outer(self, x: PyTree, y: PyTree, batch: Any = None) -> Linearised:
        """The same of the outer objective: ∇_y f with ∇²_yy f·v and ∇²_xy f·v."""
        return _linearise(self.f, x, y, batch)

    def linearise_jointly(self, x: PyTree, y: PyTree, batch: Any = None) -> Joint:
        """∇_y g(x, y) with its derivative along directions in x and y at once, for forward mode."""
        gradient, tangent = jax.linearize(lambda x, y: jax.grad(self.g, argnums=1)(x, y, batch), x, y)
        return Joint(gradient, tangent)


def _linearise(objective: Callable[..., Scalar], x: PyTree, y: PyTree, batch: Any) -> Linearised:
    gradients = lambda y: jax.grad(objective, argnums=(0, 1))(x, y, batch)
    (_, gradient), tangents = jax.linearize(gradients, y)
    return Linearised(
        gradient=gradient,
        hessian=lambda v: tangents(v)[1],
        cross=lambda v: tangents(v)[0],
        gauss_newton=_gauss_newton(objective, x, y, batch),
    )


def _gauss_newton(objective: Any, x: PyTree, y: PyTree, batch: Any) -> Callable[[], Callable] | None:
    """What the user's function offers under that name, for the arguments that it is called with."""
    offered = getattr(getattr(objective, "function", None), "gauss_newton", None)
    if offered is None:
        return None
    data = None if batch is None else getattr(batch, objective.level)
    arguments = (x, y) if data is None else (x, y, data)
    return lambda: offered(*arguments, **objective._extras(batch))
