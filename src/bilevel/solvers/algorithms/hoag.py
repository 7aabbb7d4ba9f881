"""HOAG: both inner solves to a tolerance that decreases along the run (Pedregosa 2016)."""

from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int
from optax import tree

from bilevel.checks import check_not_negative, check_positive, check_schedule
from bilevel.identity import Static
from bilevel.solvers.adjoints.curvatures import Damped
from bilevel.solvers.adjoints.krylov import ConjugateGradients
from bilevel.solvers.fixed_points import residual
from bilevel.solvers.implicit_solver import SystemSolver
from bilevel.solvers.kit import Batch, Info, Problem, Traits, descend
from bilevel.solvers.messages import Finding
from bilevel.solvers.options import Rule, count, factory, field, rule_of
from bilevel.solvers.parts.trees import nan_unless
from bilevel.types import Number, PyTree, Scalar, Schedule, StepSize

SMALLEST = 16  # the smallest tolerance in roundings


class HOAGState(NamedTuple):
    x: PyTree  # x_{k+1}
    y: PyTree  # ŷ_k, the next warm start
    v: PyTree  # v̂_k, the next warm start
    inner: PyTree  # memory of the inner rule
    outer: PyTree  # memory of the outer rule
    scale: Scalar  # the largest ‖∇_y g‖ at the start of a step; the tolerance is relative to it
    k: Int[Array, ""]


class HOAG(SystemSolver):
    inner: Rule = field(converter=rule_of("inner"))
    outer: Rule = field(converter=rule_of("outer"))
    tol: Static = field(static=True)
    max_inner_steps: int = field(static=True, converter=count("max_inner_steps"))
    max_adjoint_steps: int = field(static=True, converter=count("max_adjoint_steps"))
    damping: Number
    name: ClassVar[str] = "HOAG"
    variables: ClassVar[tuple[str, ...]] = ("x", "y", "v")
    traits: ClassVar[Traits] = Traits(supports_prox=True, inner_rule="differentiable")

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | None = None) -> HOAGState:
        x, y = self.prepare(x0, y0, batch)
        nothing = jnp.zeros((), tree.norm(y).dtype)
        memories = self.inner.init(y), self.outer.init(x)
        return HOAGState(x, y, tree.zeros_like(y), *memories, nothing, jnp.int32(0))

    def step(self, state: HOAGState, batch: Batch | None = None) -> tuple[HOAGState, Info]:
        x, gradient = state.x, self.problem.oracles.inner_gradient(state.x, state.y, batch)
        epsilon = self.tolerance_at(state.k, state.scale.dtype)
        inner_gradient = self.residual(state, gradient)
        scale = jnp.maximum(state.scale, tree.norm(inner_gradient))
        y, inner, inner_steps = self.solve_inner(epsilon * scale, state, gradient, batch)

        method = Damped(ConjugateGradients(epsilon, self.max_adjoint_steps), self.damping)
        system = self.system(x, y, inner, [batch])._replace(adjoint=method)
        v, _, metrics = system.solve(state.v)
        hypergradient = system.hypergradient(v)
        x, outer = descend(self.outer, hypergradient, state.outer, x, system.lagrangian(v))

        metrics = {"tolerance": epsilon, "inner_steps": inner_steps, **metrics}
        state = HOAGState(x, y, v, inner, outer, scale, state.k + 1)
        return state, Info(system.f.value, hypergradient, inner_gradient, metrics)

    def tolerance_at(self, k: Int[Array, ""], dtype: Any) -> Scalar:
        """Return ε_k, or the smallest tolerance that rounding allows."""
        epsilon = jnp.asarray(self.tol.value(k.astype(dtype)), dtype)
        return jnp.maximum(epsilon, SMALLEST * float(jnp.finfo(dtype).eps))

    def solve_inner(
        self, epsilon: Scalar, state: HOAGState, gradient: PyTree, batch: Batch | None
    ) -> tuple[PyTree, PyTree, Int[Array, ""]]:
        """Return (y, memory, the number of steps) with ‖∇_y g(x, y)‖ ≤ ε, unless `max_inner_steps` came first.

        y is NaN where that norm is NaN or infinite, so that the run ends and reports it.
        """
        problem, rule = self.problem, self.inner_at(state.x)
        value = lambda y: problem.g(state.x, y, batch)

        def size(carry):
            y, gradient, memory, _ = carry
            return tree.norm(residual(problem, rule, memory, y, gradient))

        def unfinished(carry):
            *_, taken = carry
            return (size(carry) > epsilon) & (taken < self.max_inner_steps)

        def advance(carry):
            y, gradient, memory, taken = carry
            y, memory = descend(rule, gradient, memory, y, value)
            return y, problem.oracles.inner_gradient(state.x, y, batch), memory, taken + 1

        end = lax.while_loop(unfinished, advance, (state.y, gradient, state.inner, jnp.int32(0)))
        y, _, memory, taken = end
        return nan_unless(jnp.isfinite(size(end)), y), memory, taken

    def findings(self, trace: dict[str, Any]) -> list[Finding]:
        """Report also a solve that its limit ended: the hypergradient may then miss its tolerance."""
        found = super().findings(trace)
        for level in ("inner", "adjoint"):
            limit, taken = self.part(f"max_{level}_steps"), np.asarray(trace.get(f"{level}_steps", ()))
            taken = taken[len(taken) // 2 :]
            if met := int(np.sum(taken >= limit)):
                numbers = {"level": level, "times": met, "steps": len(taken), "limit": limit}
                found.append(Finding("limit_reached", numbers))
        return found


def quadratic_decrease(k: Any) -> Any:
    """Return ε_k = 0.1 / (k + 1)², one of the publication's summable sequences."""
    return 0.1 / (k + 1) ** 2


@factory(tolerance="tol")
def hoag(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    tol: Schedule = quadratic_decrease,
    max_inner_steps: int = 1000,
    max_adjoint_steps: int = 1000,
    damping: Number = 0.0,
) -> HOAG:
    """Solve both systems at every step to a tolerance, from the last solutions:

        ŷ_k:      steps of the inner rule until     ‖∇_y g(x_k, ŷ_k)‖ ≤ ε_k s_k
        v̂_k:      conjugate gradients until         ‖∇²_yy g(x_k, ŷ_k) v̂_k − b_k‖ ≤ ε_k ‖b_k‖    b_k = ∇_y f(x_k, ŷ_k)
        x_{k+1} = x_k − β (∇_x f(x_k, ŷ_k) − ∇²_xy g(x_k, ŷ_k) v̂_k)

    s_k is the largest ‖∇_y g‖ at the start of a step so far, so the tolerances do not depend on units. They are never
    smaller than rounding allows. With Σ ε_k < ∞ and β small enough x_k tends to a stationary point.

    Differences: the publication bounds ‖ŷ_k − y*‖ by ε_k. Here, as in the authors' code, the bound is for the gradient
    relative to the first one, which can be measured. Their code uses only the first gradient for s_k, multiplies CG's
    tolerance by the first ‖∇_y f‖, has ε_k = 0.01 · 0.9^k by default (`optax.exponential_decay(0.01, 1, 0.9)`), solves
    the inner problem by L-BFGS, clips x to a box and adapts β. Here the rules decide, for example `bl.projected`.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        tol: the function k ↦ ε_k, positive and summable, such as an optax schedule.
        max_inner_steps: the most steps on y per step on x. All use one draw, as they solve one problem. The trace's
            "inner_steps" shows whether the limit was reached, and the status reports it.
        max_adjoint_steps: the most steps of conjugate gradients per step on x.
        damping: δ, for ∇²_yy g + δI in the adjoint system where g is not convex; it leaves a bias.
    """
    check_not_negative(damping, "damping")
    check_schedule(tol, jnp.zeros(()), lambda value: check_positive(value, "tol at step 0"), "tol")
    later = lambda value: check_not_negative(value, "tol at step 1000")  # it may have underflown there
    check_schedule(tol, jnp.full((), 1e3), later)
    return HOAG(problem, inner, outer, Static(tol), max_inner_steps, max_adjoint_steps, damping)
