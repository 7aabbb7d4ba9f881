"""Bilevel optimisation without step sizes: every one is measured while the method runs."""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.batch import Batch, Draws, first
from bilevel.checks import check_positive, prepare
from bilevel.problem import Problem
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.ingredients.trees import divide, scaled, select
from bilevel.types import Number, PyTree, Scalar

FIRST_POWER_ITERATIONS = 10  # before the first step, so that it is not taken blindly


class TuningFreeState(NamedTuple):
    x: PyTree
    y: PyTree
    v: PyTree
    start: PyTree  # x_0
    distance: Scalar  # r_k, the farthest that x has been from x_0
    accumulated: Scalar  # Σ‖h_i‖²
    probe: PyTree  # p_k, towards the Hessian's leading eigenvector
    curvature: Scalar  # L_k, the largest curvature of g so far


class TuningFree(Solver):
    scale: Number
    name: ClassVar[str] = "tuning-free"
    outer_at: ClassVar[str] = "start"
    variables: ClassVar[tuple[str, ...]] = ("x", "y", "v")

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | None = None) -> TuningFreeState:
        x, y = prepare(self.problem, x0, y0, batch)
        hessian = self.problem.oracles.linearise(x, y, batch).hessian
        probe = tree.random_like(jax.random.key(0), y)  # any direction that has not been chosen to be special
        probe = scaled(1 / tree.norm(probe), probe)
        iterate = lambda probe, _: (power_iteration(hessian, probe)[0], None)
        probe, _ = lax.scan(iterate, probe, length=FIRST_POWER_ITERATIONS)
        in_x, in_y = (jnp.zeros((), tree.norm(t).dtype) for t in (x, y))
        distance = jnp.asarray(self.scale, in_x.dtype)
        return TuningFreeState(x, y, tree.zeros_like(y), x, distance, in_x, probe, in_y)

    def step(self, state: TuningFreeState, batch: Batch | None = None) -> tuple[TuningFreeState, Info]:
        x, y, v, oracles = state.x, state.y, state.v, self.problem.oracles
        g, f = oracles.linearise(x, y, batch), oracles.outer_gradients(x, y, batch)
        residual = tree.sub(g.hessian(v), f.y)
        hypergradient = tree.sub(f.x, g.cross(v))

        probe, curvature_here = power_iteration(g.hessian, state.probe)
        curvature = jnp.maximum(state.curvature, curvature_here)
        inner_step = divide(1, curvature)
        distance = jnp.maximum(state.distance, tree.norm(tree.sub(x, state.start)))
        accumulated = state.accumulated + tree.norm(hypergradient, squared=True)
        outer_step = divide(jnp.sqrt(scaled(self.scale, distance)), jnp.sqrt(accumulated))

        y = tree.sub(y, scaled(inner_step, g.gradient))
        v = tree.sub(v, scaled(inner_step, residual))
        x = tree.sub(x, scaled(outer_step, hypergradient))
        state = TuningFreeState(x, y, v, state.start, distance, accumulated, probe, curvature)
        metrics = {"inner_step_size": inner_step, "outer_step_size": outer_step}
        return state, Info(f.value, hypergradient, g.gradient, metrics)

    def warm_up(self, state: TuningFreeState, batch: Batch | Draws | None = None) -> TuningFreeState:
        g = self.problem.oracles.linearise(state.x, state.y, first(batch))
        probe, curvature_here = power_iteration(g.hessian, state.probe)
        curvature = jnp.maximum(state.curvature, curvature_here)
        y = tree.sub(state.y, scaled(divide(1, curvature), g.gradient))
        return state._replace(y=y, probe=probe, curvature=curvature)


def tuning_free(problem: Problem, *, scale: Number = 1.0) -> TuningFree:
    """One step on each of y, v and x, all from the same point, with step sizes found on the way:

        L_k     = max(L_{k−1}, ‖∇²_yy g p_k‖)              p_{k+1} = ∇²_yy g p_k / ‖∇²_yy g p_k‖
        y_{k+1} = y_k − ∇_y g / L_k
        v_{k+1} = v_k − (∇²_yy g v_k − ∇_y f) / L_k
        x_{k+1} = x_k − √(s r_k) h_k / (Σ_{i≤k} ‖h_i‖²)^½       h_k = ∇_x f − ∇²_xy g v_k
                                                            r_k = max(s, max_{i≤k} ‖x_i − x_0‖)

    In the spirit of S-TFBO (Yang, Ban, Huang, Ma, Ji, "Tuning-free bilevel optimization", ICLR 2025; here as
    [`s_tfbo`][bilevel.s_tfbo]), whose step sizes are inverses of accumulated gradient norms. Those carry
    units: multiply f, g or y by a thousand and its speed changes a thousandfold or more. The differences here:

    * y and v use the accumulated *curvature*, by one power iteration a step, so that the iterates of x are exactly
      the same whatever the units of f, g and y.
    * x keeps the accumulated norm, which lets it recover from any overshoot: a hypergradient that grows shrinks
      the step for good. The numerator grows with the square root of the distance travelled (Ivgi, Hinder,
      Carmon, "DoG is SGD's best friend", ICML 2023, have the distance itself), so that a small `scale` does not hold x
      back for long; the full distance would undo the recovery, as it grows as fast as the norms do.

    With noisy batches x settles, as its steps shrink, while y and v keep a floor set by their fixed steps.

    Args:
        problem: the two objectives.
        scale: s, a rough size for changes of x, good to a few orders of magnitude.
    """
    check_positive(scale, "scale")
    return TuningFree(problem, scale)


def power_iteration(hessian: Callable[[PyTree], PyTree], probe: PyTree) -> tuple[PyTree, Scalar]:
    """The next direction, and the curvature along this one."""
    image = hessian(probe)
    size = tree.norm(image)
    return select(size > 0, scaled(divide(1, size), image), probe), size
