"""Single-loop approximate implicit differentiation (Algorithm 1 of the paper)."""

from typing import Any, NamedTuple

from optax import tree

from bilevel.checks import check_count, prepare
from bilevel.problem import Batch, Problem
from bilevel.solvers.adjoints.steps import as_adjoint
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.inner import inner_loop, inner_step
from bilevel.solvers.rule import as_rule, descend, plain

PyTree = Any


class AIDState(NamedTuple):
    x: PyTree  # x_{k+1}
    y: PyTree  # ŷ_k, the next warm start
    v: PyTree  # v̂_k, the next warm start
    inner: PyTree  # state of the inner rule
    adjoint: PyTree  # memory of the adjoint ingredient
    outer: PyTree  # state of the outer rule


def aid(problem: Problem, inner: Any, adjoint: Any, outer: Any, *, inner_steps: int = 1) -> Solver:
    """One warm-started step on y, one on the adjoint v, one on x:

        ŷ_k     = y_k⁰ − α ∇_y g(x_k, y_k⁰)                          y_k⁰ = ŷ_{k−1}
        v̂_k     = (I − η ∇²_yy g(x_k, ŷ_k)) v_k⁰ + η ∇_y f(x_k, ŷ_k)   v_k⁰ = v̂_{k−1}
        x_{k+1} = x_k − β (∇_x f(x_k, ŷ_k) − ∇²_xy g(x_k, ŷ_k) v̂_k)

    `inner_steps` = N takes N steps on y first, and `adjoint` may be any way to work on the adjoint system:
    with `adjoints.steps` or `adjoints.cg` this is AID-BiO (Ji et al. 2021) and the loop choices of
    Ji et al. 2022, with `adjoints.neumann` BA (Ghadimi & Wang 2018, there without warm start of y).

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        adjoint: η as a float, any optax transformation, or an [`Adjoint`][bilevel.solvers.Adjoint].
        outer: β as a float, or any optax transformation.
        inner_steps: steps on y per step on x.
    """
    inner_rule, outer_rule = as_rule(inner, "inner"), as_rule(outer, "outer")
    inner_steps = check_count(inner_steps, "inner_steps")
    step_sizes = plain(alpha=inner, eta=adjoint, beta=outer) if inner_steps == 1 else {}
    adjoint, oracles = as_adjoint(adjoint), problem.oracles
    solve_inner = inner_loop(oracles, inner_rule, inner_steps)

    def init(x0: PyTree, y0: PyTree, batch: Batch | None = None) -> AIDState:
        x, y = prepare(problem, x0, y0, batch)
        v = tree.zeros_like(y)
        return AIDState(x, y, v, inner_rule.init(y), adjoint.init(v), outer_rule.init(x))

    def step(state: AIDState, batch: Batch | None = None) -> tuple[AIDState, Info]:
        x = state.x
        y, inner_memory, inner_gradient = solve_inner(x, state.y, state.inner, batch)  # line 4

        g, f = oracles.linearise(x, y, batch), oracles.outer_gradients(x, y, batch)
        v, adjoint_memory, metrics = adjoint.solve(g, f.y, state.v, state.adjoint)  # line 6
        hypergradient = tree.sub(f.x, g.cross(v))  # line 7
        x, outer_memory = descend(outer_rule, hypergradient, state.outer, x)  # line 8

        state = AIDState(x, y, v, inner_memory, adjoint_memory, outer_memory)
        return state, Info(f.value, hypergradient, inner_gradient, metrics)

    warm_up = inner_step(oracles, inner_rule)
    return Solver("AID", problem, ("x", "y", "v"), init, step, warm_up, step_sizes)
