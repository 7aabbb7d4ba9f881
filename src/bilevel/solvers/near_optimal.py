"""F²BA: the penalty method on two time scales, of near-optimal first-order complexity."""

from typing import Any, NamedTuple

from bilevel.checks import check_count, prepare
from bilevel.problem import Batch, Problem
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.penalty import Copies, estimate, track
from bilevel.solvers.rule import as_rule, check_positive, descend

PyTree = Any


class F2BAState(NamedTuple):
    x: PyTree
    y: PyTree  # tracks y_λ(x), the minimiser of f + λg
    z: PyTree  # tracks y*(x), the minimiser of g
    inner: tuple[PyTree, PyTree]  # the inner rule's states, of y and of z
    outer: PyTree  # state of the outer rule


def f2ba(problem: Problem, inner: Any, outer: Any, penalty: float, inner_steps: int = 10) -> Solver:
    """Gradient descent on L_λ, its gradient from warm-started inner loops (K = `inner_steps` of the first two lines):

        z ← z − α ∇_y g(x_t, z)
        y ← y − (α/λ) (∇_y f(x_t, y) + λ ∇_y g(x_t, y))
        x_{t+1} = x_t − η (∇_x f(x_t, y) + λ (∇_x g(x_t, y) − ∇_x g(x_t, z)))

    The penalty is fixed, so the limit is off by O(1/λ); unlike in [`f2sa`][bilevel.f2sa] the step on x does not
    shrink with λ, because L_λ is as smooth as Φ whatever λ is. L. Chen, Y. Ma, J. Zhang, "Near-optimal
    nonconvex-strongly-convex bilevel optimization with fully first-order oracles", JMLR 2025, take
    K = O(κ log(λκ)) and λ of the order of κ³/ε; the step on y is there a separate τ, here α/λ.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation, of which each copy has its own.
        outer: η as a float, or any optax transformation.
        penalty: λ.
        inner_steps: K, the steps on y and z per step on x.
    """
    inner_rule, outer_rule = as_rule(inner, "inner"), as_rule(outer, "outer")
    check_positive(penalty, "penalty")
    oracles = problem.oracles
    follow = track(oracles, inner_rule, check_count(inner_steps, "inner_steps"))
    follow_once = track(oracles, inner_rule, 1)

    def init(x0: PyTree, y0: PyTree, batch: Batch | None = None) -> F2BAState:
        x, y = prepare(problem, x0, y0, batch)
        return F2BAState(x, y, y, (inner_rule.init(y), inner_rule.init(y)), outer_rule.init(x))

    def step(state: F2BAState, batch: Batch | None = None) -> tuple[F2BAState, Info]:
        x = state.x
        (y, z, *memories), gradient = follow(x, Copies(state.y, state.z, *state.inner), penalty, batch)
        value, hypergradient = estimate(oracles, x, y, z, penalty, batch)
        x, outer_memory = descend(outer_rule, hypergradient, state.outer, x)
        return F2BAState(x, y, z, tuple(memories), outer_memory), Info(value, hypergradient, gradient, {})

    def warm_up(state: F2BAState, batch: Batch | None = None) -> F2BAState:
        copies = Copies(state.y, state.z, *state.inner)
        (y, z, *memories), _ = follow_once(state.x, copies, penalty, batch)
        return state._replace(y=y, z=z, inner=tuple(memories))

    return Solver("F2BA", problem, ("x", "y", "z"), init, step, warm_up)
