"""Steps of each level: their lengths, whether they descend, and whether the scale of g matters."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.batch import draws, first
from bilevel.loop.diagnose.messages import MOVES
from bilevel.solvers.adjoints.base import Adjoint
from bilevel.solvers.base import Solver
from bilevel.solvers.optax_rules import Transformation
from bilevel.solvers.parts.trees import all_finite, dot, scaled
from bilevel.solvers.rules import Descent, Rule, Settled
from bilevel.types import PyTree, Scalar

AHEAD = 32  # inner steps on which the map of the inner rule is tried
AGAINST = 100.0  # times the largest number in its memory: the gradient for a trial of a rule
TRIAL = 4  # steps of a rule that may be scale-free
SIZE = 0.05  # of its gradients, below the usual limits of clipping by norm
LARGER = 8.0  # times that, for the second time
ALIKE = 1e-2  # relative difference of the paths of y
POINTS = 4  # at which g is compared with itself
APART = 0.3  # of an entry of y, or of 1
SAME = 1e-3  # relative difference of the logarithmic derivatives


def attempt(function: Callable[..., Any], *arguments: Any, default: Any = None) -> Any:
    """Return the result of a measurement, or `default` if it raises.

    A method may call its objectives differently, a rule may need the objective, or a loader may be empty.
    """
    try:
        return function(*arguments)
    except Exception:
        return default


def moves(gradient: PyTree) -> jax.Array:
    """Return whether each array has a nonzero entry, or no entries."""
    return jnp.stack([jnp.any(leaf) | (leaf.size == 0) for leaf in jax.tree.leaves(gradient)])


def without_map(rule: Any) -> Any:
    """Return a rule without the map that ends its steps."""
    return rule.rule if isinstance(rule, Settled) else rule


def inner_rule(solver: Solver, x: PyTree) -> Rule:
    """Return the inner rule at x, or plain descent for a method without one."""
    return Descent(1.0) if solver.rule("inner") is None else solver.inner_at(x)


def steps_of(solver: Solver, level: str) -> Any:
    """Return the rule, or the step size, by which a level moves; `None` if it has none."""
    part = solver.part(level)
    return part.step_rule if isinstance(part, Adjoint) else without_map(part)


def constant_step(solver: Solver, level: str) -> float | None:
    """Return the step size of plain descent or of a series; 0 without steps, `None` for other rules."""
    steps = steps_of(solver, level)
    size = steps.step_size if isinstance(steps, Descent) else steps
    return None if isinstance(size, Rule) else float(0 if size is None else size)


def present_step(solver: Solver, level: str, state: Any, gradient: PyTree) -> Any:
    """Return the step size of a level at this state, or NaN if its steps have none."""
    steps = steps_of(solver, level)
    if isinstance(steps, Rule):
        return plain_step(steps, getattr(state, level, ()), gradient)
    return jnp.nan if steps is None else steps


def plain_step(rule: Rule, memory: PyTree, gradient: PyTree) -> Any:
    """Return s if the rule's next update is −s·gradient, as for plain descent or a schedule, else NaN.

    This must be true for this gradient and for −½ of it. Momentum and Adam have no such s.
    """
    rule = without_map(rule)
    if isinstance(rule, Descent):
        return rule.step_size
    return attempt(_trial_step, rule, memory, gradient, default=jnp.nan)


def _trial_step(rule: Rule, memory: PyTree, gradient: PyTree) -> Any:
    origin = tree.zeros_like(gradient)

    def tried(factor: float) -> tuple[Scalar, Scalar]:
        along = tree.scale(factor, gradient)
        update = tree.sub(origin, rule.update(along, memory, origin)[0])
        s = dot(update, along) / dot(along, along)
        return s, tree.norm(tree.sub(update, scaled(s, along))) / tree.norm(update)

    (s, off), (again, off_again) = tried(1.0), tried(-0.5)
    plain = (jnp.abs(s - again) <= 1e-3 * s) & (off <= 1e-3) & (off_again <= 1e-3)
    return jnp.where(plain, s, jnp.nan)


def faulty_maps(solver: Solver, state: Any, batch: Any) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Return, for each level whose rule ends with a map, whether that map makes NaN of a finite point.

    There are two answers per level: for the next steps, and for the present point, where no smaller step
    helps.
    """
    found = {}
    if isinstance(rule := inner_rule(solver, state.x), Settled):
        y0 = solver.sets_out(state)
        found["inner"] = _breaks_on_the_way(solver, rule, state, y0, batch), ~_is_finite(rule, y0)
    if isinstance(rule := solver.rule("outer"), Settled):
        h = solver.step(state, batch)[1].hypergradient
        ahead = rule.rule.update(h, state.outer, state.x)[0]
        found["outer"] = all_finite(ahead) & ~_is_finite(rule, ahead), ~_is_finite(rule, state.x)
    return found


def _breaks_on_the_way(solver: Solver, rule: Settled, state: Any, y0: PyTree, batch: Any) -> jax.Array:
    def step(_, carry):
        y, memory, breaks = carry
        gradient = solver.problem.oracles.inner_gradient(state.x, y, first(batch))
        ahead, after = rule.rule.update(gradient, memory, y)
        return rule.settle(ahead), after, breaks | (all_finite(ahead) & ~_is_finite(rule, ahead))

    return lax.fori_loop(0, AHEAD, step, (y0, state.inner, jnp.array(False)))[2]


def _is_finite(rule: Settled, point: PyTree) -> jax.Array:
    """Return whether the map and its derivative are finite at a point."""
    return all_finite(jax.jvp(rule.settle, (point,), (tree.ones_like(point),)))


def climbing_levels(solver: Solver, state: Any) -> dict[str, jax.Array]:
    """Return for each level whether its rule climbs: a step along the gradient ends below one against it.

    Momentum, decay and other terms that ignore the gradient's sign cancel in the difference of both steps.
    """
    found = {}
    for level, variable in MOVES.items():
        rule = steps_of(solver, level)
        if not isinstance(rule, Rule) or isinstance(rule, Descent):
            continue
        memory, origin = getattr(state, level), tree.zeros_like(getattr(state, variable))
        floats = [leaf for leaf in jax.tree.leaves(memory) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        sizes = [jnp.max(jnp.where(jnp.isfinite(a), jnp.abs(a), 0), initial=0).astype(float) for a in floats]
        # A smaller gradient would be hidden by a momentum that has run away.
        ones, size = tree.ones_like(origin), AGAINST * (1 + jnp.max(jnp.stack([jnp.zeros(()), *sizes])))
        down, up = (rule.update(scaled(sign * size, ones), memory, origin)[0] for sign in (1, -1))
        found[level] = dot(tree.sub(up, down), ones) < 0
    return found


def may_be_scale_free(solver: Solver) -> bool:
    """Return whether the inner rule comes from optax; only such a rule may be scale-free."""
    return isinstance(without_map(solver.rule("inner")), Transformation) and solver.second_order


def look_at_scale(solver: Solver, state: Any, batch: Any, whole: bool) -> dict[str, Any]:
    """Return whether the inner rule is scale-free, and which arrays of x have entries that only scale g.

    If g = s(x)·k(y) then ∇_x⟨∇_y g, w⟩/⟨∇_y g, w⟩ = ∇ log s(x) for all y and w, which are compared at several
    of both. An entry that f depends on as well does more.
    """
    rule, data, oracles = without_map(solver.rule("inner")), draws(batch)[0], solver.problem.oracles

    def way(size: float) -> PyTree:
        y, memory = state.y, rule.init(state.y)
        for k in range(TRIAL):
            y, memory = rule.update(scaled(size, _pattern(state.y, k)), memory, y)
        return tree.sub(y, state.y)

    one, other = way(SIZE), way(LARGER * SIZE)
    free = (tree.norm(tree.sub(one, other)) <= ALIKE * tree.norm(one)) & (tree.norm(one) > 0)

    def slope(k: jax.Array) -> PyTree:
        away = lambda a, b: a + APART * (1 + jnp.abs(a)) * jnp.sign(b)
        far = jax.tree.map(away, state.y, _pattern(state.y, k))
        curvature = oracles.curvature(state.x, far, data)
        gradient = oracles.inner_gradient(state.x, far, data)
        w = tree.add(scaled(1 / tree.norm(gradient), gradient), _pattern(state.y, k + POINTS))
        return scaled(1 / dot(gradient, w), curvature.cross(w))

    slopes = lax.map(slope, jnp.arange(POINTS))
    # Move a little, as f may be stationary here by chance.
    aside = jax.tree.map(lambda a: a + SAME * (1 + jnp.abs(a)), state.x)
    f_x = oracles.outer_gradients(aside, state.y, data).x

    def only_scales(a: jax.Array, direct: jax.Array) -> jax.Array:
        return (jnp.abs(a - a[0]) <= SAME * jnp.abs(a[0])).all(0) & (a[0] != 0) & (direct == 0)

    return {"free": free, "scales": moves(jax.tree.map(only_scales, slopes, f_x))}


def _pattern(y: PyTree, k: Any) -> PyTree:
    """Return a direction of length one, a different one for every k."""
    wave = lambda a: jnp.cos(jnp.arange(1, a.size + 1) * (1 + jnp.asarray(k, float) * 0.7)).reshape(a.shape)
    tree_of = jax.tree.map(lambda a: wave(a).astype(a.dtype), y)
    return scaled(1 / tree.norm(tree_of), tree_of)
