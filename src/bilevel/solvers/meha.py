"""MEHA: a single loop without second derivatives, through the Moreau envelope of the inner problem."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int
from optax import tree

from bilevel.checks import prepare
from bilevel.problem import Batch, Problem
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.penalty import as_schedule
from bilevel.solvers.rule import as_rule, check_positive, descend
from bilevel.solvers.trees import scaled

PyTree = Any


class MEHAState(NamedTuple):
    x: PyTree
    y: PyTree
    theta: PyTree  # tracks the proximal point of g(x, ·) at y
    inner: PyTree  # state of the inner rule
    auxiliary: PyTree  # state of the auxiliary rule
    outer: PyTree  # state of the outer rule
    k: Int[Array, ""]


def meha(
    problem: Problem, inner: Any, outer: Any, penalty: Any, proximal: float, auxiliary: Any = None
) -> Solver:
    """The price is put on g(x, y) − v_γ(x, y), where v_γ(x, y) = min_θ g(x, θ) + ‖θ − y‖²/(2γ):

        θ_{k+1} = θ_k − η (∇_y g(x_k, θ_k) + (θ_k − y_k)/γ)
        x_{k+1} = x_k − α (∇_x f(x_k, y_k)/c_k + ∇_x g(x_k, y_k) − ∇_x g(x_k, θ_{k+1}))
        y_{k+1} = y_k − β (∇_y f(x_{k+1}, y_k)/c_k + ∇_y g(x_{k+1}, y_k) − (y_k − θ_{k+1})/γ)

    The envelope is smooth also where g is not convex in y, if γ is below the inverse of its weak convexity. With a
    constant penalty c the limit is off by O(1/c). The estimate of ∇Φ reported is c_k times the direction of x.
    R. Liu, Z. Liu, W. Yao, S. Zeng, J. Zhang, "Moreau envelope for nonconvex bi-level optimization: a single-loop
    and Hessian-free solution strategy", ICML 2024, have c_k = c_0 (k+1)^p with p < 1/2; its constraint sets and
    non-smooth terms are left out here.

    Args:
        problem: the two objectives.
        inner: β as a float, or any optax transformation.
        outer: α as a float, or any optax transformation.
        penalty: c as a float, or a function k ↦ c_k such as an optax schedule.
        proximal: γ.
        auxiliary: η as a float, or any optax transformation; as `inner` if left out.
    """
    inner_rule, outer_rule = as_rule(inner, "inner"), as_rule(outer, "outer")
    auxiliary_rule = as_rule(inner if auxiliary is None else auxiliary, "auxiliary")
    check_positive(proximal, "proximal parameter")
    schedule, oracles = as_schedule(penalty), problem.oracles

    def init(x0: PyTree, y0: PyTree, batch: Batch | None = None) -> MEHAState:
        x, y = prepare(problem, x0, y0, batch)
        memories = inner_rule.init(y), auxiliary_rule.init(y), outer_rule.init(x)
        return MEHAState(x, y, y, *memories, jnp.zeros((), jnp.int32))

    def step(state: MEHAState, batch: Batch | None = None) -> tuple[MEHAState, Info]:
        x, y, penalty = state.x, state.y, schedule(state.k)
        pull = scaled(1 / proximal, tree.sub(state.theta, y))
        towards = tree.add(oracles.inner_gradient(x, state.theta, batch), pull)
        theta, auxiliary_memory = descend(auxiliary_rule, towards, state.auxiliary, state.theta)

        f, at_y = oracles.outer_gradients(x, y, batch), oracles.inner_gradients(x, y, batch)
        gap = tree.sub(at_y.x, oracles.inner_gradients(x, theta, batch).x)
        hypergradient = tree.add(f.x, scaled(penalty, gap))
        x, outer_memory = descend(outer_rule, scaled(1 / penalty, hypergradient), state.outer, x)

        direction = tree.add(
            scaled(1 / penalty, oracles.outer_gradients(x, y, batch).y),
            tree.sub(oracles.inner_gradient(x, y, batch), scaled(1 / proximal, tree.sub(y, theta))),
        )
        y, inner_memory = descend(inner_rule, direction, state.inner, y)
        metrics = {"penalty": jnp.asarray(penalty, f.value.dtype)}
        state = MEHAState(x, y, theta, inner_memory, auxiliary_memory, outer_memory, state.k + 1)
        return state, Info(f.value, hypergradient, at_y.y, metrics)

    def warm_up(state: MEHAState, batch: Batch | None = None) -> MEHAState:
        gradient = oracles.inner_gradient(state.x, state.y, batch)
        y, inner_memory = descend(inner_rule, gradient, state.inner, state.y)
        return state._replace(y=y, theta=y, inner=inner_memory)

    return Solver("MEHA", problem, ("x", "y", "theta"), init, step, warm_up)
