"""Iterative differentiation: Algorithm 2 of the paper, and its relatives with several inner steps."""

from typing import Any, NamedTuple

from optax import tree

from bilevel.checks import prepare
from bilevel.problem import Batch, Problem
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.inner import inner_step
from bilevel.solvers.rule import as_rule, descend, plain
from bilevel.solvers.unroll import inner_field, unroll

PyTree = Any


class ITDState(NamedTuple):
    x: PyTree  # x_{k+1}
    y: PyTree  # ŷ_k, the next warm start
    inner: PyTree  # state of the inner rule
    outer: PyTree  # state of the outer rule


def itd(
    problem: Problem,
    inner: Any,
    outer: Any,
    inner_steps: int = 1,
    truncate: int | None = None,
    checkpoint_every: int = 1,
) -> Solver:
    """One warm-started step on y, differentiated through, and one on x:

        ŷ_k     = y_k⁰ − α ∇_y g(x_k, y_k⁰)                                    y_k⁰ = ŷ_{k−1}
        x_{k+1} = x_k − β (∇_x f(x_k, ŷ_k) − α ∇²_xy g(x_k, y_k⁰) ∇_y f(x_k, ŷ_k))

    With another inner rule ŷ_k = U(∇_y g), −α∇_y f becomes (∂U/∂∇_y g)ᵀ∇_y f: the derivative goes through
    the rule's update of this step, its memory of earlier steps held fixed. With N inner steps it goes through
    all of them, y_k⁰ and the memory at the start held fixed; with `truncate` = T through the last T of them
    (Shaban et al., "Truncated back-propagation for bilevel optimization", AISTATS 2019):

        x_{k+1} = x_k − β (∇_x f − α Σ_{t=N−T}^{N−1} ∇²_xy g(x_k, y_k^t) p_t)
            p_t = (I − α∇²_yy g(x_k, y_k^{t+1})) p_{t+1},   p_{N−1} = ∇_y f(x_k, y_k^N)

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        inner_steps: N, the steps on y per step on x, all on the same batch.
        truncate: T, how many of them to differentiate; all of them if left out.
        checkpoint_every: keep every so many of the inner iterates and recompute the rest on the way back. With
            about √T the memory grows like √T instead of T, for one more inner gradient per step.
    """
    inner_rule, outer_rule = as_rule(inner, "inner"), as_rule(outer, "outer")
    oracles = problem.oracles
    inner_loop = unroll(inner_field(oracles), inner_rule, inner_steps, truncate, checkpoint_every)

    def init(x0: PyTree, y0: PyTree, batch: Batch | None = None) -> ITDState:
        x, y = prepare(problem, x0, y0, batch)
        return ITDState(x, y, inner_rule.init(y), outer_rule.init(x))

    def step(state: ITDState, batch: Batch | None = None) -> tuple[ITDState, Info]:
        x = state.x
        y, inner_memory, gradient, pull_back = inner_loop(x, state.y, state.inner, batch)  # line 4
        f = oracles.outer_gradients(x, y, batch)
        hypergradient = tree.add(f.x, pull_back(f.y)[0])  # line 5
        x, outer_memory = descend(outer_rule, hypergradient, state.outer, x)  # line 6
        return ITDState(x, y, inner_memory, outer_memory), Info(f.value, hypergradient, gradient, {})

    step_sizes = plain(alpha=inner, beta=outer) if inner_steps == 1 else {}
    return Solver("ITD", problem, ("x", "y"), init, step, inner_step(oracles, inner_rule), step_sizes)
