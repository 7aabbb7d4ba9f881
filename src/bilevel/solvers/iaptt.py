"""IAPTT-GM: a learned starting point and a pessimistic end, for inner problems that are not convex."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.batch import Batch, Draws, first
from bilevel.checks import check_count, check_map, check_problem, prepare
from bilevel.identity import Static
from bilevel.problem import Problem
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.ingredients.trees import select
from bilevel.solvers.ingredients.unroll import held_fixed, split, update
from bilevel.solvers.rules import Rule, as_rule, descend
from bilevel.types import PyTree, StepSize


class IAPTTState(NamedTuple):
    x: PyTree  # x_{k+1}
    y: PyTree  # y_N, where the last inner loop ended
    z: PyTree  # where the next one begins
    outer: PyTree  # memory of the outer rule
    start: PyTree  # memory of the rule that moves z


class Trajectory(NamedTuple):
    """The inner loop from z."""

    y: PyTree  # y_N
    gradient: PyTree  # ∇_y g at z
    before: PyTree  # (y_t, m_t), t = 0, …, N−1, stacked
    after: PyTree  # y_{t+1}, stacked
    values: jax.Array  # f(x, y_{t+1})


class IAPTT(Solver):
    inner: Rule
    outer: Rule
    start: Rule
    inner_steps: int = eqx.field(static=True)
    project: Static | None = eqx.field(static=True)
    name: ClassVar[str] = "IAPTT-GM"
    through_rule: ClassVar[bool] = True
    curved: ClassVar[bool] = True
    variables: ClassVar[tuple[str, ...]] = ("x", "y", "z")

    def sets_out(self, state: IAPTTState) -> PyTree:
        return state.z

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | None = None) -> IAPTTState:
        x, y = prepare(self.problem, x0, y0, batch)
        return IAPTTState(x, y, y, self.outer.init(x), self.start.init(y))

    def step(self, state: IAPTTState, batch: Batch | None = None) -> tuple[IAPTTState, Info]:
        x, z, oracles = state.x, state.z, self.problem.oracles
        y, gradient, before, after, values = self.inner_loop(x, z, batch)
        worst = jnp.argmax(values)  # t̂ − 1: the step that led to the worst point
        f = oracles.outer_gradients(x, _at(after, worst), batch)

        def back(i, cotangents):
            p, q, x_bar = cotangents
            y, memory = _at(before, worst - i)
            g = oracles.linearise(x, y, batch)
            _, pull_rule, _ = update(self.inner, g.gradient, memory, y, lambda y: self.problem.g(x, y, batch))
            d, q, p = pull_rule((p, q))
            hessian, cross = g.both(d)
            return tree.add(p, hessian), q, tree.add(x_bar, cross)

        _, memory = _at(before, 0)
        cotangents = f.y, tree.zeros_like(split(memory)[0]), f.x
        for_z, _, hypergradient = lax.fori_loop(0, worst + 1, back, cotangents)

        worst_value = lambda x, z: jnp.max(self.inner_loop(x, z, batch).values)
        z_after, start_memory = descend(self.start, for_z, state.start, z, lambda z: worst_value(state.x, z))
        x, outer_memory = descend(
            self.outer, hypergradient, state.outer, x, lambda x: worst_value(x, state.z)
        )
        z = z_after if self.project is None else self.project.value(z_after)
        state = IAPTTState(x, y, z, outer_memory, start_memory)
        return state, Info(f.value, hypergradient, gradient, {"truncated_at": worst + 1})

    def warm_up(self, state: IAPTTState, batch: Batch | Draws | None = None) -> IAPTTState:
        x, z, batch = state.x, state.z, first(batch)
        gradient = self.problem.oracles.inner_gradient(x, z, batch)
        y, _ = descend(self.inner, gradient, self.inner.init(z), z, lambda y: self.problem.g(x, y, batch))
        return state._replace(y=y, z=y)

    def inner_loop(self, x: PyTree, z: PyTree, batch: Batch | None) -> Trajectory:
        problem = self.problem
        value = held_fixed(lambda y: problem.g(x, y, batch))

        def forward(carry, t):
            (y, memory), first = carry
            gradient = problem.oracles.inner_gradient(x, y, batch)
            after = descend(self.inner, gradient, memory, y, value)
            seen = (y, memory), after[0], problem.f(x, after[0], batch)
            return (after, select(t == 0, gradient, first)), seen

        begin = (z, self.inner.init(z)), tree.zeros_like(z)
        times = jnp.arange(self.inner_steps, dtype=jnp.int32)
        ((y, _), gradient), seen = lax.scan(forward, begin, times)
        return Trajectory(y, gradient, *seen)


def iaptt(
    problem: Problem,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    *,
    inner_steps: int,
    start: StepSize | Rule | None = None,
    project: Callable[[PyTree], PyTree] | None = None,
) -> IAPTT:
    """The inner loop starts from z, a variable of the outer problem, and its worst point is differentiated:

        y_0     = z_k,   y_{t+1} = y_t − α ∇_y g(x_k, y_t)                   t = 0, …, N−1
        t̂       = argmax_{1 ≤ t ≤ N} f(x_k, y_t)
        x_{k+1} = x_k − β d/dx f(x_k, y_t̂(x_k, z_k))
        z_{k+1} = P(z_k − ζ d/dz f(x_k, y_t̂(x_k, z_k)))

    Judging by the worst point keeps z from buying a good y_t that the inner problem would leave again. R. Liu,
    Y. Liu, S. Zeng, J. Zhang, "Towards gradient-based bilevel optimization with non-convex followers and beyond",
    NeurIPS 2021. There y and z live in a compact set; here only z is projected, if at all. Without a projection
    an f that is unbounded in y draws z away.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation, whose memory begins anew in every inner loop.
        outer: β as a float, or any optax transformation.
        inner_steps: N, the number of inner steps, all on the same batch. All N iterates are kept; only t̂ are
            differentiated.
        start: ζ as a float, or any optax transformation; as `outer` if left out.
        project: P, a function from y's tree to itself; the identity if left out.
    """
    return IAPTT(
        check_problem(problem),
        as_rule(inner, "inner"),
        as_rule(outer, "outer"),
        as_rule(outer if start is None else start, "start"),
        check_count(inner_steps, "inner_steps"),
        None if project is None else Static(check_map(project)),
    )


def _at(stacked: PyTree, index: Any) -> PyTree:
    return jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, index, keepdims=False), stacked)
