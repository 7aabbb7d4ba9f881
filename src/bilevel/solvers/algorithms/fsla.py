"""FSLA: one step on y, one on v, and a hypergradient with recursive momentum (Li, Gu & Huang 2022)."""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int
from optax import tree

from bilevel.oracles import Oracles
from bilevel.solvers.algorithms.double_momentum import as_momentum
from bilevel.solvers.kit import Batch, Draws, ImplicitSolver, Info, Problem, Traits, descend, draws
from bilevel.solvers.options import Rule, check_batches, factory, field, rule_of
from bilevel.solvers.parts.estimates import Point, at_both, leaning, recursive
from bilevel.solvers.parts.lagrangian import lagrangian
from bilevel.solvers.parts.penalty import Penalty
from bilevel.types import Number, PyTree, Scalar, Schedule, StepSize


class FSLAState(NamedTuple):
    x: PyTree
    y: PyTree
    v: PyTree
    inner: PyTree  # memory of the inner rule
    adjoint: PyTree  # memory of the adjoint rule
    outer: PyTree  # memory of the outer rule
    before: PyTree  # x_{k−1}
    direction: PyTree  # h_{k−1}
    k: Int[Array, ""]


class FSLA(ImplicitSolver):
    adjoint: Rule = field(converter=rule_of("adjoint"))
    momentum: Penalty = field(converter=as_momentum)
    batches: str = field(static=True, converter=check_batches)
    name: ClassVar[str] = "FSLA"
    traits: ClassVar[Traits] = Traits(inner_rule="plain", extra_draws=2)

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | Draws | None = None) -> FSLAState:
        start = self.start(x0, y0, batch)
        return self._start_estimate(FSLAState(*start, start.x, start.x, jnp.int32(0)), batch)

    def step(self, state: FSLAState, batch: Batch | Draws | None = None) -> tuple[FSLAState, Info]:
        x, problem, oracles = state.x, self.problem, self.problem.oracles
        S, T, D = (draws(batch)[i % self.draws] for i in range(3))

        gradient = oracles.inner_gradient(x, state.y, S)
        y, inner = descend(self.inner, gradient, state.inner, state.y, lambda y: problem.g(x, y, S))
        v, adjoint, metrics = self.system(x, y, inner, [T]).solve(state.v, state.adjoint)

        here, before = Point(x, y, v), Point(state.before, state.y, state.v)
        (value, now), (_, then) = at_both(lambda at: _hypergradient(oracles, at, D), here, before)
        h = recursive(state.direction, now, then, self.momentum(state.k))
        for_x = leaning(lagrangian(problem, y, v, D), x, h)
        x, outer = descend(self.outer, h, state.outer, x, for_x)
        state = FSLAState(x, y, v, inner, adjoint, outer, here.x, h, state.k + 1)
        return state, Info(value, h, gradient, metrics)

    def warm_up(self, state: FSLAState, batch: Batch | Draws | None = None) -> FSLAState:
        return self._start_estimate(super().warm_up(state, batch), batch)

    def _start_estimate(self, state: FSLAState, batch: Batch | Draws | None) -> FSLAState:
        """Return the state with the hypergradient of this batch as its estimate."""
        here, D = Point(state.x, state.y, state.v), draws(batch)[self.draws - 1]
        return state._replace(direction=_hypergradient(self.problem.oracles, here, D)[1])


@factory()
def fsla(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    adjoint: StepSize | Rule,
    outer: StepSize | Rule,
    momentum: Number | Schedule = 0.1,
    batches: str = "shared",
) -> FSLA:
    """Run `bl.aid` with a recursive estimate of the hypergradient:

        y_{k+1} = y_k − α ∇_y g(x_k, y_k)
        v_{k+1} = v_k − η (∇²_yy g(x_k, y_{k+1}) v_k − ∇_y f(x_k, y_{k+1}))
        h_k     = p(x_k, y_{k+1}, v_{k+1}) + (1 − θ_k)(h_{k−1} − p(x_{k−1}, y_k, v_k))      p = ∇_x f − ∇²_xy g·v
        x_{k+1} = x_k − β h_k

    J. Li, B. Gu, H. Huang, "A fully single loop algorithm for bilevel optimization without Hessian inverse", AAAI 2022,
    with step sizes and θ_k ∝ k^{−1/2}: pass optax schedules. The first h is p(x_0, y_1, v_1). On the full batch it is
    AID.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        adjoint: η as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        momentum: θ between 0 and 1, the weight of the new gradient (1: AID), or a function k ↦ θ_k.
        batches: "shared", one draw of each level for all lines; or "independent", one for each of y, v and h.
    """
    return FSLA(problem, inner, adjoint, outer, momentum, batches)


def _hypergradient(oracles: Oracles, at: Point, batch: Batch | None) -> tuple[Scalar, PyTree]:
    """Return f, and ∇_x f − ∇²_xy g·v."""
    f = oracles.outer_gradients(at.x, at.y, batch)
    return f.value, tree.sub(f.x, oracles.curvature(at.x, at.y, batch).cross(at.v))
