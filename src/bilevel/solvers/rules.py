"""A level's update rule: a number is plain gradient descent, the paper's case; optax brings the others."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from optax import tree

from bilevel.checks import check_map, check_positive, signature
from bilevel.identity import Static, made_of
from bilevel.solvers.ingredients.trees import scaled
from bilevel.types import PyTree, Scalar, StepSize

ValueFunction = Callable[[PyTree], Scalar]


class Rule(eqx.Module):
    """`init(point) -> memory` and `update(gradient, memory, point, value) -> (point, memory)`.

    `value` is the function that `gradient` is the gradient of at `point`; only rules that ask for it evaluate it.
    """

    constrained: ClassVar[bool] = False

    @abstractmethod
    def init(self, point: PyTree) -> PyTree: ...

    @abstractmethod
    def update(
        self, gradient: PyTree, memory: PyTree, point: PyTree, value: ValueFunction | None = None
    ) -> tuple[PyTree, PyTree]: ...

    def gradient_mapping(self, point: PyTree, gradient: PyTree) -> PyTree:
        """Zero exactly where the rule has nothing left to do: the gradient, unless the rule is constrained."""
        return gradient

    def stationarity(self, point: PyTree, gradient: PyTree) -> Scalar:
        """The norm of the gradient mapping."""
        return tree.norm(self.gradient_mapping(point, gradient))


class Descent(Rule):
    """point ← point − step_size · gradient."""

    step_size: Any

    def init(self, point: PyTree) -> tuple[Any, ...]:
        return ()

    def update(
        self, gradient: PyTree, memory: PyTree, point: PyTree, value: ValueFunction | None = None
    ) -> tuple[PyTree, PyTree]:
        return tree.sub(point, scaled(self.step_size, gradient)), memory


class Transformation(Rule):
    """An optax transformation. Hyperparameters injected by `optax.inject_hyperparams` are leaves."""

    transformation: Static = eqx.field(static=True)
    hyperparameters: dict[str, Any]
    scale: Any = None  # of its updates; None: as they are

    def init(self, point: PyTree) -> PyTree:
        memory = self.transformation.value.init(point)
        if not self.hyperparameters:
            return memory
        given = {k: jnp.asarray(v, memory.hyperparams[k].dtype) for k, v in self.hyperparameters.items()}
        return memory._replace(hyperparams=memory.hyperparams | given)

    def update(
        self, gradient: PyTree, memory: PyTree, point: PyTree, value: ValueFunction | None = None
    ) -> tuple[PyTree, PyTree]:
        optax_update = self.transformation.value.update
        try:
            updates, memory = optax_update(gradient, memory, point)
        except TypeError as error:
            if "required keyword-only argument" not in str(error) or value is None:
                raise
            extra = {"value": value(point), "grad": gradient, "value_fn": value}
            updates, memory = optax_update(gradient, memory, point, **extra)
        if self.scale is not None:
            updates = scaled(self.scale, updates)
        return optax.apply_updates(point, updates), memory


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
        """(x − P(x − s·h))/s, zero exactly at constrained stationary points; s is the step size, or 1 without one."""
        s = self.step_size
        ahead = self.settle(tree.sub(point, scaled(s, gradient)))
        return jax.tree.map(lambda a: a / jnp.asarray(s, a.dtype), tree.sub(point, ahead))


class Projected(Settled):
    """Onto a closed convex set."""

    project: Static = eqx.field(static=True)

    def init(self, point: PyTree) -> PyTree:
        try:
            out = jax.eval_shape(self.project.value, point)
        except Exception as error:
            raise TypeError(
                f"project cannot be called with {_shown(point)}, or returns no arrays: pass a function from that tree "
                f"to itself ({error})"
            ) from error
        if signature(out) != signature(point):
            raise TypeError(
                f"project returned {_shown(out)}, not a tree like its argument, {_shown(point)}: return the same "
                "tree, shapes and dtypes"
            )
        return super().init(point)

    def settle(self, point: PyTree) -> PyTree:
        return self.project.value(point)


class Proximal(Settled):
    """By the proximal map of the inner problem's non-smooth term h(x, ·), at one x."""

    x: PyTree
    prox: Static = eqx.field(static=True)

    def settle(self, point: PyTree) -> PyTree:
        return self.prox.value(self.x, point, self.step_size)


def _shown(point: PyTree) -> Any:
    return jax.tree.map(lambda leaf: f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}", point)


def projected(rule: StepSize | Rule, project: Callable[[PyTree], PyTree]) -> Projected:
    """A rule for x, or for y, that stays in a closed convex set: `rule`, then `project`.

        bl.aid(problem, 0.1, 0.1, bl.projected(0.01, optax.projections.projection_simplex))

    Args:
        rule: a step size, or any optax transformation.
        project: the projection, from x's tree to itself, such as those of `optax.projections`.

    With a rule that scales coordinates differently (Adam), x settles at a point that is stationary for a box but in
    general not for a simplex or a ball: take a step size or plain SGD there.

    The tolerance of a run and the trace's "stationarity" then measure ‖x − P(x − s·h)‖/s instead of ‖h‖, with s the
    step size (1 for an optax rule).
    """
    return Projected(as_rule(rule, "projected"), Static(check_map(project)))


def as_rule(value: Any, level: str) -> Rule:
    """The rule that `value` stands for, or an error that names the level and the value."""
    if isinstance(value, Rule):
        return value
    if isinstance(value, optax.GradientTransformation):
        return _transformation(value)
    if isinstance(value, optax.MultiSteps):
        raise TypeError(
            f"the {level} rule is an optax.MultiSteps, which is not a transformation itself: pass its "
            ".gradient_transformation()"
        )
    check_positive(value, f"{level} step size", "or an optax transformation such as optax.adam(1e-3)")
    return Descent(value)


def descend(
    rule: Rule, gradient: PyTree, memory: PyTree, point: PyTree, value: ValueFunction | None = None
) -> tuple[PyTree, PyTree]:
    """One step of `rule` from `point` along `gradient`: the new point and the rule's new memory."""
    return rule.update(gradient, memory, point, value)


def _transformation(value: optax.GradientTransformation) -> Transformation:
    hyperparameters = _injected(value)
    # What injection leaves in `update` is the rule without its numbers, so rules that differ in them alone are equal.
    signature = made_of(value.update) if hyperparameters else None
    return Transformation(Static(value, signature), hyperparameters)


def _injected(value: optax.GradientTransformation) -> dict[str, Any]:
    """The numbers of a rule made by `optax.inject_hyperparams`; of any other, none."""
    try:
        with jax.ensure_compile_time_eval():
            memory = value.init(jnp.zeros(()))
    except (
        Exception
    ):  # a rule for trees of a certain shape: not an injected one, and none of our business here
        return {}
    if not isinstance(memory, optax.InjectStatefulHyperparamsState):
        return {}
    return {k: v for k, v in memory.hyperparams.items() if k not in memory.hyperparams_states}
