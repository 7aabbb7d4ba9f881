"""F3SA: F2SA with momentum-assisted gradient estimates, for noisy batches."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int
from optax import tree

from bilevel.checks import prepare
from bilevel.oracles import Oracles
from bilevel.problem import Batch, Problem
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.penalty import as_schedule
from bilevel.solvers.rule import as_rule, check_positive, descend
from bilevel.solvers.trees import scaled

PyTree = Any


class Points(NamedTuple):
    x: PyTree
    y: PyTree
    z: PyTree


class Lower(NamedTuple):
    """What moves y and z."""

    g_z: PyTree  # ∇_y g(x, z)
    g_y: PyTree  # ∇_y g(x, y)
    f_y: PyTree  # ∇_y f(x, y)


class Upper(NamedTuple):
    """What moves x."""

    f: PyTree  # ∇_x f(x, y)
    g_y: PyTree  # ∇_x g(x, y)
    g_z: PyTree  # ∇_x g(x, z)


class F3SAState(NamedTuple):
    x: PyTree
    y: PyTree  # tracks y_λ(x), the minimiser of f + λg
    z: PyTree  # tracks y*(x), the minimiser of g
    before: Points  # (x_{k−1}, y_{k−1}, z_{k−1})
    lower: Lower  # the estimates of the last step
    upper: Upper
    inner: tuple[PyTree, PyTree]  # the inner rule's states, of y and of z
    outer: PyTree  # state of the outer rule
    k: Int[Array, ""]


def f3sa(problem: Problem, inner: Any, outer: Any, penalty: Any, momentum: float = 0.1) -> Solver:
    """[`f2sa`][bilevel.f2sa] whose every gradient ∇(w; batch) is replaced by a recursive estimate:

        e_k = ∇(w_k; B_k) + (1 − η)(e_{k−1} − ∇(w_{k−1}; B_k))

    where w is (x_k, z_k) for z, (x_k, y_k) for y, and (x_k, y_{k+1}), (x_k, z_{k+1}) for x, and B_k the batch. Each
    gradient is evaluated twice, at this and at the last point, on the same batch, so that the errors of
    successive steps cancel. On full batches it is F2SA. J. Kwon, D. Kwon, S. Wright, R. Nowak, "A fully
    first-order method for stochastic bilevel optimization", ICML 2023; η is constant here, there it decreases.

    Args:
        problem: the two objectives.
        inner: γ as a float, or any optax transformation, of which each copy has its own.
        outer: β as a float, or any optax transformation of the direction divided by λ_k.
        penalty: λ as a float, or a function k ↦ λ_k such as an optax schedule.
        momentum: η, between 0 and 1: the weight of the new gradient; 1 is F2SA.
    """
    inner_rule, outer_rule = as_rule(inner, "inner"), as_rule(outer, "outer")
    check_positive(momentum, "momentum")
    if momentum > 1:
        raise ValueError(
            f"momentum is the weight of the new gradient and at most 1, not {momentum!r}: pass e.g. 0.1"
        )
    schedule, oracles = as_schedule(penalty), problem.oracles

    def renew(estimate, now, before):
        return tree.add(now, scaled(1 - momentum, tree.sub(estimate, before)))

    def init(x0: PyTree, y0: PyTree, batch: Batch | None = None) -> F3SAState:
        x, y = prepare(problem, x0, y0, batch)
        point = Points(x, y, y)
        lower, (_, upper) = _lower(oracles, point, batch), _upper(oracles, point, batch)
        memories = inner_rule.init(y), inner_rule.init(y)
        return F3SAState(x, y, y, point, lower, upper, memories, outer_rule.init(x), jnp.zeros((), jnp.int32))

    def step(state: F3SAState, batch: Batch | None = None) -> tuple[F3SAState, Info]:
        penalty, here = schedule(state.k), Points(state.x, state.y, state.z)
        lower = renew(state.lower, _lower(oracles, here, batch), _lower(oracles, state.before, batch))
        y, y_memory = descend(
            inner_rule, tree.add(lower.g_y, scaled(1 / penalty, lower.f_y)), state.inner[0], state.y
        )
        z, z_memory = descend(inner_rule, lower.g_z, state.inner[1], state.z)

        value, now = _upper(oracles, Points(state.x, y, z), batch)
        _, then = _upper(oracles, Points(state.before.x, state.y, state.z), batch)
        upper = renew(state.upper, now, then)
        hypergradient = tree.add(upper.f, scaled(penalty, tree.sub(upper.g_y, upper.g_z)))
        x, outer_memory = descend(outer_rule, scaled(1 / penalty, hypergradient), state.outer, state.x)

        state = F3SAState(x, y, z, here, lower, upper, (y_memory, z_memory), outer_memory, state.k + 1)
        metrics = {"penalty": jnp.asarray(penalty, value.dtype)}
        return state, Info(value, hypergradient, lower.g_z, metrics)

    def warm_up(state: F3SAState, batch: Batch | None = None) -> F3SAState:
        penalty = schedule(state.k)
        now = _lower(oracles, Points(state.x, state.y, state.z), batch)
        y, y_memory = descend(
            inner_rule, tree.add(now.g_y, scaled(1 / penalty, now.f_y)), state.inner[0], state.y
        )
        z, z_memory = descend(inner_rule, now.g_z, state.inner[1], state.z)
        here = Points(state.x, y, z)  # the estimates start anew from where the warm-up ends
        lower, (_, upper) = _lower(oracles, here, batch), _upper(oracles, here, batch)
        return state._replace(y=y, z=z, before=here, lower=lower, upper=upper, inner=(y_memory, z_memory))

    return Solver("F3SA", problem, ("x", "y", "z"), init, step, warm_up)


def _lower(oracles: Oracles, at: Points, batch: Batch | None) -> Lower:
    return Lower(
        g_z=oracles.inner_gradient(at.x, at.z, batch),
        g_y=oracles.inner_gradient(at.x, at.y, batch),
        f_y=oracles.outer_gradients(at.x, at.y, batch).y,
    )


def _upper(oracles: Oracles, at: Points, batch: Batch | None) -> tuple[Any, Upper]:
    f = oracles.outer_gradients(at.x, at.y, batch)
    g_y, g_z = (oracles.inner_gradients(at.x, copy, batch).x for copy in (at.y, at.z))
    return f.value, Upper(f.x, g_y, g_z)
