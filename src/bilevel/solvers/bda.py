"""BDA: an inner loop that follows both levels' gradients, for inner problems with many solutions."""

from typing import Any

import jax.numpy as jnp
from optax import tree

from bilevel.checks import prepare
from bilevel.oracles import Linearised, Oracles
from bilevel.problem import Batch, Problem
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.inner import inner_step
from bilevel.solvers.itd import ITDState
from bilevel.solvers.rule import as_rule, check_positive, descend
from bilevel.solvers.trees import scaled
from bilevel.solvers.unroll import Field, unroll

PyTree = Any


def bda(
    problem: Problem,
    inner: Any,
    outer: Any,
    inner_steps: int,
    mixing: float = 0.5,
    outer_share: float = 1.0,
    truncate: int | None = None,
    checkpoint_every: int = 1,
) -> Solver:
    """Unrolled inner steps along an aggregate of both gradients, the outer one's part fading out:

        d_t     = (1 − a_t) ∇_y g(x_k, y_t) + a_t σ ∇_y f(x_k, y_t)         a_t = a/(t+1)
        y_{t+1} = y_t − α d_t                                             t = 0, …, N−1
        x_{k+1} = x_k − β d/dx f(x_k, y_N(x_k))

    Where g(x, ·) has several minimisers, ∇_y f chooses among them the one that is best for f, which an inner loop
    on g alone leaves to the starting point. Where there is only one, the aggregate is a bias that shrinks with N.
    R. Liu, P. Mu, X. Yuan, S. Zeng, J. Zhang, "A generic first-order algorithmic framework for bi-level
    programming beyond lower-level singleton", ICML 2020, with step sizes s_l = α, s_u = ασ. There y starts from
    the same point at every outer step, here from the last y, as everywhere in this library.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        inner_steps: N, the steps on y per step on x, all on the same batch.
        mixing: a, the outer gradient's weight in the first inner step, between 0 and 1.
        outer_share: σ, the outer gradient's step relative to the inner one's.
        truncate: how many of the last inner steps to differentiate; all of them if left out.
        checkpoint_every: as in [`itd`][bilevel.itd].
    """
    inner_rule, outer_rule = as_rule(inner, "inner"), as_rule(outer, "outer")
    check_positive(mixing, "mixing")
    check_positive(outer_share, "outer_share")
    if mixing > 1:
        raise ValueError(
            f"mixing is the outer gradient's weight and at most 1, not {mixing!r}: pass e.g. 0.5"
        )
    oracles = problem.oracles
    field = _aggregate(oracles, mixing, outer_share)
    inner_loop = unroll(field, inner_rule, inner_steps, truncate, checkpoint_every)

    def init(x0: PyTree, y0: PyTree, batch: Batch | None = None) -> ITDState:
        x, y = prepare(problem, x0, y0, batch)
        return ITDState(x, y, inner_rule.init(y), outer_rule.init(x))

    def step(state: ITDState, batch: Batch | None = None) -> tuple[ITDState, Info]:
        x = state.x
        y, inner_memory, gradient, pull_back = inner_loop(x, state.y, state.inner, batch)
        f = oracles.outer_gradients(x, y, batch)
        hypergradient = tree.add(f.x, pull_back(f.y)[0])
        x, outer_memory = descend(outer_rule, hypergradient, state.outer, x)
        return ITDState(x, y, inner_memory, outer_memory), Info(f.value, hypergradient, gradient, {})

    return Solver("BDA", problem, ("x", "y"), init, step, inner_step(oracles, inner_rule))


def _aggregate(oracles: Oracles, mixing: float, outer_share: float) -> Field:
    """d_t and its products."""

    def mix(t: Any, of_g: PyTree, of_f: PyTree) -> PyTree:
        weight = mixing / (jnp.asarray(t, float) + 1)
        return tree.add(scaled(1 - weight, of_g), scaled(weight * outer_share, of_f))

    def gradient(x: PyTree, y: PyTree, t: Any, batch: Any) -> PyTree:
        return mix(t, oracles.inner_gradient(x, y, batch), oracles.outer_gradients(x, y, batch).y)

    def linearise(x: PyTree, y: PyTree, t: Any, batch: Any) -> Linearised:
        g, f = oracles.linearise(x, y, batch), oracles.linearise_outer(x, y, batch)
        return Linearised(
            gradient=mix(t, g.gradient, f.gradient),
            hessian=lambda v: mix(t, g.hessian(v), f.hessian(v)),
            cross=lambda v: mix(t, g.cross(v), f.cross(v)),
        )

    return Field(gradient, linearise)
