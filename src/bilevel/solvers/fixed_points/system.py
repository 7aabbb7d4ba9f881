"""Adjoint systems of the fixed point y = U(x, y) of an inner rule.

The hypergradient is ∇Φ = ∇_x f + (∂_x U)ᵀw, where w = (∂_y U)ᵀw + ∇_y f. If U is gradient descent, v = αw
solves ∇²_yy g·v = ∇_y f, and ∇Φ = ∇_x f − ∇²_xy g·v. Other U get the same form, which every adjoint method
can solve: a symmetric operator K in the place of ∇²_yy g, and a right-hand side.

* Entry by entry, y − U = a·∇_y g + d·y to first order. v = aw is zero on frozen entries (a = 0). On the
  others (∇²_yy g + diag(d/a)) v = ∇_y f. Weight decay of c is d/a = c. AdamW with v̂ held fixed has
  d/a = c(√v̂ + ε).
* U = P(y − α∇_y g), with P a projection or a proximal map. D = ∂P is symmetric with 0 ≤ D ≤ I. For v = Du,

      D(∇²_yy g·Du + (u − Du)/α) = D∇_y f,        w = v/α + ∇_y f − ∇²_yy g·v,

  and a P that depends on x adds (∂_x P)ᵀw to ∇Φ.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from optax import tree

from bilevel.batch import Batch
from bilevel.oracles import Curvature
from bilevel.problem import Problem
from bilevel.solvers.adjoints.base import with_curvature
from bilevel.solvers.fixed_points.classification import classify
from bilevel.solvers.fixed_points.preconditioner import FixedPreconditioner, shift as held_shift
from bilevel.solvers.fixed_points.trial import Trial
from bilevel.solvers.parts.lagrangian import lagrangian
from bilevel.solvers.parts.trees import scaled
from bilevel.solvers.rules import Descent, FixedPoint, Projected, Proximal, Rule, Settled
from bilevel.types import PyTree, Scalar


class System(NamedTuple):
    """Adjoint system K v = b, and ∇Φ = ∇_x f − cross(v)."""

    inner: Curvature  # K in the place of ∇²_yy g, and the cross product for its solution
    b: PyTree
    # v ↦ a function of x with the gradient ∇_x f − cross(v)
    lagrangian: Callable[[PyTree], Callable[[PyTree], Scalar]]


def fixed_point(problem: Problem, rule: Rule, y: PyTree) -> FixedPoint:
    """Return the fixed point of the rule; raise if it is unknown. Rules that do not state it are tried."""
    stated = rule.fixed_point(y)
    return classify(problem, rule, y) if stated is None else stated


def check_rests(solver: Any, y: PyTree) -> None:
    """Raise if the inner rule has no fixed point that can be differentiated."""
    rule = solver.inner
    if isinstance(rule, Projected) and not isinstance(rule.rule, Descent):
        check_box(rule, y)
    _unprojected(solver, y)


def check_rests_at_minima(solver: Any, y: PyTree) -> None:
    """Raise if the inner rule decays y, for methods that need ∇_y g = 0; y may be frozen or projected."""
    decay = _unprojected(solver, y).decay
    if decay is None or any(np.any(c) for c in jax.tree.leaves(decay)):
        raise ValueError(
            f"{solver.name} needs an inner rule that comes to rest where ∇_y g = 0, but this one decays y by itself: "
            "put the decay into g, as 0.5 * c * ‖y‖²"
        )


def check_plain(solver: Any, y: PyTree) -> None:
    """Raise if the inner rule decays, freezes or projects y, for methods that solve ∇²_yy g·v = ∇_y f."""
    if isinstance(solver.inner, Settled) or not fixed_point(solver.problem, solver.inner, y).plain:
        raise ValueError(
            f"{solver.name} needs an inner rule that comes to rest where ∇_y g = 0 on all of y, but this one decays, "
            "freezes or projects y: put a decay into g, leave what is frozen out of y, or take bl.aid, bl.soba, "
            "bl.hoag or bl.stocbio, which follow such rules"
        )


def _unprojected(solver: Any, y: PyTree) -> FixedPoint:
    rule = solver.inner
    return fixed_point(solver.problem, rule.rule if isinstance(rule, Projected) else rule, y)


def check_box(rule: Projected, y: PyTree) -> None:
    """Raise if an optax rule, which scales every entry of y differently, is projected onto a set that is not a box.

    The projection onto a box acts entry by entry.
    """
    like, structure = jax.tree.flatten(jax.eval_shape(lambda: y))
    trial = Trial(rule, structure, tuple((leaf.shape, leaf.dtype) for leaf in like))
    settle = jax.jit(lambda leaves: jax.tree.leaves(rule.settle(structure.unflatten(leaves))))

    def onto(vector: np.ndarray) -> np.ndarray:
        leaves = jax.device_get(settle(trial.arrays(vector)))
        return np.concatenate([np.asarray(leaf, float).ravel() for leaf in leaves])

    drawn = np.random.default_rng(0).normal(size=(2, trial.size))
    with jax.ensure_compile_time_eval(), jax.numpy_dtype_promotion("standard"):
        for by in (0.03, 3.0, 300.0, 3e4):
            one, two = trial.rounded(by * drawn)
            halves = [onto(trial.mixed(parity, one, two)) for parity in (0, 1)]
            if not all(
                trial.is_close(trial.mixed(k, *halves), onto(whole)) for k, whole in enumerate((one, two))
            ):
                raise ValueError(
                    "the inner rule is an optax transformation projected onto a set that is not a box; its fixed "
                    "point depends on how it scales the entries of y: pass a step size, as bl.projected(0.1, project)"
                )


def adjoint_system(
    problem: Problem,
    rule: Rule,
    memory: PyTree,
    x: PyTree,
    y: PyTree,
    g: Curvature,
    b: PyTree,
    batch: Batch | None,
    gradient: PyTree | None = None,
) -> System:
    """Return the system at (x, y), where ∇_y f is `b`; `rule` is the inner rule at x, with its memory.

    Few rules need ∇_y g. It is computed only for them, unless it is given as `gradient`.
    """
    here = lambda: problem.oracles.inner_gradient(x, y, batch) if gradient is None else gradient
    if isinstance(rule, Proximal) or (isinstance(rule, Projected) and isinstance(rule.rule, Descent)):
        return _thresholded(problem, rule, x, y, g, b, here(), batch)
    active, shift = entrywise(problem, rule, memory, y, here)
    if active is None:
        return System(g, b, lambda v: lagrangian(problem, y, v, batch))
    kept = lambda m, a: a if isinstance(m, bool | np.bool_) and m else jnp.where(m, a, 0)
    keep = lambda v: jax.tree.map(kept, active, v)
    shifted = lambda v: jax.tree.map(lambda c, a: jnp.asarray(c, a.dtype) * a, shift, v)
    around = lambda product: lambda v: keep(tree.add(product(keep(v)), shifted(v)))
    inner = with_curvature(g, around, lambda v: g.cross(keep(v)))
    return System(inner, keep(b), lambda v: lagrangian(problem, y, keep(v), batch))


def entrywise(
    problem: Problem, rule: Rule, memory: PyTree, y: PyTree, gradient: Callable[[], PyTree]
) -> tuple[PyTree | None, PyTree]:
    """Return which entries move, and d/a there; `None` if all entries converge to ∇_y g = 0."""
    within = None
    if isinstance(rule, Projected):  # onto a box, after a rule that is not plain descent
        ahead, _ = rule.rule.update(gradient(), memory, y)
        within = jax.tree.map(lambda a, b: a == b, rule.settle(ahead), ahead)
        rule = rule.rule
    found = fixed_point(problem, rule, y)
    if found.plain:
        return within, jax.tree.map(lambda a: 0.0, y)
    active, shift = found.active, _stated_shift(rule, found, memory, y)
    if shift is None:
        active, shift = _linearized_map(rule, memory, y, gradient())
    if within is not None:
        active = jax.tree.map(jnp.logical_and, active, within)
    return active, shift


def residual(problem: Problem, rule: Rule, memory: PyTree, y: PyTree, gradient: PyTree) -> PyTree:
    """Return a tree that is zero exactly at the fixed point of the rule: ∇_y g for plain rules."""
    if isinstance(rule, Projected | Proximal):
        return rule.gradient_mapping(y, residual(problem, rule.rule, memory, y, gradient))
    found = fixed_point(problem, rule, y)
    if found.plain:
        return gradient
    if (shift := _stated_shift(rule, found, memory, y)) is not None:
        shifted = lambda m, c, a, d: jnp.where(m, d + jnp.asarray(c, a.dtype) * a, 0)
        return jax.tree.map(shifted, found.active, shift, y, gradient)
    step = lambda gradient: _step(rule, memory, y, gradient)
    taken, per_gradient = jax.jvp(step, (gradient,), (tree.ones_like(y),))
    return jax.tree.map(lambda s, a: s / jnp.where(a != 0, a, 1), taken, per_gradient)


def _stated_shift(rule: Rule, found: FixedPoint, memory: PyTree, y: PyTree) -> PyTree | None:
    """Return d/a if it is the decay or follows from a memory held fixed; None if the rule has to be linearized."""
    if isinstance(rule, FixedPreconditioner) and found.held is not None:
        return held_shift(rule, found.held, memory, y)
    return found.decay


def _linearized_map(rule: Rule, memory: PyTree, y: PyTree, gradient: PyTree) -> tuple[PyTree, PyTree]:
    ones, zeros = tree.ones_like(y), tree.zeros_like(y)
    _, tangent = jax.linearize(lambda gradient, y: _step(rule, memory, y, gradient), gradient, y)
    a, d = tangent(ones, zeros), tangent(zeros, ones)
    active = jax.tree.map(lambda a: a != 0, a)
    return active, jax.tree.map(lambda m, d, a: jnp.where(m, d / jnp.where(m, a, 1), 0), active, d, a)


def _step(rule: Rule, memory: PyTree, y: PyTree, gradient: PyTree) -> PyTree:
    return tree.sub(y, rule.update(gradient, memory, y)[0])


def _thresholded(
    problem: Problem,
    rule: Projected | Proximal,
    x: PyTree,
    y: PyTree,
    g: Curvature,
    b: PyTree,
    gradient: PyTree,
    batch: Batch | None,
) -> System:
    alpha = rule.step_size
    per_step = lambda v: jax.tree.map(lambda a: a / jnp.asarray(alpha, a.dtype), v)
    ahead = tree.sub(y, scaled(alpha, gradient))
    _, D = jax.linearize(rule.settle, ahead)
    around = lambda product: lambda u: D(tree.add(product(D(u)), per_step(tree.sub(u, D(u)))))

    if isinstance(rule, Projected):
        inner = with_curvature(g, around, lambda u: g.cross(D(u)))
        return System(inner, D(b), lambda u: lagrangian(problem, y, D(u), batch))

    settle_at = lambda x: Proximal(rule.rule, x, rule.prox).settle(ahead)

    def w(u):
        v = D(u)
        return tree.add(per_step(v), tree.sub(b, g.hessian(v)))

    def cross(u):
        through_x = jax.vjp(settle_at, x)[1](w(u))[0]
        return tree.sub(g.cross(D(u)), through_x)

    def value(u):
        smooth, fixed = lagrangian(problem, y, D(u), batch), w(u)
        return lambda x: smooth(x) + tree.vdot(fixed, settle_at(x))

    return System(with_curvature(g, around, cross), D(b), value)
