"""HOAG: both inner solves to a tolerance that decreases along the run (Pedregosa 2016)."""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int
from optax import tree

from bilevel.batch import Batch
from bilevel.checks import (
    check_count,
    check_not_negative,
    check_positive,
    check_problem,
    check_schedule,
    prepare,
)
from bilevel.identity import Static
from bilevel.problem import Problem
from bilevel.solvers.adjoints.base import INDEFINITE, residual, with_damping
from bilevel.solvers.adjoints.conjugate_gradients import conjugate_gradients
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.fixed_points import adjoint_system, check_rests, residual as at_rest
from bilevel.solvers.parts.trees import nan_unless
from bilevel.solvers.rules import Rule, as_rule, descend
from bilevel.solvers.traits import Traits
from bilevel.types import Number, PyTree, Scalar, Schedule, StepSize

SMALLEST = 16  # roundings: no tolerance is below this many


class HOAGState(NamedTuple):
    x: PyTree  # x_{k+1}
    y: PyTree  # ŷ_k, the next warm start
    v: PyTree  # v̂_k, the next warm start
    inner: PyTree  # memory of the inner rule
    outer: PyTree  # memory of the outer rule
    scale: Scalar  # the largest ‖∇_y g‖ that a step has set out from: what the tolerance is relative to
    k: Int[Array, ""]


class HOAG(Solver):
    inner: Rule
    outer: Rule
    tolerance: Static = eqx.field(static=True)
    max_inner_steps: int = eqx.field(static=True)
    max_adjoint_steps: int = eqx.field(static=True)
    damping: Number
    name: ClassVar[str] = "HOAG"
    variables: ClassVar[tuple[str, ...]] = ("x", "y", "v")
    traits: ClassVar[Traits] = Traits(supports_prox=True)

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | None = None) -> HOAGState:
        x, y = prepare(self.problem, x0, y0, batch)
        check_rests(self, y)
        nothing = jnp.zeros((), tree.norm(y).dtype)
        memories = self.inner.init(y), self.outer.init(x)
        return HOAGState(x, y, tree.zeros_like(y), *memories, nothing, jnp.int32(0))

    def step(self, state: HOAGState, batch: Batch | None = None) -> tuple[HOAGState, Info]:
        x, problem, oracles = state.x, self.problem, self.problem.oracles
        dtype, rule = state.scale.dtype, self.inner_at(x)
        epsilon = jnp.asarray(self.tolerance.value(state.k.astype(dtype)), dtype)
        epsilon = jnp.maximum(epsilon, SMALLEST * float(jnp.finfo(dtype).eps))
        gradient = oracles.inner_gradient(x, state.y, batch)
        inner_gradient = at_rest(problem, rule, state.inner, state.y, gradient)
        scale = jnp.maximum(state.scale, tree.norm(inner_gradient))
        y, inner_memory, inner_steps = solve_inner(
            problem, rule, self.max_inner_steps, epsilon * scale, state, gradient, batch
        )

        g, f = oracles.curvature(x, y, batch), oracles.outer_gradients(x, y, batch)
        inner, b, lagrangian = adjoint_system(problem, rule, inner_memory, x, y, g, f.y, batch)
        inner = with_damping(inner, self.damping).shared()
        v, adjoint_steps, flat = conjugate_gradients(
            inner, b, state.v, epsilon * tree.norm(b), self.max_adjoint_steps
        )
        hypergradient = tree.sub(f.x, inner.cross(v))
        x, outer_memory = descend(self.outer, hypergradient, state.outer, x, lagrangian(v))

        metrics = {
            "tolerance": epsilon,
            "inner_steps": inner_steps,
            "adjoint_steps": adjoint_steps,
            "adjoint_residual": tree.norm(residual(inner, b, v)),
            INDEFINITE: flat,
        }
        state = HOAGState(x, y, v, inner_memory, outer_memory, scale, state.k + 1)
        return state, Info(f.value, hypergradient, inner_gradient, metrics)

    def remark(self, trace: dict[str, Any]) -> str:
        """Also that a solve was cut short by its limit, so that the hypergradient is not as accurate as asked for."""
        said = super().remark(trace)
        for level, cure in (("inner", "a larger inner step size"), ("adjoint", "a ridge in g")):
            limit, taken = getattr(self, f"max_{level}_steps"), np.asarray(trace.get(f"{level}_steps", ()))
            taken = taken[len(taken) // 2 :]
            if met := int(np.sum(taken >= limit)):
                said += (
                    f" In {met} of the last {len(taken)} steps the {level} solve took all of its max_{level}_steps="
                    f"{limit}, and may have missed its tolerance: raise that limit, or take {cure}, or a tolerance "
                    "that decreases more slowly."
                )
        return said


def quadratic_decrease(k: Any) -> Any:
    """ε_k = 0.1 / (k + 1)², one of the publication's summable sequences."""
    return 0.1 / (k + 1) ** 2


def hoag(
    problem: Problem,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    *,
    tolerance: Schedule = quadratic_decrease,
    max_inner_steps: int = 1000,
    max_adjoint_steps: int = 1000,
    damping: Number = 0.0,
) -> HOAG:
    """At every step, from the last solutions:

        ŷ_k:      steps of the inner rule until     ‖∇_y g(x_k, ŷ_k)‖ ≤ ε_k s_k
        v̂_k:      conjugate gradients until         ‖∇²_yy g(x_k, ŷ_k) v̂_k − b_k‖ ≤ ε_k ‖b_k‖    b_k = ∇_y f(x_k, ŷ_k)
        x_{k+1} = x_k − β (∇_x f(x_k, ŷ_k) − ∇²_xy g(x_k, ŷ_k) v̂_k)

    s_k is the largest ‖∇_y g‖ that a step has set out from, so that the tolerances do not depend on units; none is
    asked for below what rounding allows. With Σ ε_k < ∞ and β small enough x_k tends to a stationary point.

    The publication bounds ‖ŷ_k − y*‖ by ε_k; here, as in its authors' code, it is the gradient relative to the first,
    which can be measured. Their code takes the first gradient alone for s_k, multiplies CG's tolerance by the first
    ‖∇_y f‖, decreases ε_k = 0.01 · 0.9^k by default (`optax.exponential_decay(0.01, 1, 0.9)`), solves the inner problem
    by L-BFGS, clips x to a box and adapts β; here the rules decide, `bl.projected` among them.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        tolerance: the function k ↦ ε_k, positive and summable: any optax schedule will do.
        max_inner_steps: the number of steps on y to stop after, all on one draw, as they solve one problem; the
            trace's "inner_steps" shows whether it binds, and the status says so.
        max_adjoint_steps: the number of steps of conjugate gradients to stop after.
        damping: δ, for ∇²_yy g + δI in the adjoint system where g is not convex; it leaves a bias.
    """
    check_not_negative(damping, "damping")
    check_schedule(
        tolerance, jnp.zeros(()), lambda value: check_positive(value, "tolerance at step 0"), "tolerance"
    )
    later = lambda value: check_not_negative(value, "tolerance at step 1000")  # there it may have underflown
    check_schedule(tolerance, jnp.full((), 1e3), later)
    return HOAG(
        check_problem(problem),
        as_rule(inner, "inner"),
        as_rule(outer, "outer"),
        Static(tolerance),
        check_count(max_inner_steps, "max_inner_steps"),
        check_count(max_adjoint_steps, "max_adjoint_steps"),
        damping,
    )


def solve_inner(
    problem: Problem,
    rule: Rule,
    max_steps: int,
    epsilon: Scalar,
    state: HOAGState,
    gradient: PyTree,
    batch: Batch | None,
) -> tuple[PyTree, PyTree, Int[Array, ""]]:
    """(y, memory, the number of steps taken) with ‖∇_y g(x, y)‖ ≤ ε, unless `max_steps` came first.

    Where that norm is NaN or infinite no y is at rest: it is NaN then, so that the run ends and says so.
    """
    value = lambda y: problem.g(state.x, y, batch)

    def size(carry):
        y, gradient, memory, _ = carry
        return tree.norm(at_rest(problem, rule, memory, y, gradient))

    def unfinished(carry):
        *_, taken = carry
        return (size(carry) > epsilon) & (taken < max_steps)

    def advance(carry):
        y, gradient, memory, taken = carry
        y, memory = descend(rule, gradient, memory, y, value)
        return y, problem.oracles.inner_gradient(state.x, y, batch), memory, taken + 1

    end = lax.while_loop(unfinished, advance, (state.y, gradient, state.inner, jnp.int32(0)))
    y, _, memory, taken = end
    return nan_unless(jnp.isfinite(size(end)), y), memory, taken
