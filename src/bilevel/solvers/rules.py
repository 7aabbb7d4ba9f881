"""A level's update rule: a number is plain gradient descent, the paper's case; optax brings the others."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from optax import tree

from bilevel.checks import as_number, check_map, check_positive, signature
from bilevel.identity import Static
from bilevel.solvers.optax_rules import (
    Transformation as Transformation,
    as_transformation,
    fix_numbers as fix_numbers,
    flattened as flattened,
    optax_update as optax_update,
)
from bilevel.solvers.parts.trees import scaled
from bilevel.solvers.rule_base import Descent as Descent, Rule as Rule, ValueFunction as ValueFunction
from bilevel.types import PyTree, StepSize

RESOLVED = 64  # times the precision: a step of that share of x is not lost to rounding


class Settled(Rule):
    """A rule whose every step ends with a map onto where the variable may be."""

    rule: Rule
    constrained: ClassVar[bool] = True

    @abstractmethod
    def settle(self, point: PyTree) -> PyTree: ...

    @property
    def step_size(self) -> Any:
        """Of plain descent; 1 for another rule."""
        return self.rule.step_size if isinstance(self.rule, Descent) else 1.0

    def init(self, point: PyTree) -> PyTree:
        return self.rule.init(point)

    def update(
        self, gradient: PyTree, memory: PyTree, point: PyTree, value: ValueFunction | None = None
    ) -> tuple[PyTree, PyTree]:
        point, memory = self.rule.update(gradient, memory, point, value)
        return self.settle(point), memory

    def gradient_mapping(self, point: PyTree, gradient: PyTree) -> PyTree:
        """Return (x − P(x − s·h))/s, zero exactly at constrained stationary points.

        s is the step size, or 1 without one. If rounding loses all of s·h, a larger s is taken: the quotient would be
        0, or 0/0, wherever x is.
        """
        s = _not_lost(self.step_size, point, gradient)
        ahead = self.settle(tree.sub(point, scaled(s, gradient)))
        return jax.tree.map(lambda a: a / jnp.asarray(s, a.dtype), tree.sub(point, ahead))


def check_projection(project: Any, point: PyTree) -> None:
    """A function from trees like this one to themselves."""
    try:
        out = jax.eval_shape(project, point)
    except Exception as error:
        raise TypeError(
            f"project cannot be called with {_shown(point)}, or returns no arrays: pass a function from that tree to "
            f"itself ({error})"
        ) from error
    if signature(out) != signature(point):
        raise TypeError(
            f"project returned {_shown(out)}, not a tree like its argument, {_shown(point)}: return the same tree, "
            "shapes and dtypes"
        )


class Projected(Settled):
    """Onto a closed convex set."""

    project: Static = eqx.field(static=True)

    def init(self, point: PyTree) -> PyTree:
        check_projection(self.project.value, point)
        return super().init(point)

    def settle(self, point: PyTree) -> PyTree:
        return self.project.value(point)


class Proximal(Settled):
    """By the proximal map of the inner problem's non-smooth term h(x, ·), at one x."""

    x: PyTree
    prox: Static = eqx.field(static=True)

    def settle(self, point: PyTree) -> PyTree:
        return self.prox.value(self.x, point, self.step_size)


def _not_lost(s: Any, point: PyTree, gradient: PyTree) -> Any:
    """The step size, or if no entry of the point is changed by s·gradient, one by which the largest would be."""
    pairs = list(zip(jax.tree.leaves(point), jax.tree.leaves(scaled(s, gradient)), strict=True))
    lost = jnp.all(jnp.stack([jnp.all(a - b == a) for a, b in pairs]))
    largest = lambda leaves: jnp.max(
        jnp.stack([jnp.max(jnp.abs(a), initial=0).astype(float) for a in leaves])
    )
    size, slope = largest(jax.tree.leaves(point)), largest(jax.tree.leaves(gradient))
    fine = max(float(jnp.finfo(a.dtype).eps) for a, _ in pairs)
    visible = RESOLVED * fine * jnp.where(size > 0, size, 1) / jnp.where(slope > 0, slope, 1)
    return jnp.where(lost, jnp.where(slope > 0, visible, 1), jnp.asarray(s, float))


def _shown(point: PyTree) -> Any:
    return jax.tree.map(lambda leaf: f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}", point)


def projected(rule: StepSize | Rule, project: Callable[[PyTree], PyTree]) -> Projected:
    """A rule for x, or for y, that stays in a closed convex set: `rule`, then `project`.

        bl.aid(problem, inner=0.1, adjoint=0.1, outer=bl.projected(0.01, optax.projections.projection_simplex))

    Args:
        rule: a step size, or any optax transformation.
        project: the projection, from x's tree to itself, such as those of `optax.projections`.

    With a rule that scales coordinates differently (Adam), x settles at a point that is stationary for a box but in
    general not for a simplex or a ball: take a step size or plain SGD there.

    The tolerance of a run and the trace's "stationarity" then measure ‖x − P(x − s·h)‖/s instead of ‖h‖, with s the
    step size (1 for an optax rule; where a tiny s·h would be lost to rounding, a larger s).
    """
    return Projected(as_rule(rule, "projected"), Static(check_map(project)))


def as_rule(value: Any, level: str) -> Rule:
    """The rule that `value` stands for, or an error that names the level and the value."""
    if isinstance(value, Rule):
        return value
    if isinstance(value, optax.GradientTransformation):
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
    """One step of `rule` from `point` along `gradient`: the new point and the rule's new memory."""
    return rule.update(gradient, memory, point, value)
