"""BOME: first derivatives only, with a penalty that is chosen anew at every step."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from optax import tree

from bilevel.batch import Batch, Draws
from bilevel.checks import check_choice, check_count, check_positive, check_problem, prepare
from bilevel.problem import Problem
from bilevel.solvers.base import ExplicitState, Info, Solver, check_batches
from bilevel.solvers.fixed_points import check_rests_at_minima
from bilevel.solvers.parts.inner import inner_loop
from bilevel.solvers.parts.penalty import penalized
from bilevel.solvers.parts.trees import divide, scaled
from bilevel.solvers.rules import Rule, as_rule, descend
from bilevel.solvers.traits import Traits
from bilevel.types import Number, PyTree, StepSize


class BOME(Solver):
    inner: Rule
    outer: Rule
    eta: Number
    inner_steps: int = eqx.field(static=True)
    barrier: str = eqx.field(static=True)
    auxiliary: Rule
    batches: str = eqx.field(static=True)
    name: ClassVar[str] = "BOME"
    traits: ClassVar[Traits] = Traits(first_order=True, outer_at="start", outer_last_only=True)

    @property
    def draws(self) -> int:
        return 1 if self.batches == "shared" else self.inner_steps

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | Draws | None = None) -> ExplicitState:
        x, y = prepare(self.problem, x0, y0, batch)
        check_rests_at_minima(self, y)
        return ExplicitState(x, y, self.inner.init(y), self.outer.init(x))

    def step(self, state: ExplicitState, batch: Batch | Draws | None = None) -> tuple[ExplicitState, Info]:
        (x, y, inner_memory, outer_memory), problem = state, self.problem
        z, _, gradient, batch, model = inner_loop(
            problem, self.auxiliary, self.inner_steps, x, y, self.auxiliary.init(y), batch
        )

        f, g = problem.oracles.outer_gradients(x, y, batch), problem.oracles.inner_gradients(x, y, batch)
        below = problem.oracles.inner_gradients(x, z, batch)
        q_x, q_y = tree.sub(g.x, below.x), g.y
        square = tree.norm((q_x, q_y), squared=True)
        phi = jnp.asarray(self.eta, square.dtype) * (
            square if self.barrier == "gradient" else g.value - below.value
        )
        penalty = divide(jnp.maximum(phi - tree.vdot((f.x, f.y), (q_x, q_y)), 0), square)

        hypergradient = tree.add(f.x, scaled(penalty, q_x))
        for_x = penalized(problem, y, z, penalty, batch, batch)
        for_y = lambda y: problem.f(state.x, y, batch) + scaled(penalty, problem.g(state.x, y, batch))
        x, outer_memory = descend(self.outer, hypergradient, outer_memory, x, for_x)
        direction = tree.add(f.y, scaled(penalty, q_y))
        y, inner_memory = descend(self.inner, direction, inner_memory, y, for_y)
        info = Info(f.value, hypergradient, gradient, {"penalty": penalty}, model)
        return ExplicitState(x, y, inner_memory, outer_memory), info


def bome(
    problem: Problem,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    *,
    eta: Number = 0.5,
    inner_steps: int = 10,
    barrier: str = "gradient",
    auxiliary: StepSize | Rule | None = None,
    batches: str = "independent",
) -> BOME:
    """x and y descend on f together, pushed toward q(x, y) = g(x, y) − min_z g(x, z) = 0 as hard as it takes:

        z       = T steps z ← z − α ∇_y g(x_k, z) from y_k
        ∇q      = (∇_x g(x_k, y_k) − ∇_x g(x_k, z), ∇_y g(x_k, y_k))
        λ_k     = max(φ_k − ⟨∇f, ∇q⟩, 0)/‖∇q‖²                       φ_k = η‖∇q‖², or η q(x_k, y_k)
        x_{k+1} = x_k − ξ (∇_x f(x_k, y_k) + λ_k ∇_x q),     y_{k+1} = y_k − ξ' (∇_y f(x_k, y_k) + λ_k ∇_y q)

    λ_k is the least for which a step lowers q at the rate φ_k, so there is no penalty to choose. It does not settle:
    where ∇f + λ∇q = 0 the formula gives λ + η. So λ_k rises until the step on y is at its limit, λ_k ξ' of the order of
    1/L, and x hovers about where a penalty method with that λ would lead, off by O(ξ'). The direction of x is reported
    as the hypergradient, as it is in other penalty methods.

    M. Ye, B. Liu, S. Wright, P. Stone, Q. Liu, "BOME! Bilevel optimization made easy: a simple first-order
    approach", NeurIPS 2022, with one step size ξ = ξ' for both. As in benchmark_bilevel's implementation, with which
    it agrees step for step, those of x and y may differ.

    Args:
        problem: the two objectives.
        inner: ξ' as a float, or any optax transformation, for y.
        outer: ξ as a float, or any optax transformation.
        eta: η, the rate at which q is asked to fall.
        inner_steps: T, the number of steps on z per step on x and y.
        barrier: "gradient", φ = η‖∇q‖²; or "value", φ = ηq.
        auxiliary: α as a float, or any optax transformation, which begins anew with every z; as `inner` if left out.
        batches: "independent", a draw for every step on z, the last of which moves x and y; or "shared", one for all.
    """
    check_positive(eta, "rate eta")
    check_choice(barrier, "barrier", ("gradient", "value"))
    return BOME(
        check_problem(problem),
        as_rule(inner, "inner"),
        as_rule(outer, "outer"),
        eta,
        check_count(inner_steps, "inner_steps"),
        barrier,
        as_rule(inner if auxiliary is None else auxiliary, "auxiliary"),
        check_batches(batches),
    )
