"""SRBA: SOBA with recursive estimates of its directions, and a full pass now and then (Dagréou et al. 2023)."""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int
from optax import tree

from bilevel.oracles import Along, Gradients, Oracles
from bilevel.solvers.kit import Batch, ImplicitSolver, Info, Problem, Traits, descend
from bilevel.solvers.options import Rule, count, factory, field, rule_of
from bilevel.solvers.parts.estimates import Point, at_both, leaning, recursive
from bilevel.solvers.parts.lagrangian import energy, lagrangian
from bilevel.solvers.parts.whole import mean
from bilevel.types import PyTree, Scalar, StepSize


class SRBAState(NamedTuple):
    x: PyTree
    y: PyTree
    v: PyTree
    inner: PyTree  # memory of the inner rule
    adjoint: PyTree  # memory of the adjoint rule
    outer: PyTree  # memory of the outer rule
    before: Point  # (x_{k−1}, y_{k−1}, v_{k−1})
    directions: Point  # the estimates of the last step
    k: Int[Array, ""]


class SRBA(ImplicitSolver):
    adjoint: Rule = field(converter=rule_of("adjoint"))
    period: int = field(static=True, converter=count("period"))
    name: ClassVar[str] = "SRBA"
    traits: ClassVar[Traits] = Traits(inner_rule="plain", outer_at="start")

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | None = None) -> SRBAState:
        start = self.start(x0, y0, batch)
        here = Point(start.x, start.y, start.v)
        return SRBAState(*start, here, tree.zeros_like(here), jnp.int32(0))

    def step(self, state: SRBAState, batch: Batch | None = None) -> tuple[SRBAState, Info]:
        problem, here = self.problem, Point(state.x, state.y, state.v)
        oracles = problem.oracles

        def restart():
            g = mean(lambda part: _of_g(oracles, here, part), batch, "inner", self.name)
            f = mean(lambda part: _of_f(oracles, here, part), batch, "outer", self.name)
            value, now = _directions(g, f)
            return value, now, now.y

        def continued():
            on_batch = lambda at: _directions(_of_g(oracles, at, batch), _of_f(oracles, at, batch))
            (value, now), (_, then) = at_both(on_batch, here, state.before)
            return value, recursive(state.directions, now, then), now.y

        value, d, gradient = lax.cond(state.k == 0, restart, continued)

        for_y = leaning(lambda y: problem.g(here.x, y, batch), here.y, d.y)
        for_v = leaning(_energy(problem, here, batch), here.v, d.v)
        for_x = leaning(lagrangian(problem, here.y, here.v, batch), here.x, d.x)
        y, inner_memory = descend(self.inner, d.y, state.inner, here.y, for_y)
        v, adjoint_memory = descend(self.adjoint, d.v, state.adjoint, here.v, for_v)
        x, outer_memory = descend(self.outer, d.x, state.outer, here.x, for_x)

        memories = inner_memory, adjoint_memory, outer_memory
        state = SRBAState(x, y, v, *memories, here, d, (state.k + 1) % self.period)
        return state, Info(value, d.x, gradient, {"adjoint_residual": tree.norm(d.v)})


@factory()
def srba(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    adjoint: StepSize | Rule,
    outer: StepSize | Rule,
    period: int = 64,
) -> SRBA:
    """Run `bl.soba` with SARAH's estimate of its three directions:

        D(w)    = (∇_y g, ∇²_yy g·v − ∇_y f, ∇_x f − ∇²_xy g·v) at w = (x, y, v)
        d_k     = D(w_k)                                     every `period` steps, on all the data
        d_k     = D(w_k; B_k) − D(w_{k−1}; B_k) + d_{k−1}    otherwise
        y_{k+1} = y_k − α d_k^y        v_{k+1} = v_k − η d_k^v        x_{k+1} = x_k − β d_k^x

    The errors of successive steps cancel, so constant step sizes converge to the solution itself. It stores one point
    and one direction. A step costs two of SOBA's, in one pass over the batch, and the full pass. Draw batches with
    `bl.blocks`, `bl.epochs` or `bl.iid`, which give access to all the data. For many data the full pass is the mean
    over pieces of a batch's size, if that divides the rows. In a sweep every step pays for the full pass, as lanes
    cannot branch. On the full batch it is SOBA. M. Dagréou, T. Moreau, S. Vaiter, P. Ablin, "A lower bound and a
    near-optimal algorithm for bilevel empirical risk minimization", AISTATS 2024; their v has the opposite sign.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        adjoint: η as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        period: steps from one full pass to the next; half an epoch of both levels together in the authors' experiments.
    """
    return SRBA(problem, inner, adjoint, outer, period)


def _of_g(oracles: Oracles, at: Point, batch: Batch | None) -> Along:
    return oracles.along(*at, batch)


def _of_f(oracles: Oracles, at: Point, batch: Batch | None) -> Gradients:
    return oracles.outer_gradients(at.x, at.y, batch)


def _directions(g: Along, f: Gradients) -> tuple[Scalar, Point]:
    """Return f and SOBA's three directions."""
    return f.value, Point(tree.sub(f.x, g.cross), g.gradient, tree.sub(g.hessian, f.y))


def _energy(problem: Problem, at: Point, batch: Batch | None) -> Callable[[PyTree], Scalar]:
    """Return the function that the step on v lowers; it takes derivatives only if a rule calls it."""
    oracles = problem.oracles

    def value(v: PyTree) -> Scalar:
        return energy(oracles.curvature(at.x, at.y, batch), oracles.outer_gradients(at.x, at.y, batch).y)(v)

    return value
