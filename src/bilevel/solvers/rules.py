"""A level's update rule: a number is plain gradient descent, the paper's case; optax brings the others."""

import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from optax import tree

from bilevel.checks import as_number, check_map, check_positive, signature
from bilevel.identity import Static
from bilevel.solvers.parts.trees import scaled
from bilevel.solvers.rule_closures import Closures
from bilevel.types import PyTree, Scalar, StepSize

ValueFunction = Callable[[PyTree], Scalar]
RESOLVED = 64  # times the precision: a step of that share of x is not lost to rounding


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
    """An optax transformation; the numbers in its closures are leaves."""

    closures: Closures = eqx.field(static=True)
    numbers: dict[str, Any]
    injected: bool = eqx.field(static=True, default=False)  # by optax.inject_hyperparams
    scale: Any = None  # of its updates; None: as they are

    @property
    def transformation(self) -> optax.GradientTransformation:
        return self.closures.holding(self.numbers)

    def on(self, point: PyTree) -> optax.GradientTransformation:
        """Return the transformation with numbers that leave the types of a tree like `point` as they are."""
        leaves = jax.tree.leaves(point)
        strong = lambda number: (
            isinstance(number, jax.Array) and number.ndim == 0 and not number.aval.weak_type
        )
        cast = lambda number: number.astype(leaves[0].dtype) if leaves and strong(number) else number
        return self.closures.holding(jax.tree.map(cast, self.closures.fixed | self.numbers))

    def init(self, point: PyTree) -> PyTree:
        return self.on(point).init(point)

    def update(
        self, gradient: PyTree, memory: PyTree, point: PyTree, value: ValueFunction | None = None
    ) -> tuple[PyTree, PyTree]:
        updates, memory = optax_update(self.on(point), gradient, memory, point, value)
        if self.scale is not None:
            updates = scaled(self.scale, updates)
        return optax.apply_updates(point, updates), memory

    def fixed(self, names: Sequence[str]) -> "Transformation":
        """Return the same rule with the numbers of these names as constants."""
        if not names:
            return self
        constants = {name: number for name, number in self.numbers.items() if name in names}
        closures = Closures(self.closures.value, self.closures.fixed | constants)
        left = {name: number for name, number in self.numbers.items() if name not in names}
        return Transformation(closures, left, self.injected, self.scale)


def optax_update(
    transformation: optax.GradientTransformation,
    gradient: PyTree,
    memory: PyTree,
    point: PyTree,
    value: ValueFunction | None,
) -> tuple[Any, ...]:
    """Return the updates and the new memory; evaluate `value` only for a transformation that cannot do without."""
    try:
        return transformation.update(gradient, memory, point)
    except TypeError:
        if value is None or not isinstance(transformation, optax.GradientTransformationExtraArgs):
            raise
    return transformation.update(gradient, memory, point, value=value(point), grad=gradient, value_fn=value)


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
        return _transformation(value)
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


def fix_numbers(solvers: Sequence[Any]) -> list[Any]:
    """Return the solvers with the numbers of optax rules as constants where all solvers agree in them.

    A constant is exact, and tells where the rule comes to rest; a number that differs is an argument of the program.
    Numbers injected by `optax.inject_hyperparams` are always arguments.
    """
    is_rule = lambda node: isinstance(node, Transformation)
    flat, structures = zip(*(jax.tree.flatten(solver, is_leaf=is_rule) for solver in solvers), strict=True)
    columns = [_fixed(column) if is_rule(column[0]) else column for column in zip(*flat, strict=True)]
    return [
        structure.unflatten(row)
        for structure, row in zip(structures, zip(*columns, strict=True), strict=True)
    ]


class Flat(NamedTuple):
    """A solver, or another frozen tree, as its compiled programs see it."""

    leaves: list[Any]  # arguments of the programs
    structure: Any
    functions: Any  # the tree without its leaves: what the programs read


_flat: dict[int, tuple[weakref.ref[Any], Flat]] = {}  # by identity, while the tree lives


def flattened(tree: Any) -> Flat:
    """Return the leaves and the structure of a frozen tree, with constant numbers of optax rules in the structure."""
    known = _flat.get(id(tree))
    if known is not None and known[0]() is tree:
        return known[1]
    leaves, structure = jax.tree.flatten(*fix_numbers([tree]))
    flat = Flat(leaves, structure, structure.unflatten([None] * len(leaves)))
    may_change = any(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(tree))
    if isinstance(tree, eqx.Module) and not may_change:
        key = id(tree)
        _flat[key] = weakref.ref(tree, lambda _: _flat.pop(key, None)), flat
    return flat


def _fixed(rules: Sequence[Transformation]) -> list[Transformation]:
    if rules[0].injected:
        return list(rules)
    columns = {name: [rule.numbers[name] for rule in rules] for name in rules[0].numbers}
    agreed = [
        name for name, column in columns.items() if all(_is_constant(number, column[0]) for number in column)
    ]
    return [rule.fixed(agreed) for rule in rules]


def _is_constant(number: Any, first: Any) -> bool:
    """Whether it is a known number, not an array, and equal to the first one."""
    known = isinstance(number, float | np.floating | np.ndarray | jax.Array) and not isinstance(
        number, Tracer
    )
    return known and np.ndim(number) == 0 and type(number) is type(first) and repr(number) == repr(first)


def _transformation(value: optax.GradientTransformation) -> Transformation:
    closures = Closures(value)
    return Transformation(closures, closures.numbers, bool(_injected(value)))


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
