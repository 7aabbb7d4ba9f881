"""Update rules of a level: a step size for gradient descent, an optax transformation, or a projected rule."""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from optax import tree

from bilevel.checks import as_number, check_map, check_positive, signature
from bilevel.identity import Static
from bilevel.solvers.parts.trees import scaled
from bilevel.types import PyTree, Scalar, StepSize
from bilevel.words import described

RESOLVED = 64  # times the precision of x: rounding does not lose such a step
ValueFunction = Callable[[PyTree], Scalar]


class FixedPoint(NamedTuple):
    """Fixed point of an inner rule: ∇_y g + decay · y = 0 on the active entries; the others never move."""

    active: PyTree  # where the gradient has any influence; one bool may cover a leaf or all of y
    decay: PyTree | None  # None if the rule has to be differentiated at the current point
    plain: bool  # ∇_y g = 0, and all entries are active
    held: Any = None  # how to hold the preconditioner fixed (`fixed_points.preconditioner.Held`)


GRADIENT_ZERO = FixedPoint(active=True, decay=0.0, plain=True)


class Rule(eqx.Module):
    """`init(point) -> memory` and `update(gradient, memory, point, value) -> (point, memory)`.

    `gradient` is the gradient of the function `value` at `point`. Only rules that ask for `value` evaluate
    it.
    """

    constrained: ClassVar[bool] = False
    if not TYPE_CHECKING:
        __getattribute__ = object.__getattribute__  # as in `Solver`

    @abstractmethod
    def init(self, point: PyTree) -> PyTree: ...

    @abstractmethod
    def update(
        self, gradient: PyTree, memory: PyTree, point: PyTree, value: ValueFunction | None = None
    ) -> tuple[PyTree, PyTree]: ...

    def fixed_point(self, point: PyTree) -> FixedPoint | None:
        """Return the fixed point of the rule on a tree like `point`; None if it has to be tried."""
        return None

    def gradient_mapping(self, point: PyTree, gradient: PyTree) -> PyTree:
        """Return a tree that is zero exactly at fixed points: the gradient, unless the rule is constrained."""
        return gradient

    def stationarity(self, point: PyTree, gradient: PyTree) -> Scalar:
        """Return the norm of the gradient mapping."""
        return tree.norm(self.gradient_mapping(point, gradient))


class Around(Rule):
    """Rule that takes the steps of another rule; subclasses change them."""

    rule: Rule

    def init(self, point: PyTree) -> PyTree:
        return self.rule.init(point)

    def update(
        self, gradient: PyTree, memory: PyTree, point: PyTree, value: ValueFunction | None = None
    ) -> tuple[PyTree, PyTree]:
        return self.rule.update(gradient, memory, point, value)


class Descent(Rule):
    """point ← point − step_size · gradient."""

    step_size: Any

    def init(self, point: PyTree) -> tuple[Any, ...]:
        return ()

    def update(
        self, gradient: PyTree, memory: PyTree, point: PyTree, value: ValueFunction | None = None
    ) -> tuple[PyTree, PyTree]:
        return tree.sub(point, scaled(self.step_size, gradient)), memory

    def fixed_point(self, point: PyTree) -> FixedPoint | None:
        return GRADIENT_ZERO


class Settled(Around):
    """Rule that ends every step with a map onto the set of allowed values."""

    constrained: ClassVar[bool] = True

    @abstractmethod
    def settle(self, point: PyTree) -> PyTree: ...

    @property
    def step_size(self) -> Any:
        """Return the step size of plain descent; 1 for another rule."""
        return self.rule.step_size if isinstance(self.rule, Descent) else 1.0

    def update(
        self, gradient: PyTree, memory: PyTree, point: PyTree, value: ValueFunction | None = None
    ) -> tuple[PyTree, PyTree]:
        point, memory = super().update(gradient, memory, point, value)
        return self.settle(point), memory

    def gradient_mapping(self, point: PyTree, gradient: PyTree) -> PyTree:
        """Return (x − P(x − s·h))/s, which is zero exactly at constrained stationary points.

        s is the step size, or 1 without one. If rounding loses all of s·h, s is larger: the quotient would be
        0 or 0/0 at every x.
        """
        s = _not_lost(self.step_size, point, gradient)
        ahead = self.settle(tree.sub(point, scaled(s, gradient)))
        return jax.tree.map(lambda a: a / jnp.asarray(s, a.dtype), tree.sub(point, ahead))


def check_projection(project: Any, point: PyTree) -> None:
    """Raise if `project` does not map a tree like `point` to a tree like it."""
    try:
        out = jax.eval_shape(project, point)
    except Exception as error:
        raise TypeError(
            f"project cannot be called with {described(point)}, or returns no arrays: pass a function from that tree "
            f"to itself ({error})"
        ) from error
    if signature(out) != signature(point):
        raise TypeError(
            f"project returned {described(out)}, not a tree like its argument, {described(point)}: return the same "
            "tree, shapes and dtypes"
        )


class Projected(Settled):
    """Rule that projects onto a closed convex set."""

    project: Static = eqx.field(static=True)

    def init(self, point: PyTree) -> PyTree:
        check_projection(self.project.value, point)
        return super().init(point)

    def settle(self, point: PyTree) -> PyTree:
        return self.project.value(point)


class Proximal(Settled):
    """Rule with the proximal map of the inner problem's non-smooth term h(x, ·), at one x."""

    x: PyTree
    prox: Static = eqx.field(static=True)

    def settle(self, point: PyTree) -> PyTree:
        return self.prox.value(self.x, point, self.step_size)


def _not_lost(s: Any, point: PyTree, gradient: PyTree) -> Any:
    """Return the step size; if s·gradient changes no entry of the point, one that changes the largest entry."""
    pairs = list(zip(jax.tree.leaves(point), jax.tree.leaves(scaled(s, gradient)), strict=True))
    lost = jnp.all(jnp.stack([jnp.all(a - b == a) for a, b in pairs]))
    of_leaf = lambda a: jnp.max(jnp.abs(a), initial=0).astype(float)
    largest = lambda tree: jnp.max(jnp.stack([of_leaf(a) for a in jax.tree.leaves(tree)]))
    size, slope = largest(point), largest(gradient)
    fine = max(float(jnp.finfo(a.dtype).eps) for a, _ in pairs)
    visible = RESOLVED * fine * jnp.where(size > 0, size, 1) / jnp.where(slope > 0, slope, 1)
    return jnp.where(lost, jnp.where(slope > 0, visible, 1), jnp.asarray(s, float))


def projected(rule: StepSize | Rule, project: Callable[[PyTree], PyTree]) -> Projected:
    """Return a rule for x or y that stays in a closed convex set: a step of `rule`, then `project`.

        bl.aid(problem, inner=0.1, adjoint=0.1, outer=bl.projected(0.01,
        optax.projections.projection_simplex))

    Args:
        rule: a step size, or any optax transformation.
        project: the projection, from x's tree to itself, such as the functions of `optax.projections`.

    With a rule that scales coordinates differently (Adam), x converges to a stationary point for a box, but
    in general not for a simplex or a ball. Use a step size or plain SGD there.

    The tolerance of a run and the trace's "stationarity" then measure ‖x − P(x − s·h)‖/s instead of ‖h‖. s is
    the step size, 1 for an optax rule, and larger if rounding would lose s·h.
    """
    return Projected(as_rule(rule, "projected"), Static(check_map(project)))


def as_rule(value: Any, level: str) -> Rule:
    """Return the rule for a step size or an optax transformation; raise an error with the level otherwise."""
    if isinstance(value, Rule):
        return value
    if isinstance(value, optax.GradientTransformation):
        from bilevel.solvers.optax_rules import as_transformation  # it imports this module

        return as_transformation(value)
    if isinstance(value, optax.MultiSteps):
        raise TypeError(
            f"the {level} rule is an optax.MultiSteps, which is not a transformation itself: pass its "
            ".gradient_transformation()"
        )
    remedy = "or an optax transformation such as optax.adam(1e-3)"
    if callable(value) and not isinstance(value, type):
        remedy = (
            "or, for a function of the step's number, optax.sgd(function). A step size that is part of x is a factor "
            "of g instead: inner=lambda x, y: jnp.exp(x) * g(y), with the step size 1.0"
        )
    elif as_number(value) == 0:
        remedy += f"; to keep the {level} variables fixed, pass optax.set_to_zero()"
    check_positive(value, f"{level} step size", remedy)
    return Descent(value)


def descend(
    rule: Rule, gradient: PyTree, memory: PyTree, point: PyTree, value: ValueFunction | None = None
) -> tuple[PyTree, PyTree]:
    """Return the new point and the rule's new memory after one step from `point` along `gradient`."""
    return rule.update(gradient, memory, point, value)
