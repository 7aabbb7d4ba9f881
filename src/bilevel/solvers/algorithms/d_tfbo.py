"""D-TFBO: several steps on y and on v per step on x, all of lengths that are inverses of accumulated norms."""

from typing import ClassVar

import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.batch import with_state
from bilevel.solvers.algorithms.s_tfbo import TFBO, TFBOState, accumulated_step
from bilevel.solvers.kit import Batch, Draws, Info, Problem, Traits, draws
from bilevel.solvers.options import check_batches, count, factory, field
from bilevel.solvers.parts.inner import carried, carried_state, next_state, seen_by
from bilevel.types import Number


class DTFBO(TFBO):
    inner_steps: int = field(static=True, converter=count("inner_steps"))
    adjoint_steps: int = field(static=True, converter=count("adjoint_steps"))
    batches: str = field(static=True, converter=check_batches)
    name: ClassVar[str] = "D-TFBO"
    traits: ClassVar[Traits] = Traits(outer_last_only=True)

    def step(self, state: TFBOState, batch: Batch | Draws | None = None) -> tuple[TFBOState, Info]:
        x, problem, oracles = state.x, self.problem, self.problem.oracles
        drawn, N = draws(batch), self.inner_steps

        def inner(y, squared, s, t):
            S = with_state(drawn[t], s)
            gradient = oracles.inner_gradient(x, y, S)
            return (*accumulated_step(y, gradient, squared), s, next_state(problem, x, y, S, s)), gradient

        s = carried_state(problem, batch) if N > 1 else None
        carry, inner_gradient = inner(state.y, state.beta_squared, s, 0)
        times = jnp.arange(1, N, dtype=jnp.int32)
        carry, _ = lax.scan(lambda at, t: (inner(at[0], at[1], at[3], t)[0], None), carry, times)
        y, beta_squared, *states = carry
        model = carried(*states)
        batch = seen_by(model, drawn[N - 1])
        g, f = oracles.curvature(x, y, batch).shared(), oracles.outer_gradients(x, y, batch)

        def adjoint(carry, _):
            v, squared = carry
            return accumulated_step(v, tree.sub(g.hessian(v), f.y), squared), None

        (v, gamma_squared), _ = lax.scan(adjoint, (state.v, state.gamma_squared), length=self.adjoint_steps)
        hypergradient = tree.sub(f.x, g.cross(v))
        x, alpha_squared = accumulated_step(x, hypergradient, state.alpha_squared)

        state = TFBOState(x, y, v, alpha_squared, beta_squared, gamma_squared)
        metrics = {
            "inner_step_size": 1 / jnp.sqrt(beta_squared),
            "outer_step_size": 1 / jnp.sqrt(alpha_squared),
        }
        return state, Info(f.value, hypergradient, inner_gradient, metrics, model)


@factory()
def d_tfbo(
    problem: Problem,
    *,
    accumulators: Number = 1.0,
    inner_steps: int = 10,
    adjoint_steps: int = 10,
    batches: str = "independent",
) -> DTFBO:
    """Take several steps on y and on v, from the last solutions, then one step on x:

        ŷ_k:      N times   β² ← β² + ‖∇_y g‖²               y ← y − ∇_y g / β
        v̂_k:      Q times   γ² ← γ² + ‖∇²_yy g v − ∇_y f‖²   v ← v − (∇²_yy g v − ∇_y f) / γ     at (x_k, ŷ_k)
        x_{k+1} = x_k − h_k / α_{k+1}                        α_{k+1}² = α_k² + ‖h_k‖²,  h_k = ∇_x f − ∇²_xy g v̂_k

    Yang, Ban, Huang, Ma, Ji, "Tuning-free bilevel optimization: new algorithms and convergence analysis", ICLR 2025
    (the double-loop algorithm of the two). The publication repeats the two loops until a tolerance is met. Here, as in
    the authors' code, their lengths are fixed, with its ten for both, and every step on y draws a batch. Their code
    adds 10⁻⁸ to every accumulator. The remark on units of `bl.solvers.s_tfbo` holds here too.

    Args:
        problem: the two objectives.
        accumulators: α_0 = β_0 = γ_0, the initial accumulated norms.
        inner_steps: N, the number of steps on y per step on x.
        adjoint_steps: Q, the number of steps on v per step on x.
        batches: "independent", a draw for every step on y, the last of which serves v and x too; or "shared", one draw
            per step.
    """
    return DTFBO(problem, accumulators, inner_steps, adjoint_steps, batches)
