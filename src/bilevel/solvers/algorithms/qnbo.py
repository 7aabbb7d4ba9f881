"""qNBO: quasi-Newton steps on y and on the adjoint system, from one set of curvature pairs (Fang et al. 2025)."""

from typing import ClassVar

import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.checks import check_count
from bilevel.solvers.adjoints.quasi_newton_steps import QuasiNewton, inverse_times, quasi_newton, remember
from bilevel.solvers.kit import Batch, ImplicitSolver, ImplicitState, Info, Problem, Traits, descend
from bilevel.solvers.options import Rule, count, factory, field
from bilevel.solvers.parts.trees import select
from bilevel.types import PyTree, StepSize


class QNBO(ImplicitSolver):
    adjoint: QuasiNewton
    gradient_steps: int = field(static=True, converter=count("gradient_steps"))
    inner_steps: int = field(static=True, converter=count("inner_steps"))
    name: ClassVar[str] = "qNBO"
    traits: ClassVar[Traits] = Traits(inner_rule="plain")

    def step(self, state: ImplicitState, batch: Batch | None = None) -> tuple[ImplicitState, Info]:
        x, oracles = state.x, self.problem.oracles
        g_value = lambda y: self.problem.g(state.x, y, batch)

        def arrive(y, p, pairs, to):  # the gradient at `to`, and a new pair
            after = oracles.inner_gradient(x, to, batch)
            return after, remember(pairs, *_pair(y, to, p, after))

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
        (y, p, pairs, inner), _ = lax.scan(gradient_step, carry, length=self.gradient_steps)
        (y, _, pairs), _ = lax.scan(quasi_newton_step, (y, p, pairs), length=self.inner_steps)  # subroutine A

        system = self.system(x, y, inner, [batch])
        v, pairs, metrics = system.solve(state.v, pairs)  # subroutine B
        hypergradient = system.hypergradient(v)
        x, outer = descend(self.outer, hypergradient, state.outer, x, system.lagrangian(v))
        info = Info(system.f.value, hypergradient, inner_gradient, metrics)
        return ImplicitState(x, y, v, inner, pairs, outer), info


@factory()
def qnbo(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    gradient_steps: int = 1,
    inner_steps: int = 3,
    adjoint_steps: int = 1,
    memory: int = 10,
) -> QNBO:
    """Use one approximation B ≈ (∇²_yy g)⁻¹ at both levels, limited-memory BFGS from pairs (s, z):

        A:  P times   y ← y − α ∇_y g(x_k, y)
            T times   y ← y − B ∇_y g(x_k, y)               every step gives a pair: s of y, z of ∇_y g
        B:  Q times   r = ∇²_yy g·v − ∇_y f,   d = B r,   t = rᵀd / dᵀ∇²_yy g·d
                      v ← v − t d                           and so does this: s = −t d, z = ∇²_yy g·s
        x_{k+1} = x_k − β (∇_x f(x_k, y) − ∇²_xy g(x_k, y) v)

    S. Fang, Y.-J. Liu, W. Yao, C. Yu, J. Zhang, "qNBO: quasi-Newton meets bilevel optimization", ICLR 2025, its variant
    with BFGS. A step takes P + T + 1 gradients of g, Q + 1 Hessian products and a cross product. It pays where ∇²_yy g
    is badly conditioned.

    Differences: the publication forgets all pairs at every outer step and starts from a given multiple of the identity.
    Here the pairs stay, and the newest one scales the identity, so there is no further number to choose. Near the
    solution a step on y may be too short to distinguish the Hessian from rounding (‖s‖ ≤ √ε‖y‖). Then the old pairs
    stay in use. In the publication v starts as B∇_y f at every outer step. Here it starts from the last v, which leaves
    no bias in the limit (from v = 0 the first step is t·B∇_y f), and the pairs of v are Hessian products instead of
    differences of gradients, so the minimizing t costs nothing. Quasi-Newton steps on y have full length. One that
    would lengthen ∇_y g is not taken, but its pair is kept. The variant with SR1 is missing.

    Args:
        problem: the two objectives.
        inner: α of the gradient steps as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        gradient_steps: P, at least one; the first of them gives the first pair.
        inner_steps: T, the number of quasi-Newton steps on y per step on x. All use one draw, as the pairs describe its
            Hessian.
        adjoint_steps: Q, the number of quasi-Newton steps on v per step on x.
        memory: the number of pairs to store.
    """
    adjoint = quasi_newton(check_count(adjoint_steps, "adjoint_steps"), check_count(memory, "memory"))
    return QNBO(problem, inner, adjoint, outer, gradient_steps, inner_steps)


def _pair(y: PyTree, to: PyTree, before: PyTree, after: PyTree) -> tuple[PyTree, PyTree]:
    """Return a step's pair (s, ∇²_yy g·s) by the difference of gradients, or zeros if that is only rounding."""
    s, z = tree.sub(to, y), tree.sub(after, before)
    length = tree.norm(s)
    clear = length > jnp.finfo(length.dtype).eps ** 0.5 * tree.norm(y)
    zero = tree.zeros_like(s)
    return select(clear, (s, z), (zero, zero))
