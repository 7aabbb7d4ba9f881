"""F2SA: bilevel optimisation with first derivatives only, in one loop."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from bilevel.checks import check_count, prepare
from bilevel.problem import Batch, Problem
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.penalty import Copies, as_schedule, estimate, track
from bilevel.solvers.rule import as_rule, descend
from bilevel.solvers.trees import scaled

PyTree = Any


class F2SAState(NamedTuple):
    x: PyTree
    y: PyTree  # tracks y_λ(x), the minimiser of f + λg
    z: PyTree  # tracks y*(x), the minimiser of g
    inner: tuple[PyTree, PyTree]  # the inner rule's states, of y and of z
    outer: PyTree  # state of the outer rule
    k: Int[Array, ""]


def f2sa(problem: Problem, inner: Any, outer: Any, penalty: Any, inner_steps: int = 1) -> Solver:
    """Two copies of the inner variable instead of second derivatives (T = `inner_steps` of the first two lines):

        z_{k+1} = z_k − γ ∇_y g(x_k, z_k)
        y_{k+1} = y_k − (γ/λ_k) (∇_y f(x_k, y_k) + λ_k ∇_y g(x_k, y_k))
        x_{k+1} = x_k − (β/λ_k) (∇_x f(x_k, y_{k+1}) + λ_k (∇_x g(x_k, y_{k+1}) − ∇_x g(x_k, z_{k+1})))

    With a constant penalty λ it converges to a point that is off by O(1/λ); with one that grows without bound,
    to a stationary point of Φ. J. Kwon, D. Kwon, S. Wright, R. Nowak, "A fully first-order method for stochastic
    bilevel optimization", ICML 2023, where α_k = γ/λ_k, β = ξγ, and λ_{k+1} = λ_k + δ_k: pass the λ_k themselves
    as a function of k. All draws of a step are the one batch.

    Args:
        problem: the two objectives.
        inner: γ as a float, or any optax transformation, of which each copy has its own.
        outer: β as a float, or any optax transformation of the direction divided by λ_k.
        penalty: λ as a float, or a function k ↦ λ_k such as an optax schedule.
        inner_steps: T, the steps on y and z per step on x.
    """
    inner_rule, outer_rule = as_rule(inner, "inner"), as_rule(outer, "outer")
    schedule, oracles = as_schedule(penalty), problem.oracles
    follow = track(oracles, inner_rule, check_count(inner_steps, "inner_steps"))
    follow_once = track(oracles, inner_rule, 1)

    def init(x0: PyTree, y0: PyTree, batch: Batch | None = None) -> F2SAState:
        x, y = prepare(problem, x0, y0, batch)
        memories = inner_rule.init(y), inner_rule.init(y)
        return F2SAState(x, y, y, memories, outer_rule.init(x), jnp.zeros((), jnp.int32))

    def step(state: F2SAState, batch: Batch | None = None) -> tuple[F2SAState, Info]:
        x, penalty = state.x, schedule(state.k)
        copies, gradient = follow(x, Copies(state.y, state.z, *state.inner), penalty, batch)
        y, z, *memories = copies
        value, hypergradient = estimate(oracles, x, y, z, penalty, batch)
        x, outer_memory = descend(outer_rule, scaled(1 / penalty, hypergradient), state.outer, x)
        metrics = {"penalty": jnp.asarray(penalty, value.dtype)}
        state = F2SAState(x, y, z, tuple(memories), outer_memory, state.k + 1)
        return state, Info(value, hypergradient, gradient, metrics)

    def warm_up(state: F2SAState, batch: Batch | None = None) -> F2SAState:
        copies = Copies(state.y, state.z, *state.inner)
        (y, z, *memories), _ = follow_once(state.x, copies, schedule(state.k), batch)
        return state._replace(y=y, z=z, inner=tuple(memories))

    return Solver("F2SA", problem, ("x", "y", "z"), init, step, warm_up)
