"""Causes of a divergence, measured at the last finite state of the run."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from optax import tree

from bilevel.batch import draws, first
from bilevel.loop.diagnose.measurements import LANCZOS
from bilevel.loop.diagnose.messages import MOVES, PARTS, beyond, large_step, say
from bilevel.loop.diagnose.scene import Scene
from bilevel.loop.diagnose.steps import attempt, climbing_levels, constant_step, faulty_maps
from bilevel.loop.finite import FAR, grown, run_away
from bilevel.loop.state import RunState
from bilevel.loop.status import Cause
from bilevel.problem import Problem
from bilevel.solvers.base import Solver
from bilevel.solvers.messages import sentence
from bilevel.solvers.parts.ritz import ritz_values, tridiagonal
from bilevel.solvers.parts.trees import all_finite
from bilevel.solvers.parts.unroll import update
from bilevel.types import PyTree

NEAR = 0.9  # of 2/L: a longer plain step is suspected, as L may be larger elsewhere on the way
SHARES = 10.0 ** np.arange(-38, 1, 2)  # of the path on which y has run away, on a part of which g is finite
UNBOUNDED = 1e3  # times its size at the beginning: an objective that falls so far has no lower bound
DOWN = 1e-3  # of L: more negative curvature than that is no rounding
ROWS = 5  # of the trace, along which f falls to the end


def cause(scene: Scene) -> Cause:
    """Return the cause of a divergence: a faulty function, a fact from the solver, or a large step.

    Where a variable has run away, an objective overflows because of that size. It is not faulty.
    """
    away = scene.large()
    faults = () if away else (_faulty_objective, _faulty_map, _faulty_rule)
    for find in (*faults, _climbing_rule):
        if (found := attempt(find, scene)) is not None:
            return found
    if known := scene.suspicion() or sentence(scene.solver.indefinite(scene.recent())):
        return Cause(known)
    why = attempt(_large_steps, scene, default=Cause())
    if why.levels:
        return why
    found = attempt(_unbounded_g, scene, away) or _unbounded_f(scene, away)
    if found is None and not scene.warmup and (found := attempt(_negative_curvature, scene)):
        found = found._replace(shrink=why.shrink)
    return found or why


def why_risen(scene: Scene) -> str:
    """Return why a finite outer value has blown up: a fact from the solver, or a rule that climbs."""
    return scene.suspicion() or (attempt(_climbing_rule, scene) or Cause()).sentence


def blameworthy(scene: Scene, given: Any = None) -> bool:
    """Return whether an objective is not finite on a batch of the next step, because of its data.

    The objectives are called at the present state, or at an earlier one if a variable has run away.
    """
    solver, at = scene.solver, scene.before()[1] if scene.large() else scene.run
    if grown(solver, at):  # anything may overflow there
        return False

    def is_finite() -> bool:
        call, batches = solver.problem.compiled(_finite, False), draws(scene.batch(given))
        points = at.x, solver.sets_out(at.solver), at.y
        return all(bool(call(*points, batches[i]).all()) for i in range(solver.draws))

    return not attempt(is_finite, default=False)


def _faulty_objective(scene: Scene) -> Cause | None:
    """Find the first function that is not finite on the next batch, at the present state or at the next y."""
    solver, run = scene.solver, scene.run
    call = solver.problem.compiled(_finite, solver.second_order and not scene.warmup)
    for ahead, at in ((False, run), (True, scene.after())):
        if ahead and (
            "y" in grown(solver, at) + run_away(solver, at, scene.before()[1]) or not all_finite(at.y)
        ):
            continue
        fine = list(np.asarray(call(run.x, solver.sets_out(at.solver), at.y, first(scene.batch()))))
        if not all(fine):
            kinds = sorted({str(leaf.dtype) for leaf in jax.tree.leaves((run.x, run.y))})
            where = "at the y of its next step" if ahead else "at that state"
            no_cure = "" if ahead else ", and smaller steps cannot help"
            part = PARTS[fine.index(False)]
            sentence = say("not_finite", part=part, where=where, kinds=" and ".join(kinds), no_cure=no_cure)
            return Cause(sentence, curable=ahead)
    return None


def _faulty_map(scene: Scene) -> Cause | None:
    """Find a projection or a proximal map that makes NaN of a finite point."""
    solver, run = scene.solver, scene.run
    for level, (ahead, at_once) in solver.compiled(faulty_maps)(run.solver, scene.batch()).items():
        if ahead or at_once:
            variable, proximal = MOVES[level], level == "inner" and solver.problem.prox is not None
            name = "the problem's proximal map prox" if proximal else f"the projection of the {level} rule"
            where = f"at this {variable}" if at_once else f"at the {variable} of the next steps"
            sentence = say("faulty_map", map=name, variable=variable, where=where)
            return Cause(sentence, curable=not at_once, variable=variable)
    return None


def _faulty_rule(scene: Scene) -> Cause | None:
    """Report a hypergradient that is not finite because the inner rule has no finite derivative."""
    if scene.warmup or not scene.solver.traits.differentiates_rule:
        return None
    found, step, slope = scene.solver.compiled(_finite_rule)(scene.run.solver, scene.batch())
    return Cause(say("no_slope"), curable=False) if step and not (found or slope) else None


def _climbing_rule(scene: Scene) -> Cause | None:
    """Find a rule whose steps climb, for example by a schedule that has become negative."""
    found = scene.solver.compiled(climbing_levels)(scene.run.solver)
    level = next((level for level, climbs in found.items() if climbs), None)
    return None if level is None else Cause(say("climbs", level=level), variable=MOVES[level])


def _large_steps(scene: Scene) -> Cause:
    """Find plain steps on y or v above the limit 2/L, where L is the curvature of g in y."""
    solver, levels = scene.solver, ("inner",) if scene.warmup else ("inner", "adjoint")
    sizes = {level: constant_step(solver, level) for level in levels}
    known = {level: size for level, size in sizes.items() if size is not None}
    step, before = scene.before()  # when sizes may still have been normal
    batch = first(scene.batch())

    def curvature(run: RunState, x: PyTree) -> float:
        spectrum = solver.problem.compiled(_spectrum)
        return ritz_values(*spectrum(x, solver.sets_out(run.solver), batch))[-1]

    def longer(share: float, L: float) -> dict[str, float]:
        return {level: size for level, size in known.items() if not size * L <= share * 2}

    L = curvature(before, before.x) if known else np.nan
    if not np.isfinite(L) or L <= 0:
        return Cause()
    if large := longer(1.0, L):
        sentence = large_step(large, L, f"at step {step}", close=not longer(1 / NEAR, L))
        return Cause(sentence, tuple(large), shrink="lower", variable=MOVES[next(iter(large))])
    if longer(NEAR, L):
        return Cause(shrink="lower")
    if len(known) < len(sizes) or solver.traits.penalized:
        return Cause(shrink="all")
    if not longer(NEAR, curvature(scene.run, scene.run.x)):
        return Cause(shrink="outer")
    # Steps on y or v that were short enough may be too long at the last x, even with the earlier y.
    level = max(known, key=lambda name: known[name])
    size, now = known[level], curvature(before, scene.run.x)
    if not (np.isfinite(now) and size * now > 2):
        return Cause(shrink="mostly outer")
    sentence = say("led_to_large_step", beyond=beyond(level, size, now), step=step, earlier=2 / L)
    return Cause(sentence, shrink="mostly outer")


def _unbounded_g(scene: Scene, away: list[str]) -> Cause | None:
    """Report a g that falls without end along the path of y."""
    step, before = scene.before()
    if "y" not in (*away, *run_away(scene.solver, scene.run, before)):
        return None
    call, start = scene.solver.problem.compiled(_values_on_the_way), scene.solver.sets_out(before.solver)
    values = np.asarray(call(before.x, start, scene.run.y, first(scene.batch())), float)
    if not _falls_without_end(values):
        return None
    end = values[np.isfinite(values)].min()
    return Cause(say("unbounded_g", step=step, start=values[0], end=end), variable="y")


def _unbounded_f(scene: Scene, away: list[str]) -> Cause | None:
    values = np.asarray(scene.trace["outer_value"], float)
    finite = values[np.isfinite(values)]
    falls = len(finite) >= ROWS and (np.diff(finite[-ROWS:]) < 0).all() and _falls_without_end(finite)
    return Cause(say("unbounded_f", start=values[0], end=values[-1])) if away and falls else None


def _negative_curvature(scene: Scene) -> Cause | None:
    """Report directions in which g curves downwards, if they explain the growth of v by plain steps."""
    solver, run, (step, before) = scene.solver, scene.run, scene.before()
    size = constant_step(solver, "adjoint") if "v" in solver.variables else None
    if not size or tree.norm(run.solver.v) <= FAR * max(tree.norm(before.solver.v), 1.0):
        return None
    batch = first(scene.batch())
    values = ritz_values(*solver.problem.compiled(_spectrum)(before.x, solver.sets_out(before.solver), batch))
    mu, L = float(values[0]), float(values[-1])
    growth = (scene.step - step) * np.log1p(size * max(-mu, 0.0))
    if not (mu < -DOWN * abs(L) and growth > np.log(FAR)):
        return None
    return Cause(say("negative_curvature", step=step, mu=mu, L=L), variable="v")


def _falls_without_end(values: np.ndarray) -> bool:
    """Return whether values fall far below the first one, and fastest at the end."""
    start, rest = values[0], values[1:][np.isfinite(values[1:])]
    bound = start - UNBOUNDED * max(abs(start), 1.0)
    return bool(len(rest) > 2 and rest[-1] < bound and rest[-1] < rest[-2] < rest[-3])


# Compiled functions


def _finite(problem: Problem, second: bool, x: PyTree, y: PyTree, y_outer: PyTree, batch: Any) -> jax.Array:
    """Return whether values and gradients are finite, and `second` derivatives at both ends of the y steps."""
    g = problem.oracles.inner_gradients(x, y, batch)
    f = problem.oracles.outer_gradients(x, y_outer, batch)
    trees: list[Any] = [g.value, (g.x, g.y), f.value, (f.x, f.y)]
    if second:  # products of ∇²_yy g and ∇²_xy g with a vector
        ones = tree.ones_like(y)
        at = [problem.oracles.linearize(x, point, batch) for point in (y, y_outer)]
        trees.append([(linear.hessian(ones), linear.cross(ones)) for linear in at])
    return jnp.stack([all_finite(each) for each in trees])


def _finite_rule(solver: Solver, state: Any, batch: Any) -> tuple[Any, ...]:
    """Return whether the hypergradient, the inner rule's step and its vector-Jacobian product are finite."""
    x, y = state.x, solver.sets_out(state)
    gradient = solver.problem.oracles.inner_gradient(x, y, first(batch))
    (after, moving), pull_back, _ = update(solver.inner_at(x), gradient, state.inner, y, None)
    cotangents = pull_back((tree.ones_like(after), tree.zeros_like(moving)))
    return all_finite(solver.step(state, batch)[1].hypergradient), all_finite(after), all_finite(cotangents)


def _spectrum(problem: Problem, x: PyTree, y: PyTree, batch: Any) -> tuple[jax.Array, jax.Array]:
    return tridiagonal(problem.oracles.linearize(x, y, batch).hessian, y, LANCZOS)


def _values_on_the_way(problem: Problem, x: PyTree, y: PyTree, end: PyTree, batch: Any) -> jax.Array:
    """Return g at (x, y), and at growing shares of the way from y to `end`."""
    way = tree.sub(end, y)
    at = lambda share: problem.g(x, jax.tree.map(lambda a, b: a + share.astype(a.dtype) * b, y, way), batch)
    return jnp.append(problem.g(x, y, batch), lax.map(at, jnp.asarray(SHARES, float)))
