"""IAPTT-GM: a learned starting point and a pessimistic end, for inner problems that are not convex."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.batch import first, with_state
from bilevel.checks import check_map
from bilevel.identity import Static
from bilevel.solvers.kit import Batch, Draws, ExplicitSolver, Info, Problem, Traits, descend, draws
from bilevel.solvers.options import Rule, check_batches, count, factory, field, rule_of
from bilevel.solvers.parts.inner import Carried, carried, carried_state, next_state
from bilevel.solvers.parts.trees import scaled, select, split
from bilevel.solvers.parts.unroll import held_fixed, inner_field, linearized, state_gradient, update
from bilevel.solvers.rules import check_projection
from bilevel.types import PyTree, StepSize


class IAPTTState(NamedTuple):
    x: PyTree  # x_{k+1}
    y: PyTree  # y_N, the end of the last inner loop
    z: PyTree  # the start of the next inner loop
    outer: PyTree  # memory of the outer rule
    start: PyTree  # memory of the rule that moves z


class Trajectory(NamedTuple):
    """Inner loop from z."""

    y: PyTree  # y_N
    gradient: PyTree  # ∇_y g at z
    model: Carried | None
    before: PyTree  # (y_t, m_t, s_t), t = 0, …, N−1, stacked; s_t is the model's state, if it is carried
    after: PyTree  # y_{t+1}, stacked
    values: jax.Array  # f(x, y_{t+1})


class IAPTT(ExplicitSolver):
    start: Rule = field(converter=rule_of("start"))
    inner_steps: int = field(static=True, converter=count("inner_steps"))
    project: Static | None = field(static=True)
    batches: str = field(static=True, converter=check_batches)
    name: ClassVar[str] = "IAPTT-GM"
    traits: ClassVar[Traits] = Traits(differentiates_rule=True, uses_hessian=True, outer_last_only=True)
    variables: ClassVar[tuple[str, ...]] = ("x", "y", "z")

    def sets_out(self, state: IAPTTState) -> PyTree:
        return state.z

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | Draws | None = None) -> IAPTTState:
        x, y = self.prepare(x0, y0, batch)
        if self.project is not None:
            check_projection(self.project.value, y)
        return IAPTTState(x, y, y, self.outer.init(x), self.start.init(y))

    def step(self, state: IAPTTState, batch: Batch | Draws | None = None) -> tuple[IAPTTState, Info]:
        x, z, problem, drawn = state.x, state.z, self.problem, draws(batch)
        y, gradient, model, before, after, values = self.inner_loop(x, z, batch)
        worst = jnp.argmax(values)  # t̂ − 1: the step that led to the worst point
        *_, s = _at(before, worst)
        y_worst, last = _at(after, worst), with_state(drawn[self.inner_steps - 1], s)
        f = problem.oracles.outer_gradients(x, y_worst, last)
        through_s = state_gradient(problem, x, y_worst, last, carried(s, s))

        def back(i, cotangents):
            p, q, r, x_bar = cotangents
            t = worst - i
            y, memory, s = _at(before, t)
            seen = with_state(drawn[t], s)
            direction, both = linearized(inner_field(problem), x, y, t, seen, s)
            _, pull_rule, _ = update(self.inner, direction, memory, y, lambda y: problem.g(x, y, seen))
            d, q, p = pull_rule((p, q))
            hessian, cross, r = both(d, r)
            r = tree.add(r, scaled(i == 0, through_s))  # f sees the state that this step saw
            return tree.add(p, hessian), q, r, tree.add(x_bar, cross)

        _, memory, _ = _at(before, 0)
        cotangents = f.y, tree.zeros_like(split(memory)[0]), tree.zeros_like(through_s), f.x
        for_z, _, _, hypergradient = lax.fori_loop(0, worst + 1, back, cotangents)

        worst_value = lambda x, z: jnp.max(self.inner_loop(x, z, batch).values)
        z_after, start_memory = descend(self.start, for_z, state.start, z, lambda z: worst_value(state.x, z))
        for_x = lambda x: worst_value(x, state.z)
        x, outer_memory = descend(self.outer, hypergradient, state.outer, x, for_x)
        z = z_after if self.project is None else self.project.value(z_after)
        state = IAPTTState(x, y, z, outer_memory, start_memory)
        return state, Info(f.value, hypergradient, gradient, {"truncated_at": worst + 1}, model)

    def warm_up(self, state: IAPTTState, batch: Batch | Draws | None = None) -> IAPTTState:
        x, z, batch = state.x, state.z, first(batch)
        gradient = self.problem.oracles.inner_gradient(x, z, batch)
        y, _ = descend(self.inner, gradient, self.inner.init(z), z, lambda y: self.problem.g(x, y, batch))
        return state._replace(y=y, z=y)

    def inner_loop(self, x: PyTree, z: PyTree, batch: Batch | Draws | None) -> Trajectory:
        problem, drawn, N = self.problem, draws(batch), self.inner_steps

        def forward(carry, t):
            point, first = carry
            y, memory, s = point
            seen = with_state(drawn[t], s)
            gradient = problem.oracles.inner_gradient(x, y, seen)
            value = held_fixed(lambda y: problem.g(x, y, seen))
            y_after, memory = descend(self.inner, gradient, memory, y, value)
            after = y_after, memory, next_state(problem, x, y, seen, s)
            judged = problem.f(x, y_after, with_state(drawn[N - 1], s))  # all on one draw, to be compared
            return (after, select(t == 0, gradient, first)), (point, y_after, judged)

        s = carried_state(problem, batch) if N > 1 else None
        begin = (z, self.inner.init(z), s), tree.zeros_like(z)
        end, (before, after, values) = lax.scan(forward, begin, jnp.arange(N, dtype=jnp.int32))
        (y, _, s), gradient = end
        model = carried(_at(before[2], N - 1), s)
        return Trajectory(y, gradient, model, before, after, values)


@factory()
def iaptt(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    inner_steps: int,
    start: StepSize | Rule | None = None,
    project: Callable[[PyTree], PyTree] | None = None,
    batches: str = "independent",
) -> IAPTT:
    """Start the inner loop from z, a variable of the outer problem, and differentiate its worst point:

        y_0     = z_k,   y_{t+1} = y_t − α ∇_y g(x_k, y_t)                   t = 0, …, N−1
        t̂       = argmax_{1 ≤ t ≤ N} f(x_k, y_t)
        x_{k+1} = x_k − β d/dx f(x_k, y_t̂(x_k, z_k))
        z_{k+1} = P(z_k − ζ d/dz f(x_k, y_t̂(x_k, z_k)))

    The worst point prevents a z with a good y_t that the inner problem would leave again. R. Liu, Y. Liu, S. Zeng, J.
    Zhang, "Toward gradient-based bilevel optimization with non-convex followers and beyond", NeurIPS 2021. There y and
    z are in a compact set; here only z is projected, if at all. Without a projection an f that is unbounded in y draws
    z away.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation, with a new memory in every inner loop.
        outer: β as a float, or any optax transformation.
        inner_steps: N, the number of inner steps. All N iterates are stored; only t̂ are differentiated.
        start: ζ as a float, or any optax transformation; the default is `outer`.
        project: P, a function from y's tree to itself; the default is the identity.
        batches: "independent", a draw for every inner step, on the last of which f judges all y_t; or "shared", one
            draw per step.
    """
    start = outer if start is None else start
    onto = None if project is None else Static(check_map(project))
    return IAPTT(problem, inner, outer, start, inner_steps, onto, batches)


def _at(stacked: PyTree, index: Any) -> PyTree:
    return jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, index, keepdims=False), stacked)
