"""Why the last steps did not move x: it has converged, its steps are too small, or nothing connects it with f."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.batch import draws
from bilevel.loop.diagnose.context import small_share
from bilevel.loop.diagnose.measurements import look_beside
from bilevel.loop.diagnose.scene import Scene
from bilevel.loop.finite import NORM
from bilevel.loop.trace import STEP

BEGUN = 3  # steps; an estimate of zero before y and v have moved says nothing
QUESTION = "Does f depend on x, or ∇_y g on x, at all?"


class Standstill(NamedTuple):
    """What the status says of an x that no longer moves, and whether that is convergence."""

    sentence: str = ""
    converged: bool = False


def standstill(scene: Scene, count: int, largest: float) -> Standstill:
    """Judge the last `count` steps, which did not move x.

    `largest` is the largest stationarity measure of all steps, also of those that have no row in the trace.
    """
    trace = scene.trace
    constrained = "stationarity" in trace
    name = "stationarity measure" if constrained else "estimated hypergradient"
    values = np.asarray(trace["stationarity" if constrained else NORM], float)
    noisy = scene.noisy
    now = values[-1] if STEP in trace or not noisy else values[-count:].max()
    still = f" The last {count:,} steps no longer moved x"
    if not np.isfinite(now):
        return Standstill(
            f"{still}: the {name} has a norm that is not finite. Scale f down, or compute with more bits "
            '(jax.config.update("jax_enable_x64", True)).'
        )
    if largest == 0:
        return _from_the_start(scene, constrained and bool(np.any(trace[NORM])), noisy)
    small = small_share(scene.run.x)
    if noisy and now <= small * largest:
        return Standstill(f"{still}; on their batches the {name} was at most {now:.3g}.")
    on_the_way = now if now > 0 else values[values > 0][-1:].sum()  # what zero was reached from
    if not 0 < on_the_way <= small * largest:
        beside = _beside(scene).get("hypergradient_beside", np.nan)
        if now == beside == 0:
            return Standstill(
                f"{still}: the {name} has become exactly zero, and it is zero a little aside too. `diagnose=True` "
                "looks for the reason."
            )
        if now > 0 and not now <= small * beside:
            return Standstill(
                f"{still}, though the {name} is {now:.3g}: the outer steps are too small to change x in "
                f"{_kinds(scene.run.x)}, or their schedule has ended. Raise the outer step size."
            )
    return Standstill(
        f" x has converged to rounding: the last {count:,} steps did not change it, and the {name} fell from "
        f"{largest:.3g} to {now:.3g}.",
        converged=True,
    )


def _kinds(x: Any) -> str:
    return " and ".join(dict.fromkeys(str(leaf.dtype) for leaf in jax.tree.leaves(x)))


def _from_the_start(scene: Scene, projected: bool, noisy: bool) -> Standstill:
    """Of an x that has been stationary at every step."""
    if projected:
        return Standstill(
            " x has not moved: its projection undoes every step, as at a solution on the boundary of the set.",
            converged=True,
        )
    if sentence := never_moved(scene, 0.0):
        return Standstill(sentence)
    if noisy or not _beside(scene):
        return Standstill(
            " x has not moved: the estimated hypergradient is exactly zero at every step. Does f depend on x, or ∇_y g "
            "on x, at all, or did x start at a solution?"
        )
    return Standstill(
        " x has not moved: it started where the estimated hypergradient is exactly zero, as at a solution; a little "
        "aside it is not zero.",
        converged=True,
    )


def never_moved(scene: Scene, largest: float) -> str:
    """Why the hypergradient was zero at every step, if it was, and is so a little aside too; else ""."""
    if largest > 0 or scene.step < BEGUN:
        return ""
    found = _beside(scene)
    if not found or (found["hypergradient_beside"] != 0 and found["hypergradient_largest"] == 0):
        return ""
    why = _underflow(scene) if found["outer_beside"] == 0 else ""
    return f" x has never moved: the estimated hypergradient is exactly zero at every step. {why or why_zero(found)}"


def why_zero(found: Mapping[str, Any]) -> str:
    """Name what cuts x off from f, by what `look_beside` measured."""
    if found["hypergradient_largest"] > 0:
        return (
            f"Its entries are not zero, but at most {found['hypergradient_largest']:.2g}, so that their squares "
            "underflow: multiply f by a large number."
        )
    if found["held"]:
        return (
            "The inner rule does not move y, or not the part of y on which x acts (optax.set_to_zero, a mask, or a "
            "learning rate of 0?): pass a rule that does."
        )
    if found["curvature_beside"] == 0 and found["inner_beside"] > 0:
        return (
            "g is piecewise linear in y: its second derivatives are exactly zero, and only through them does x act on "
            "y. Make g smooth (for |y|, jnp.sqrt(y**2 + 1e-6)), or pass its non-smooth term as prox= (bl.prox.l1)."
        )
    if found["outer_beside"] == 0:
        return (
            "∇_y f is exactly zero too, and a little aside as well: does f depend on y, or are all margins of a hinge "
            "loss met, units dead, or its numbers so small that they underflow?"
        )
    return QUESTION


def _beside(scene: Scene) -> dict[str, float]:
    """What `look_beside` measures where the run stands; nothing where that cannot be measured."""
    if not scene.alone:  # the others may see no reason to measure
        return {}
    try:
        found = jax.device_get(scene.measure(look_beside))
    except Exception:  # a method that calls its objectives otherwise, or a loader without a batch
        return {}
    return {name: float(value) for name, value in found.items() if np.ndim(value) == 0}


def _underflow(scene: Scene) -> str:
    """Whether f has a gradient in float64 that is below the smallest number of the variables' own kind."""
    if scene.stream is None:
        return ""
    run, solver = scene.run, scene.solver
    kind = jnp.result_type(*jax.tree.leaves((run.x, run.y)))
    try:
        batch = scene.batch(scene.stream)
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            x, y, data = jax.tree.map(
                _wide, (run.x, run.y, draws(batch)[solver.traits.outer_draw % solver.draws])
            )
            slopes = jax.grad(lambda x, y: solver.problem.f(x, y, data), (0, 1))(x, y)
            largest = max(float(jnp.max(jnp.abs(leaf), initial=0)) for leaf in jax.tree.leaves(slopes))
    except Exception:  # an objective that cannot be called so
        return ""
    least = float(jnp.finfo(kind).tiny)
    if not 0 < largest < least:
        return ""
    return (
        f"f underflows: in float64 its gradient is {largest:.2g}, below the smallest number of {kind}, {least:.2g}. "
        "Multiply f by a large number, or compute in float64."
    )


def _wide(leaf: Any) -> Any:
    return leaf.astype(jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
