"""Measurements of a run: its next step, compared with linear solves at the same state.

All derivatives are on the batch of the next step at (x, ŷ), where that step estimates the hypergradient by h:

    ritz      the result of Lanczos' method for K, the operator of the adjoint system: ∇²_yy g for most inner rules
    v*        K v* = ∇_y f by conjugate gradients, from the v of the method if it has one
    h*        ∇_x f − ∇²_xy g·v*: h with a perfect adjoint at this ŷ
    d         K d = ∇_y g by conjugate gradients: a Newton step; ‖d‖ is about the distance from ŷ to y*(x)
    h**       h* at ŷ − d: h with a perfect y too

‖h − h*‖ is the error by v or by an unrolled loop; ‖h* − h**‖ is the error by the lag of y. There are no d and
h** on minibatches, because y* of a batch is far from y* of all the data. Nor are there any where y is
projected, thresholded, frozen or decays.
"""

from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.batch import draws
from bilevel.loop.diagnose.steps import attempt, inner_rule, moves, present_step, without_map
from bilevel.oracles import Product
from bilevel.solvers.base import Solver
from bilevel.solvers.fixed_points import System, adjoint_system, fixed_point
from bilevel.solvers.parts.newton import truncated_cg
from bilevel.solvers.parts.ritz import tridiagonal
from bilevel.solvers.parts.unroll import update
from bilevel.solvers.rules import GRADIENT_ZERO
from bilevel.types import PyTree, Scalar

LANCZOS = 24  # products
SOLVE = 50  # products of one linear solve at most
TOL = 1e-3  # of a solve, relative to its right-hand side; and a tenth of its first residual
BESIDE = 1e-3  # relative (or absolute, at 0) distance to the nearby point for gradients of exactly zero
SOLVED = 0.05  # the largest residual of a solve that ran out of products but is still used


class Point(NamedTuple):
    """x and an estimate of the hypergradient there, for the next look to compare with."""

    x: PyTree
    h: PyTree


Look = tuple[dict[str, Any], Point]  # the measurements, and the point for the next look


def brief_look(solver: Solver, state: Any, batch: Any, whole: bool, before: Point) -> Look:
    """Look at the next step only, for methods without second derivatives."""
    info = solver.step(state, batch)[1]
    here = Point(state.x, info.hypergradient)
    return _compared(_of_step(solver, state, info, whole, before), before, here, jnp.zeros(()))


def close_look(solver: Solver, state: Any, batch: Any, whole: bool, before: Point) -> Look:
    """Return all measurements above. With `whole`, the batch is all the data, the same at every step."""
    problem, x = solver.problem, state.x
    after, info = solver.step(state, batch)
    at = state if solver.traits.outer_at == "start" else after
    data = draws(batch)[solver.traits.outer_draw % solver.draws]
    rule = inner_rule(solver, x)
    free = not rule.constrained and fixed_point(problem, rule, at.y).plain
    seen = _of_step(solver, state, info, whole, before)
    newton = free and not seen["noisy"]

    def system_at(y: PyTree, b: PyTree, gradient: PyTree | None = None) -> System:
        g, memory = problem.oracles.curvature(x, y, data), getattr(at, "inner", ())
        return adjoint_system(problem, rule, memory, x, y, g, b, data, gradient)

    def visit(point: tuple[PyTree, PyTree], most: Any) -> tuple[tuple[PyTree, PyTree], dict[str, Any]]:
        """Solve at y, with at most that many products for the Newton step, and return y after it."""
        y, v = point
        f, gradient = problem.oracles.outer_gradients(x, y, data), problem.oracles.inner_gradient(x, y, data)
        system = system_at(y, f.y, gradient)
        sides = [(system.b, v, jnp.int32(SOLVE)), (gradient, tree.zeros_like(y), most)][: 1 + newton]
        # One after the other through one loop: a program with a product written once is compiled sooner.
        stacked = jax.tree.map(lambda *both: jnp.stack(both), *sides)
        solutions, began, left, products = lax.map(partial(_solve, system.inner.hessian), stacked)
        v, newton_step = (jax.tree.map(itemgetter(k), solutions) for k in (0, -1))
        cross = system.inner.cross(v)
        found = {
            "h": tree.sub(f.x, cross),
            "doubt": left[0] * tree.norm(cross),  # a bound on the error of h
            "value": f.value,
            "residual": began[0],  # of the adjoint system where the solve started
            "distance": tree.norm(newton_step),
            "gradient": tree.norm(gradient),
            "outer": tree.norm(f.y),
            "silent": _silent(f.y),
            "products": jnp.sum(products),
        }
        return (tree.sub(y, newton_step) if newton else y, v), found

    v = at.v if "v" in solver.variables else tree.zeros_like(at.y)
    rounds = jnp.array([SOLVE, 0][: 1 + newton], jnp.int32)
    _, visits = lax.scan(visit, (at.y, v), rounds)
    here, there = (jax.tree.map(itemgetter(k), visits) for k in (0, -1))
    # A projection or a threshold makes K singular, but its steps still use ∇²_yy g.
    bare = problem.oracles.curvature(x, at.y, data)
    K = bare if rule.constrained else system_at(at.y, tree.zeros_like(at.y)).inner
    seen |= {
        "ritz": tridiagonal(K.hessian, at.y, LANCZOS),
        "free": free,
        "hypergradient_error": _relative(info.hypergradient, here["h"], here["doubt"]),
        "implicit_hypergradient": tree.norm(there["h"]),
        "outer_gradient": here["outer"],
        "outer_silent": here["silent"],
        "inner_value": problem.g(x, at.y, data),
        "adjoint_step": present_step(solver, "adjoint", state, info.inner_gradient),
        "calls": LANCZOS + 4 * len(rounds) + jnp.sum(visits["products"]),
    }
    if "v" in solver.variables:
        seen["adjoint_residual"] = here["residual"]
    doubt = there["doubt"]
    if newton:
        known = lambda value: jnp.where(there["gradient"] <= 0.5 * here["gradient"], value, jnp.nan)
        seen["inner_distance"] = known(here["distance"])
        seen["inner_error"] = known(_relative(here["h"], there["h"], here["doubt"] + doubt))
        seen["solved_value"] = known(there["value"])
        doubt = known(doubt)
    return _compared(seen, before, Point(x, there["h"]), doubt)


def look_beside(solver: Solver, state: Any, batch: Any, whole: bool) -> dict[str, Any]:
    """Measure the gradients at a nearby point: there, a flat function has none, unlike a stationary point."""
    oracles, data = solver.problem.oracles, draws(batch)[0]
    # The distances differ, as g may be a function of y − x.
    far = {"x": BESIDE / 3, "y": BESIDE}
    beside = {
        name: jax.tree.map(partial(_aside, far.get(name, BESIDE / 2)), getattr(state, name))
        for name in solver.variables
    }
    x, y = beside["x"], beside["y"]
    g, f = oracles.inner_gradients(x, y, data), oracles.outer_gradients(x, y, data)
    here, there = (solver.step(s, batch)[1].hypergradient for s in (state, state._replace(**beside)))
    # If f is flat, all of the hypergradient is due to v.
    alive = jnp.any(jnp.stack([jnp.any(leaf) for leaf in jax.tree.leaves((f.x, f.y))]))
    # A direction without a pattern is no symmetry of g, such as the one of logits.
    along = jax.tree.map(lambda a: jnp.cos(jnp.arange(1, a.size + 1, dtype=a.dtype)).reshape(a.shape), y)
    # A rule that cannot be tried, or has no fixed point, may move y everywhere.
    rest = lambda: fixed_point(solver.problem, without_map(inner_rule(solver, x)), y)
    active = jax.tree.broadcast(attempt(rest, default=GRADIENT_ZERO).active, y)
    part = jax.tree.map(lambda a, moving: a * jnp.asarray(moving, a.dtype), along, active)
    if solver.second_order:
        linear = oracles.linearize(x, y, data)
        turns, curvature = linear.cross(along), tree.norm(linear.hessian(along))
        held = jnp.any(moves(turns)) & ~jnp.any(moves(linear.cross(part)))
    else:
        turns, curvature, held = g.x, jnp.nan, ~jnp.any(moves(part))
    return {
        "inner_beside": tree.norm(g.y),
        "outer_beside": tree.norm(f.y),
        "x_beside": tree.norm((g.x, f.x)),
        "hypergradient_beside": jnp.where(alive, tree.norm(there), 0),
        "hypergradient_largest": jnp.max(
            jnp.stack([jnp.max(jnp.abs(a), initial=0) for a in jax.tree.leaves(here)])
        ),
        "curvature_beside": curvature,
        "held": held,
        "stepwise": _is_stepwise(solver, state, g.y, y),
        "silent_beside": _silent(f.y),
        "x_moves": jnp.stack([moves(f.x), moves(turns)]).any(0),
    }


def _is_stepwise(solver: Solver, state: Any, gradient: PyTree, y: PyTree) -> jax.Array:
    """Return whether the method differentiates an inner step that moves y and has a derivative of zero."""

    def look() -> jax.Array:
        (after, moving), pull_back, _ = update(solver.inner_at(state.x), gradient, state.inner, y, None)
        slope = pull_back((tree.ones_like(after), tree.zeros_like(moving)))[0]
        return (tree.norm(tree.sub(after, y)) > 0) & (tree.norm(slope) == 0)

    never = jnp.array(False)
    return attempt(look, default=never) if solver.traits.differentiates_rule else never


def _aside(far: float, leaf: jax.Array) -> jax.Array:
    """Return the array with entries moved up and down in turn, by more than rounding."""
    turns = jnp.where(jnp.arange(leaf.size).reshape(leaf.shape) % 2, 1, -1).astype(leaf.dtype)
    far *= max(1.0, 8e3 * float(jnp.finfo(leaf.dtype).eps))
    return leaf + (turns * far * (1 + jnp.abs(leaf))).astype(leaf.dtype)


def _of_step(solver: Solver, state: Any, info: Any, whole: bool, before: Point) -> dict[str, Any]:
    """Measure the step itself, and how far x has moved since the last look."""
    outer, h, metrics = solver.rule("outer"), info.hypergradient, info.metrics
    noisy = not whole or "key" in solver.wants
    came = moves(jax.tree.map(lambda a, b: jnp.abs(a - b) > 0, state.x, before.x))  # false if unknown (NaN)
    # A method with its own projection measures this itself.
    own = metrics.get("stationarity", tree.norm(h)) if outer is None else outer.stationarity(state.x, h)
    return {
        "inner_residual": tree.norm(info.inner_gradient),
        "stationarity": own,
        "outer_value": info.outer_value,
        "x_norm": tree.norm(state.x),
        "moved": tree.norm(tree.sub(state.x, before.x)),
        "inner_step": present_step(solver, "inner", state, info.inner_gradient),
        "outer_step": present_step(solver, "outer", state, h),
        # Few batches are looked at; rare rows may be in none of them.
        "x_moves": moves(h) | (noisy & came),
        "noisy": noisy,
        "calls": 0,  # extra gradients and products
    }


def _solve(K: Product, side: tuple[PyTree, PyTree, Any]) -> tuple[PyTree, Scalar, Scalar, Any]:
    """Solve K v = b by conjugate gradients from v.

    Return v, its first and its last residual relative to ‖b‖, and the number of products. The last residual
    is NaN if it is of no use, as when K is not positive definite.
    """
    b, v, most = side
    size, rest = tree.norm(b), tree.sub(b, K(v))
    least = 1e-6 if size.dtype == jnp.float64 else 1e-5
    found = truncated_cg(K, rest, jnp.clip(0.1 * tree.norm(rest), least * size, TOL * size), most)
    v = tree.add(v, found.solution)
    left = tree.norm(tree.sub(b, K(v))) / size
    left = jnp.where(~found.flat & (left <= SOLVED), left, jnp.nan)
    return v, tree.norm(rest) / size, left, found.products + 2


def _silent(gradient: PyTree) -> jax.Array:
    """Return the share of numbers in arrays where the gradient is zero throughout."""
    leaves = jax.tree.leaves(gradient)
    silent = jnp.stack([jnp.where(jnp.any(a), 0, a.size) for a in leaves])
    return jnp.sum(silent) / sum(a.size for a in leaves)


def _relative(a: PyTree, b: PyTree, doubt: Scalar) -> Scalar:
    """Return ‖a − b‖/‖b‖, or NaN if b is hardly larger than the bound on its error."""
    size = tree.norm(b)
    return jnp.where(size > 5 * doubt, tree.norm(tree.sub(a, b)) / size, jnp.nan)


def _compared(seen: dict[str, Any], before: Point, here: Point, doubt: Scalar) -> Look:
    """Add the hypergradient's rate of change since the last look; a lower bound on L_Φ if exact.

    Also return a copy of the point, as the arrays of the run may be donated to its next chunk.
    """
    turned, moved = tree.norm(tree.sub(here.h, before.h)), tree.norm(tree.sub(here.x, before.x))
    rounding = 1e3 * float(jnp.finfo(moved.dtype).eps) * tree.norm(here.x)
    fine = (turned > 10 * doubt) & (moved > rounding)
    secant = jnp.where(fine, turned / jnp.where(fine, moved, 1), jnp.nan)
    return seen | {"outer_curvature": secant}, jax.tree.map(jnp.copy, here)
