"""qNBO: quasi-Newton steps on y and on the adjoint system, from one set of curvature pairs (Fang et al. 2025)."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.batch import Batch
from bilevel.checks import check_count, check_problem, prepare
from bilevel.problem import Problem
from bilevel.solvers.adjoints.quasi_newton_steps import QuasiNewton, quasi_newton
from bilevel.solvers.base import ImplicitState, Info, Solver
from bilevel.solvers.fixed_points import check_plain
from bilevel.solvers.parts.curvature_pairs import inverse_times, remember
from bilevel.solvers.parts.lagrangian import lagrangian
from bilevel.solvers.parts.trees import select
from bilevel.solvers.rules import Rule, as_rule, descend
from bilevel.types import PyTree, StepSize


class QNBO(Solver):
    inner: Rule
    adjoint: QuasiNewton
    outer: Rule
    gradient_steps: int = eqx.field(static=True)
    inner_steps: int = eqx.field(static=True)
    name: ClassVar[str] = "qNBO"
    variables: ClassVar[tuple[str, ...]] = ("x", "y", "v")

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | None = None) -> ImplicitState:
        x, y = prepare(self.problem, x0, y0, batch)
        check_plain(self, y)
        v = tree.zeros_like(y)
        return ImplicitState(x, y, v, self.inner.init(y), self.adjoint.init(v), self.outer.init(x))

    def step(self, state: ImplicitState, batch: Batch | None = None) -> tuple[ImplicitState, Info]:
        x, problem, oracles = state.x, self.problem, self.problem.oracles
        g_value = lambda y: problem.g(x, y, batch)

        def arrive(y, p, pairs, to):  # at `to`: its gradient, and what the way there says of the Hessian
            after = oracles.inner_gradient(x, to, batch)
            return after, remember(pairs, *_told(y, to, p, after))

        def gradient_step(carry, _):
            y, p, pairs, memory = carry
            to, memory = descend(self.inner, p, memory, y, g_value)
            return (to, *arrive(y, p, pairs, to), memory), None

        def quasi_newton_step(carry, _):
            y, p, pairs = carry
            to = tree.sub(y, inverse_times(pairs, p))
            after, pairs = arrive(y, p, pairs, to)
            return (*select(tree.norm(after) <= tree.norm(p), (to, after), (y, p)), pairs), None

        inner_gradient = oracles.inner_gradient(x, state.y, batch)
        carry = state.y, inner_gradient, state.adjoint, state.inner
        (y, p, pairs, inner_memory), _ = lax.scan(gradient_step, carry, length=self.gradient_steps)
        (y, _, pairs), _ = lax.scan(quasi_newton_step, (y, p, pairs), length=self.inner_steps)  # subroutine A

        g, f = oracles.curvature(x, y, batch), oracles.outer_gradients(x, y, batch)
        v, pairs, metrics = self.adjoint.solve(g, f.y, state.v, pairs)  # subroutine B
        hypergradient = tree.sub(f.x, g.cross(v))
        value = lagrangian(problem, y, v, batch)
        x, outer_memory = descend(self.outer, hypergradient, state.outer, x, value)

        state = ImplicitState(x, y, v, inner_memory, pairs, outer_memory)
        return state, Info(f.value, hypergradient, inner_gradient, metrics)


def qnbo(
    problem: Problem,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    *,
    gradient_steps: int = 1,
    inner_steps: int = 3,
    adjoint_steps: int = 1,
    memory: int = 10,
) -> QNBO:
    """Both levels use one approximation B ≈ (∇²_yy g)⁻¹, limited-memory BFGS from pairs (s, z):

        A:  P times   y ← y − α ∇_y g(x_k, y)
            T times   y ← y − B ∇_y g(x_k, y)               every step gives a pair: s of y, z of ∇_y g
        B:  Q times   r = ∇²_yy g·v − ∇_y f,   d = B r,   t = rᵀd / dᵀ∇²_yy g·d
                      v ← v − t d                           and so does this: s = −t d, z = ∇²_yy g·s
        x_{k+1} = x_k − β (∇_x f(x_k, y) − ∇²_xy g(x_k, y) v)

    S. Fang, Y.-J. Liu, W. Yao, C. Yu, J. Zhang, "qNBO: quasi-Newton meets bilevel optimization", ICLR 2025, its variant
    with BFGS. P + T + 1 gradients of g, Q + 1 Hessian products and a cross product. It pays where ∇²_yy g is badly
    conditioned.

    Departures. The publication forgets all pairs at every outer step and begins from a given multiple of the identity;
    here pairs stay, and the identity is scaled by the newest one, so that there is no further number to choose. Near
    the solution, where a step on y is too short for the difference of gradients to tell the Hessian from rounding
    (‖s‖ ≤ √ε‖y‖), the old pairs go on serving. Published, v begins as B∇_y f in every outer step; here from the last
    v, which leaves no bias in the limit (from v = 0 the first step is t·B∇_y f), and the pairs of v are Hessian
    products instead of differences of gradients, which makes the minimizing t free. Quasi-Newton steps on y are of full
    length; one that would lengthen ∇_y g is not taken, but its pair is kept. The variant with SR1 is left out.

    Args:
        problem: the two objectives.
        inner: α of the gradient steps as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        gradient_steps: P, at least one; the first of them gives the first pair.
        inner_steps: T, the number of quasi-Newton steps on y per step on x, all on one draw, of whose Hessian the
            pairs tell.
        adjoint_steps: Q, the number of quasi-Newton steps on v per step on x.
        memory: the number of pairs remembered.
    """
    return QNBO(
        check_problem(problem),
        as_rule(inner, "inner"),
        quasi_newton(check_count(adjoint_steps, "adjoint_steps"), check_count(memory, "memory")),
        as_rule(outer, "outer"),
        check_count(gradient_steps, "gradient_steps"),
        check_count(inner_steps, "inner_steps"),
    )


def _told(y: PyTree, to: PyTree, before: PyTree, after: PyTree) -> tuple[PyTree, PyTree]:
    """A step's pair (s, ∇²_yy g·s) by the difference of gradients, or zeros where that is only rounding."""
    s, z = tree.sub(to, y), tree.sub(after, before)
    length = tree.norm(s)
    clear = length > jnp.finfo(length.dtype).eps ** 0.5 * tree.norm(y)
    zero = tree.zeros_like(s)
    return select(clear, (s, z), (zero, zero))
