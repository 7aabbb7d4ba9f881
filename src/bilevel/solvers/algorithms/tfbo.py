"""S-TFBO and D-TFBO: step sizes that are inverses of accumulated gradient norms, in a single and a double loop."""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.batch import first
from bilevel.solvers.kit import Batch, Draws, Info, Problem, Solver, Traits, descend
from bilevel.solvers.options import Rule, check_batches, count, factory, field, positive
from bilevel.solvers.parts.inner import inner_loop
from bilevel.solvers.parts.trees import scaled
from bilevel.solvers.rules import ValueFunction
from bilevel.types import Number, PyTree, Scalar


class TFBOState(NamedTuple):
    x: PyTree
    y: PyTree
    v: PyTree
    alpha_squared: Scalar  # α_k², accumulated from the hypergradient
    beta_squared: Scalar  # β_k², from the inner gradient
    gamma_squared: Scalar  # γ_k², from the adjoint's residual


class TFBO(Solver):
    """Methods whose step sizes are inverses of accumulated norms."""

    accumulators: Number = field(converter=positive("initial accumulators"))
    variables: ClassVar[tuple[str, ...]] = ("x", "y", "v")

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | Draws | None = None) -> TFBOState:
        x, y = self.prepare(x0, y0, batch)
        in_x, in_y = (jnp.asarray(self.accumulators**2, tree.norm(t).dtype) for t in (x, y))
        return TFBOState(x, y, tree.zeros_like(y), in_x, in_y, in_y)

    def warm_up(self, state: TFBOState, batch: Batch | Draws | None = None) -> TFBOState:
        gradient = self.problem.oracles.inner_gradient(state.x, state.y, first(batch))
        y, beta_squared = descend(Accumulation(), gradient, state.beta_squared, state.y)
        return state._replace(y=y, beta_squared=beta_squared)


class Accumulation(Rule):
    """point ← point − gradient/a, with a² ← a² + ‖gradient‖² as memory."""

    def init(self, point: PyTree) -> Scalar:
        return jnp.zeros((), tree.norm(point).dtype)

    def update(
        self, gradient: PyTree, memory: Scalar, point: PyTree, value: ValueFunction | None = None
    ) -> tuple[PyTree, Scalar]:
        squared = memory + tree.norm(gradient, squared=True)
        return tree.sub(point, scaled(1 / jnp.sqrt(squared), gradient)), squared


class STFBO(TFBO):
    name: ClassVar[str] = "S-TFBO"
    traits: ClassVar[Traits] = Traits(outer_at="start")

    def step(self, state: TFBOState, batch: Batch | None = None) -> tuple[TFBOState, Info]:
        x, y, v, oracles = state.x, state.y, state.v, self.problem.oracles
        g, f = oracles.along(x, y, v, batch), oracles.outer_gradients(x, y, batch)
        residual = tree.sub(g.hessian, f.y)
        hypergradient = tree.sub(f.x, g.cross)

        alpha_squared = state.alpha_squared + tree.norm(hypergradient, squared=True)
        beta_squared = state.beta_squared + tree.norm(g.gradient, squared=True)
        gamma_squared = state.gamma_squared + tree.norm(residual, squared=True)
        alpha, beta = jnp.sqrt(alpha_squared), jnp.sqrt(beta_squared)
        phi = jnp.sqrt(jnp.maximum(beta_squared, gamma_squared))

        outer_step = 1 / (alpha * phi.astype(alpha.dtype))
        y = tree.sub(y, scaled(1 / beta, g.gradient))
        v = tree.sub(v, scaled(1 / phi, residual))
        x = tree.sub(x, scaled(outer_step, hypergradient))
        state = TFBOState(x, y, v, alpha_squared, beta_squared, gamma_squared)
        metrics = {"inner_step_size": 1 / beta, "outer_step_size": outer_step}
        return state, Info(f.value, hypergradient, g.gradient, metrics)


@factory()
def s_tfbo(problem: Problem, *, accumulators: Number = 1.0) -> STFBO:
    """Take one step on each of y, v and x, all from the same point (x_k, y_k, v_k), with h_k = ∇_x f − ∇²_xy g v_k:

        α_{k+1}² = α_k² + ‖h_k‖²     β_{k+1}² = β_k² + ‖∇_y g‖²     γ_{k+1}² = γ_k² + ‖∇²_yy g v_k − ∇_y f‖²
        φ_{k+1}  = max(β_{k+1}, γ_{k+1})

        y_{k+1} = y_k − ∇_y g / β_{k+1}
        v_{k+1} = v_k − (∇²_yy g v_k − ∇_y f) / φ_{k+1}
        x_{k+1} = x_k − h_k / (α_{k+1} φ_{k+1})

    Yang, Ban, Huang, Ma, Ji, "Tuning-free bilevel optimization: new algorithms and convergence analysis", ICLR 2025
    (the single-loop algorithm of the two; `bl.solvers.d_tfbo` is the other). Its theorem holds for any accumulators,
    but its speed depends on the units of f, g, x and y: with f a thousand times larger, y in units a hundred times
    larger, or x in units ten thousand times smaller, 20,000 steps make no visible progress. `bl.tuning_free` does not
    depend on units.

    Args:
        problem: the two objectives.
        accumulators: α_0 = β_0 = γ_0, the initial accumulated norms.
    """
    return STFBO(problem, accumulators)


class DTFBO(TFBO):
    inner_steps: int = field(static=True, converter=count("inner_steps"))
    adjoint_steps: int = field(static=True, converter=count("adjoint_steps"))
    batches: str = field(static=True, converter=check_batches)
    name: ClassVar[str] = "D-TFBO"
    traits: ClassVar[Traits] = Traits(outer_last_only=True)

    def step(self, state: TFBOState, batch: Batch | Draws | None = None) -> tuple[TFBOState, Info]:
        x, oracles, rule = state.x, self.problem.oracles, Accumulation()
        loop = inner_loop(self.problem, rule, self.inner_steps, x, state.y, state.beta_squared, batch)
        y, beta_squared, inner_gradient, batch, model = loop
        g, f = oracles.curvature(x, y, batch).shared(), oracles.outer_gradients(x, y, batch)

        def adjoint(carry, _):
            v, squared = carry
            return descend(rule, tree.sub(g.hessian(v), f.y), squared, v), None

        (v, gamma_squared), _ = lax.scan(adjoint, (state.v, state.gamma_squared), length=self.adjoint_steps)
        hypergradient = tree.sub(f.x, g.cross(v))
        x, alpha_squared = descend(rule, hypergradient, state.alpha_squared, x)

        state = TFBOState(x, y, v, alpha_squared, beta_squared, gamma_squared)
        inverse = lambda squared: 1 / jnp.sqrt(squared)
        metrics = {"inner_step_size": inverse(beta_squared), "outer_step_size": inverse(alpha_squared)}
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
