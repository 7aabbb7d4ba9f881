"""Reasons why the last steps did not move x: convergence, small steps, or no connection with f."""

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.batch import draws
from bilevel.loop.diagnose.measurements import look_beside
from bilevel.loop.diagnose.messages import say, why_zero
from bilevel.loop.diagnose.scene import Scene
from bilevel.loop.diagnose.steps import attempt
from bilevel.loop.finite import NORM
from bilevel.loop.trace import STEP
from bilevel.types import PyTree

BEGUN = 3  # steps; an estimate of zero before y and v have moved has no meaning
FALLEN = 1e-3  # of the largest hypergradient of the run: x has converged
ROUNDING = 16  # times the precision of x: the same, if x has few bits


def small_share(x: PyTree) -> float:
    """Return the share of the largest hypergradient that is no more than rounding in x."""
    return max(FALLEN, ROUNDING * max(float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(x)))


def standstill(scene: Scene, count: int, largest: float) -> tuple[str, bool]:
    """Judge the last `count` steps, which did not move x: a note for the status, and whether x has converged.

    `largest` is the largest stationarity measure of all steps, also of steps without a row in the trace.
    """
    trace, noisy = scene.trace, scene.noisy
    constrained = "stationarity" in trace
    name = "stationarity measure" if constrained else "estimated hypergradient"
    values = np.asarray(trace["stationarity" if constrained else NORM], float)
    now = values[-1] if STEP in trace or not noisy else values[-count:].max()
    if not np.isfinite(now):
        return say("still_not_finite", count=count, name=name), False
    if largest == 0:
        if constrained and np.any(trace[NORM]):
            return say("on_boundary"), True
        if sentence := never_moved(scene):
            return sentence, False
        doubtful = noisy or not _beside(scene)
        return (say("not_moved"), False) if doubtful else (say("started_stationary"), True)
    small = small_share(scene.run.x)
    if noisy and now <= small * largest:
        return say("still_on_batches", count=count, name=name, norm=now), False
    on_the_way = now if now > 0 else values[values > 0][-1:].sum()  # the last value before zero
    if not 0 < on_the_way <= small * largest:
        beside = _beside(scene).get("hypergradient_beside", np.nan)
        if now == beside == 0:
            return say("still_zero", count=count, name=name), False
        if now > 0 and not now <= small * beside:
            kinds = " and ".join(dict.fromkeys(str(leaf.dtype) for leaf in jax.tree.leaves(scene.run.x)))
            return say("steps_too_small", count=count, name=name, norm=now, kinds=kinds), False
    return say("converged", count=count, name=name, largest=largest, norm=now), True


def never_moved(scene: Scene) -> str:
    """Explain a hypergradient that was zero at every step, if it is also zero at a nearby point; else return ""."""
    found = {} if scene.step < BEGUN else _beside(scene)
    if not found or (found["hypergradient_beside"] != 0 and found["hypergradient_largest"] == 0):
        return ""
    why = attempt(_underflow, scene) if found["outer_beside"] == 0 else None
    return say("never_moved", why=why or why_zero(found))


def _beside(scene: Scene) -> dict[str, float]:
    """Return the measurements of `look_beside` at the present state, or {} if they are impossible."""
    if not scene.alone:  # the other processes may see no reason to measure
        return {}
    found = attempt(lambda: jax.device_get(scene.measure(look_beside)), default={})
    return {name: float(value) for name, value in found.items() if np.ndim(value) == 0}


def _underflow(scene: Scene) -> str | None:
    """Report a gradient of f that is nonzero in float64 but zero in the dtype of the variables."""
    if scene.stream is None:
        return None
    run, solver = scene.run, scene.solver
    kind = jnp.result_type(*jax.tree.leaves((run.x, run.y)))
    batch = draws(scene.batch())[solver.traits.outer_draw % solver.draws]
    wide = lambda leaf: leaf.astype(jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        x, y, data = jax.tree.map(wide, (run.x, run.y, batch))
        slopes = jax.grad(lambda x, y: solver.problem.f(x, y, data), (0, 1))(x, y)
        largest = max(float(jnp.max(jnp.abs(leaf), initial=0)) for leaf in jax.tree.leaves(slopes))
    least = float(jnp.finfo(kind).tiny)
    return say("underflow", largest=largest, kind=kind, least=least) if 0 < largest < least else None
