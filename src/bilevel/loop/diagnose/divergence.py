"""Why a run broke, as far as it can be measured at its last finite state."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from optax import tree

from bilevel.batch import draws, first
from bilevel.loop.diagnose.descent import (
    MOVES,
    f_falls,
    falls_without_end,
    faulty_maps,
    reversed_levels,
    values_on_the_way,
)
from bilevel.loop.diagnose.scene import Scene
from bilevel.loop.finite import grown, run_away
from bilevel.loop.state import RunState
from bilevel.loop.status import Cause
from bilevel.problem import Problem
from bilevel.solvers.adjoints.neumann_series import NeumannSeries
from bilevel.solvers.base import Solver
from bilevel.solvers.messages import sentence
from bilevel.solvers.parts.ritz import ritz_values, tridiagonal
from bilevel.solvers.parts.trees import all_finite
from bilevel.solvers.parts.unroll import update
from bilevel.solvers.rules import Descent, Rule
from bilevel.types import PyTree

PARTS = (
    "the inner objective g",
    "the gradient of the inner objective g, though not its value,",
    "the outer objective f",
    "the gradient of the outer objective f, though not its value,",
)
FLAT = (
    "the derivative of the inner rule, which this method goes through, is NaN or infinite at that very state, though "
    "its step is not: Adam and its like have an infinite slope where an entry of ∇_y g is exactly 0 (a dead unit, or "
    "what bfloat16 rounds to 0; there, pass eps_root=1e-8), and so has clipping by a norm where all entries are."
)
SECOND = "a second derivative of the inner objective g, though not its gradient,"
PRODUCTS = 24  # of Lanczos' method, with ∇²_yy g
NEAR = 0.9  # of 2/λ: from there on a plain step is suspected, as λ may be larger elsewhere on the way
FOLLOW = ("inner", "adjoint")  # the levels that follow ∇²_yy g


def cause(scene: Scene, large: list[str], warmup: bool = False) -> Cause:
    """An objective that is not finite where the run stands, what the method knows of itself, or a step too large.

    Where a variable has run away, its `large` size is the reason that an objective overflows, not the objective.
    """
    away = large or run_away(scene.solver, scene.run, scene.before()[1])
    if not away and (found := _faulty_objective(scene, warmup)):
        part, ahead = found
        kinds = {str(leaf.dtype) for leaf in jax.tree.leaves((scene.run.x, scene.run.y))}
        where = "where its next step takes y" if ahead else "at that very state"
        cure = "" if ahead else ", which no smaller step from there can mend"
        return Cause(
            f"{part} is NaN or infinite {where} (a logarithm, a root or a quotient at the edge of its domain, a label "
            f"that is no class, as of classes counted from 1, or numbers too large for {' and '.join(sorted(kinds))}?)"
            f"{cure}: look at it there, scale it down, or keep x and y away from such points.",
            curable=ahead,
        )
    if not away and (why := _faulty_map(scene)):
        return why
    if not (away or warmup) and _faulty_rule(scene):
        return Cause(FLAT, curable=False)
    if why := _climbs(scene):
        return why
    if known := scene.suspicion() or sentence(scene.solver.indefinite(scene.recent)):
        return Cause(known)
    why = _steps_too_large(scene, warmup)
    return why if why.levels else _unbounded(scene, away) or why


def why_risen(scene: Scene) -> str:
    """Return why a finite outer value has blown up: what the solver knows, or a rule that climbs."""
    why = scene.suspicion() or _climbs(scene)
    return why.sentence if isinstance(why, Cause) else why or ""


def _climbs(scene: Scene) -> Cause | None:
    """A rule whose steps lead up, as after a schedule that has become negative."""
    try:
        found = scene.solver.compiled(reversed_levels)(scene.run.solver)
    except Exception:  # a rule that asks for the objective, or a state that is made otherwise
        return None
    for level, climbing in found.items():
        if climbing:
            return Cause(
                f"the {level} rule steps along the gradient instead of against it, as with a negative learning rate: a "
                "schedule that falls below zero? Pass one that stays positive (optax.cosine_decay_schedule, or "
                "jnp.maximum(..., 0)).",
                variable=MOVES[level],
            )
    return None


def _faulty_map(scene: Scene) -> Cause | None:
    """A projection or a proximal map that makes NaN of a finite point."""
    solver, run = scene.solver, scene.run
    try:
        found = solver.compiled(faulty_maps)(run.solver, scene.batch(scene.given()))
    except Exception:  # a rule that asks for the objective, or a method that calls its objectives otherwise
        return None
    for level, (ahead, at_once) in found.items():
        if ahead or at_once:
            moves, proximal = MOVES[level], level == "inner" and solver.problem.prox is not None
            what = "the problem's proximal map prox" if proximal else f"the projection of the {level} rule"
            return Cause(
                f"{what} returns NaN or infinity, or has such a derivative, for a finite {moves}: test it "
                f"{'at this ' + moves if at_once else 'where the next steps lead ' + moves}, and let it return a "
                "finite point of the set for every input (a root, a quotient or a logarithm at the edge of its "
                "domain?).",
                curable=not at_once,
                variable=moves,
            )
    return None


def _unbounded(scene: Scene, away: list[str]) -> Cause | None:
    """An objective that falls without end along the way on which the run went."""
    solver, (step, before) = scene.solver, scene.before()
    try:
        if "y" in away:
            run, start = scene.run, solver.sets_out(before.solver)
            batch = first(scene.batch(scene.given()))
            g, values = solver.problem.compiled(values_on_the_way)(before.x, start, run.y, batch)
            if falls_without_end(float(g), np.asarray(values, float)[::-1]):
                return Cause(
                    f"g has no lower bound in y: with x as at step {step} it falls from {float(g):.3g} to "
                    f"{np.nanmin(np.where(np.isfinite(values), values, np.nan)):.3g} along the way that y ran. No step "
                    "size helps: add a ridge to g (0.5 * c * ‖y‖²), or bound y (bl.projected).",
                    variable="y",
                )
    except Exception:  # a method that calls its objectives otherwise
        pass
    values = np.asarray(scene.trace["outer_value"], float)
    if away and f_falls(values):
        return Cause(
            f"f has no lower bound: its value fell from {values[0]:.3g} to {values[-1]:.3g}, and x and y followed. No "
            "step size helps: add a term that grows with x to f, or bound x (bl.projected).",
        )
    return None


def _faulty_objective(scene: Scene, warmup: bool) -> tuple[str, bool] | None:
    """The first that is not finite on the next batch where the run stands; or else, where the next step takes y."""
    solver, run = scene.solver, scene.run
    try:
        batch, after = first(scene.batch(scene.given())), _ahead(scene, warmup)
        for ahead, at in ((False, run), (True, after)):
            if at is None or (ahead and _run_away(scene, at)):
                continue
            points = run.x, solver.sets_out(at.solver), at.y, batch
            fine = np.asarray(solver.problem.compiled(_finite)(*points))
            if not fine.all():
                return PARTS[int(np.argmin(fine))], ahead
            if solver.second_order and not warmup and not solver.problem.compiled(_finite_second)(*points):
                return SECOND, ahead
    except Exception:  # a method that calls its objectives otherwise, such as one over tasks
        pass
    return None


def _faulty_rule(scene: Scene) -> bool:
    """Whether the hypergradient is not finite, and has gone through an inner rule without a finite derivative."""
    solver, run = scene.solver, scene.run
    if not solver.traits.differentiates_rule:
        return False
    try:
        batch = scene.batch(scene.given())
        found, step, slope = solver.compiled(_finite_rule)(run.solver, batch)
        return bool(step) and not (bool(found) or bool(slope))
    except Exception:  # a rule that asks for the objective
        return False


def blameworthy(scene: Scene, since: RunState, given: Any) -> bool:
    """Whether an objective is not finite on a batch of the next step, which takes what is `given`: by the data's fault?

    Asked where the run stands, or, if a variable has run away since an earlier state, there.
    """
    solver, run = scene.solver, scene.run
    away = grown(scene.solver, run) or run_away(scene.solver, run, since)
    at = since if away else run
    if grown(scene.solver, at):  # where anything may overflow
        return False
    try:
        call = solver.problem.compiled(_finite)
        batches = draws(scene.batch(given, run))
        points = at.x, solver.sets_out(at.solver), at.y
        return not all(bool(call(*points, batches[i]).all()) for i in range(solver.draws))
    except Exception:  # a method that calls its objectives otherwise, or a loader that has no more batches
        return True


def _run_away(scene: Scene, run: RunState) -> bool:
    return "y" in grown(scene.solver, run) or "y" in run_away(scene.solver, run, scene.before()[1])


def _ahead(scene: Scene, warmup: bool) -> RunState | None:
    """The run after one more step, if its y is still finite."""
    after = scene.after(warmup)
    finite = all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(after.y))
    return after if finite else None


def _finite(problem: Problem, x: PyTree, y: PyTree, y_outer: PyTree, batch: Any) -> jax.Array:
    g = problem.oracles.inner_gradients(x, y, batch)
    f = problem.oracles.outer_gradients(x, y_outer, batch)
    return jnp.stack([all_finite(tree) for tree in (g.value, (g.x, g.y), f.value, (f.x, f.y))])


def _finite_rule(solver: Solver, state: Any, batch: Any) -> tuple[Any, ...]:
    """Whether the hypergradient is finite, the step of the inner rule, and what that makes of a cotangent."""
    x, y = state.x, solver.sets_out(state)
    gradient = solver.problem.oracles.inner_gradient(x, y, first(batch))
    (after, moving), pull_back, _ = update(solver.inner_at(x), gradient, state.inner, y, None)
    cotangents = pull_back((tree.ones_like(after), tree.zeros_like(moving)))
    return all_finite(solver.step(state, batch)[1].hypergradient), all_finite(after), all_finite(cotangents)


def _finite_second(problem: Problem, x: PyTree, y: PyTree, y_outer: PyTree, batch: Any) -> jax.Array:
    """Whether the products of ∇²_yy g and ∇²_xy g with a vector are finite, where the steps on y set out and end."""
    ones = tree.ones_like(y)
    at = [problem.oracles.linearize(x, point, batch) for point in (y, y_outer)]
    return all_finite([(g.hessian(ones), g.cross(ones)) for g in at])


def _steps_too_large(scene: Scene, warmup: bool) -> Cause:
    """Plain steps on y or v that lengthen what they should shorten, by the curvature of g in y."""
    solver = scene.solver
    sizes = {level: _step_size(solver, level) for level in (("inner",) if warmup else FOLLOW)}
    known = {level: size for level, size in sizes.items() if size is not None}
    try:
        measured = solver.problem.compiled(_tridiagonal)
        batch = first(scene.batch(scene.given()))
        at = lambda run, x=None: (
            ritz_values(*measured(run.x if x is None else x, solver.sets_out(run.solver), batch))[-1]
            if known
            else np.nan
        )
        step, before = scene.before()  # where all may still have been of ordinary size
        found = at(before)
        if not np.isfinite(found) or found <= 0:
            return Cause()
        beyond = lambda part, value: {
            level: size for level, size in known.items() if not size * value <= part * 2
        }
        large = beyond(1, found)
        if not large and beyond(NEAR, found):
            return Cause(shrink="lower")
        if not large:
            followed = len(known) == len(sizes) and not solver.traits.penalized
            doubt = followed and beyond(NEAR, at(scene.run))
            led = _led_there(step, known, found, at(before, scene.run.x)) if doubt else ""
            return Cause(led, shrink="all" if not followed else "mostly outer" if doubt else "outer")
    except Exception:  # a method that calls its objectives otherwise
        return Cause()
    named = " and ".join(f"the {level} step size {size:.3g}" for level, size in large.items())
    return Cause(
        f"lower {named} below 2/λ = {2 / found:.3g}, with λ = {found:.3g} the largest curvature of g in y at step "
        f"{step}: beyond that a step leads further away than it set out. "
        + (
            ""
            if beyond(1 / NEAR, found)
            else "It is not much above: where that is no cure, lower the outer one. "
        )
        + "bl.advise proposes step sizes.",
        tuple(large),
        shrink="lower",
        variable=MOVES[next(iter(large))],
    )


def _led_there(step: int, known: dict[str, float], was: float, now: float) -> str:
    """Steps on y or v that were small enough, and are not at the x of the end, even with the y of before."""
    level = max(known, key=lambda name: known[name])
    if not (np.isfinite(now) and known[level] * now > 2):
        return ""
    return (
        f"lower the outer step size, or bound x (bl.projected): it has led x to where the {level} step size "
        f"{known[level]:.3g} is above 2/λ = {2 / now:.3g}, with λ the largest curvature of g in y; at step {step} that "
        f"was {2 / was:.3g}. bl.advise proposes step sizes, and bl.sweep tries several."
    )


def _step_size(solver: Solver, level: str) -> float | None:
    """Of plain gradient descent or a Neumann series; 0 where the level has none, `None` for another rule."""
    part = solver.part(level)
    part = getattr(part, "rule", part)
    if isinstance(part, Descent):
        return float(part.step_size)
    if isinstance(part, NeumannSeries):
        return float(part.eta)
    if isinstance(part, Rule):
        return None
    return float(part) if isinstance(part, int | float | np.number | jax.Array) else 0.0


def _tridiagonal(problem: Problem, x: PyTree, y: PyTree, batch: Any) -> tuple[jax.Array, jax.Array]:
    return tridiagonal(problem.oracles.linearize(x, y, batch).hessian, y, PRODUCTS)
