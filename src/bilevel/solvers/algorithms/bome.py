"""BOME: first derivatives only, with a new penalty at every step."""

from typing import ClassVar

import jax.numpy as jnp
from optax import tree

from bilevel.checks import check_choice
from bilevel.solvers.kit import Batch, Draws, ExplicitSolver, ExplicitState, Info, Problem, Traits, descend
from bilevel.solvers.options import Rule, check_batches, count, factory, field, positive, rule_of
from bilevel.solvers.parts.inner import inner_loop
from bilevel.solvers.parts.penalty import penalized
from bilevel.solvers.parts.trees import divide, scaled
from bilevel.types import Number, StepSize


class BOME(ExplicitSolver):
    rate: Number = field(converter=positive("rate"))
    inner_steps: int = field(static=True, converter=count("inner_steps"))
    barrier: str = field(static=True)
    auxiliary: Rule = field(converter=rule_of("auxiliary"))
    batches: str = field(static=True, converter=check_batches)
    name: ClassVar[str] = "BOME"
    traits: ClassVar[Traits] = Traits(
        first_order=True, inner_rule="minimum", outer_at="start", outer_last_only=True
    )

    def step(self, state: ExplicitState, batch: Batch | Draws | None = None) -> tuple[ExplicitState, Info]:
        (x, y, inner_memory, outer_memory), problem = state, self.problem
        z, _, gradient, batch, model = inner_loop(
            problem, self.auxiliary, self.inner_steps, x, y, self.auxiliary.init(y), batch
        )

        f, g = problem.oracles.outer_gradients(x, y, batch), problem.oracles.inner_gradients(x, y, batch)
        below = problem.oracles.inner_gradients(x, z, batch)
        q_x, q_y = tree.sub(g.x, below.x), g.y
        square = tree.norm((q_x, q_y), squared=True)
        distance = square if self.barrier == "gradient" else g.value - below.value
        phi = jnp.asarray(self.rate, square.dtype) * distance
        penalty = divide(jnp.maximum(phi - tree.vdot((f.x, f.y), (q_x, q_y)), 0), square)

        hypergradient = tree.add(f.x, scaled(penalty, q_x))
        for_x = penalized(problem, y, z, penalty, batch, batch)
        for_y = lambda y: problem.f(state.x, y, batch) + scaled(penalty, problem.g(state.x, y, batch))
        x, outer_memory = descend(self.outer, hypergradient, outer_memory, x, for_x)
        direction = tree.add(f.y, scaled(penalty, q_y))
        y, inner_memory = descend(self.inner, direction, inner_memory, y, for_y)
        info = Info(f.value, hypergradient, gradient, {"penalty": penalty}, model)
        return ExplicitState(x, y, inner_memory, outer_memory), info


@factory(eta="rate")
def bome(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    rate: Number = 0.5,
    inner_steps: int = 10,
    barrier: str = "gradient",
    auxiliary: StepSize | Rule | None = None,
    batches: str = "independent",
) -> BOME:
    """Descend f in x and y together, and push toward q(x, y) = g(x, y) − min_z g(x, z) = 0 as hard as necessary:

        z       = T steps z ← z − α ∇_y g(x_k, z) from y_k
        ∇q      = (∇_x g(x_k, y_k) − ∇_x g(x_k, z), ∇_y g(x_k, y_k))
        λ_k     = max(φ_k − ⟨∇f, ∇q⟩, 0)/‖∇q‖²                       φ_k = η‖∇q‖², or η q(x_k, y_k)
        x_{k+1} = x_k − ξ (∇_x f(x_k, y_k) + λ_k ∇_x q),     y_{k+1} = y_k − ξ' (∇_y f(x_k, y_k) + λ_k ∇_y q)

    λ_k is the smallest with which a step lowers q at the rate φ_k, so there is no penalty to choose. It does not
    converge: where ∇f + λ∇q = 0 the formula gives λ + η. So λ_k rises until the step on y is at its limit, λ_k ξ' of
    the order of 1/L. x then stays near the limit of a penalty method with that λ, off by O(ξ'). As in other penalty
    methods, the direction of x is reported as the hypergradient.

    M. Ye, B. Liu, S. Wright, P. Stone, Q. Liu, "BOME! Bilevel optimization made easy: a simple first-order approach",
    NeurIPS 2022, with one step size ξ = ξ'. As in benchmark_bilevel's implementation, with which it agrees step for
    step, the step sizes of x and y may differ.

    Args:
        problem: the two objectives.
        inner: ξ' as a float, or any optax transformation, for y.
        outer: ξ as a float, or any optax transformation.
        rate: η, the rate at which q shall decrease.
        inner_steps: T, the number of steps on z per step on x and y.
        barrier: "gradient", φ = η‖∇q‖²; or "value", φ = ηq.
        auxiliary: α as a float, or any optax transformation, with a new memory for every z; the default is `inner`.
        batches: "independent", a draw for every step on z, the last of which moves x and y; or "shared", one for all.
    """
    check_choice(barrier, "barrier", ("gradient", "value"))
    auxiliary = inner if auxiliary is None else auxiliary
    return BOME(problem, inner, outer, rate, inner_steps, barrier, auxiliary, batches)
