"""Optax transformations as update rules."""

import types
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from bilevel.solvers.parts.trees import scaled
from bilevel.solvers.rule_closures import Closures
from bilevel.solvers.rules import FixedPoint, Rule, ValueFunction
from bilevel.types import PyTree

# Stages of a chain, by the functions of optax that make them, with the ranges of their numbers. A chain of
# only these stages leaves y unchanged exactly where ∇_y g = 0.
POSITIVE, SHARE = (1e-12, 1e12), (0.0, 1.0)
KNOWN_STAGES: dict[str, dict[str, tuple[float, float]]] = {
    "identity": {},
    "scale": {"step_size": POSITIVE},
    "trace": {"decay": SHARE},
    "clip": {"max_delta": POSITIVE},
    "clip_by_global_norm": {"max_norm": POSITIVE},
    "scale_by_adam": {"b1": (0.0, 0.999), "b2": (0.0, 0.9999), "eps": (1e-12, 1.0), "eps_root": SHARE},
    "scale_by_rms": {"decay": (0.0, 0.9999), "eps": (1e-12, 1.0)},
}


class Transformation(Rule):
    """Optax transformation; the numbers in its closures are leaves."""

    closures: Closures = eqx.field(static=True)
    numbers: dict[str, Any]
    injected: bool = eqx.field(static=True, default=False)  # its numbers, by optax.inject_hyperparams
    scale: Any = None  # a factor of its updates; None: no factor

    @property
    def transformation(self) -> optax.GradientTransformation:
        return self.closures.holding(self.numbers)

    def on(self, point: PyTree) -> optax.GradientTransformation:
        """Return the transformation with numbers that keep the types of a tree like `point`."""
        leaves = jax.tree.leaves(point)
        is_array = lambda number: isinstance(number, jax.Array) and number.ndim == 0
        strong = lambda number: is_array(number) and not number.aval.weak_type
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

    def fixed_point(self, point: PyTree) -> FixedPoint | None:
        """Return the zeros of the gradient for SGD, momentum, Adam, RMSProp and clipping; None for other chains."""
        is_wide = all(leaf.dtype in (np.float32, np.float64) for leaf in jax.tree.leaves(point))
        if not is_wide or not all(map(_is_known, _stages(self.as_made().transformation.update))):
            return None
        everywhere = lambda value: jax.tree.map(lambda _: value, point)
        return FixedPoint(active=everywhere(True), decay=everywhere(0.0), plain=True)

    def decays_after_rescaling(self) -> bool:
        """Return whether its chain shows weight decay after the memory of Adam or RMSProp, as in `optax.adamw`."""
        rescaled = decays = False
        for stage in _stages(self.as_made().transformation.update):
            name, held = stage or ("", {})
            if not _is_known(stage) and name not in ("add_decayed_weights", "scale_by_schedule"):
                return False
            rescaled |= name in ("scale_by_adam", "scale_by_rms")
            decay = held.get("weight_decay") if name == "add_decayed_weights" else None
            decays |= rescaled and isinstance(decay, float | int) and decay > 0
        return decays

    def as_made(self) -> "Transformation":
        """Return the rule with its original numbers as constants: its leaves may be traced."""
        return Transformation(Closures(self.closures.value, self.closures.numbers | self.closures.fixed), {})

    def fixed(self, names: Sequence[str]) -> "Transformation":
        """Return the same rule with the numbers of these names as constants."""
        if not names:
            return self
        # An array of NumPy may change in place.
        copied = lambda number: number.copy() if isinstance(number, np.ndarray) else number
        constants = {name: copied(number) for name, number in self.numbers.items() if name in names}
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
    """Return the updates and the new memory; evaluate `value` only for a transformation that requires it."""
    try:
        return transformation.update(gradient, memory, point)
    except TypeError:
        if value is None or not isinstance(transformation, optax.GradientTransformationExtraArgs):
            raise
    return transformation.update(gradient, memory, point, value=value(point), grad=gradient, value_fn=value)


def fix_numbers(solvers: Sequence[Any]) -> list[Any]:
    """Return the solvers with the numbers of optax rules as constants where all solvers agree in them.

    A constant is exact, and the fixed point of the rule may depend on it. A number that differs is an
    argument of the program. Numbers injected by `optax.inject_hyperparams` are always arguments.
    """
    is_rule = lambda node: isinstance(node, Transformation)
    flat, structures = zip(*(jax.tree.flatten(solver, is_leaf=is_rule) for solver in solvers), strict=True)
    columns = [_fixed(column) if is_rule(column[0]) else column for column in zip(*flat, strict=True)]
    rows = zip(structures, zip(*columns, strict=True), strict=True)
    return [structure.unflatten(row) for structure, row in rows]


class Flat(NamedTuple):
    """Solver, or another frozen tree, in the form for compiled programs."""

    leaves: list[Any]  # arguments of the programs
    structure: Any
    functions: Any  # the tree without its leaves, which the programs read


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
    same = lambda name: all(_is_constant(rule.numbers[name], rules[0].numbers[name]) for rule in rules)
    agreed = list(filter(same, rules[0].numbers))
    return [rule.fixed(agreed) for rule in rules]


def _is_constant(number: Any, first: Any) -> bool:
    """Return whether this is a concrete number, not an array, and equal to the first one."""
    kinds = float | np.floating | np.ndarray | jax.Array
    known = isinstance(number, kinds) and not isinstance(number, Tracer) and np.ndim(number) == 0
    return known and type(number) is type(first) and repr(number) == repr(first)


def as_transformation(value: optax.GradientTransformation) -> Transformation:
    closures = Closures(value)
    return Transformation(closures, closures.numbers, bool(_injected(value)))


def _injected(value: optax.GradientTransformation) -> dict[str, Any]:
    """Return the numbers of a rule made by `optax.inject_hyperparams`; none for any other rule."""
    try:
        with jax.ensure_compile_time_eval():
            memory = value.init(jnp.zeros(()))
    except Exception:  # a rule for trees of a certain shape, which is not injected
        return {}
    if not isinstance(memory, optax.InjectStatefulHyperparamsState):
        return {}
    return {k: v for k, v in memory.hyperparams.items() if k not in memory.hyperparams_states}


def _stages(update: Any) -> Iterator[tuple[str, dict[str, Any]] | None]:
    """Yield for each stage of a chain the name of the function that made it and the values in its closure."""
    is_function = isinstance(update, types.FunctionType)
    if not is_function or update.__module__.partition(".")[0] != "optax":
        yield None
        return
    name = update.__qualname__.partition(".")[0]
    cells = [cell.cell_contents for cell in update.__closure__ or ()]
    held = dict(zip(update.__code__.co_freevars, cells, strict=True))
    if name == "chain":
        for each in held["update_fns"]:
            yield from _stages(each)
    elif name == "with_extra_args_support":
        yield from _stages(held["tx"].update)
    else:
        yield name, held


def _is_known(stage: tuple[str, dict[str, Any]] | None) -> bool:
    """Return whether this is a known stage with ordinary numbers."""
    if stage is None or stage[0] not in KNOWN_STAGES:
        return False
    name, held = stage
    if held.get("mu_dtype") is not None or held.get("accumulator_dtype") is not None:
        return False
    if isinstance(held.get("step_size"), float):
        held = held | {"step_size": abs(held["step_size"])}
    return all(
        isinstance(held.get(each), float | int) and low <= held[each] <= high
        for each, (low, high) in KNOWN_STAGES[name].items()
    )
