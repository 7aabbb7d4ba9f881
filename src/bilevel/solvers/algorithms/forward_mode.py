"""Forward mode, for an x of few entries: ITD without stored iterates, and RTHO, whose state holds dy/dx.

The derivative Z_t = dy_t/dx is updated along with the inner iterate. For gradient descent

    Z_{t+1} = (I − α∇²_yy g(x, y_t)) Z_t − α∇²_yx g(x, y_t)

Other rules use the rule's derivative, with its memory. A model's state is differentiated too. Each step costs
as many products with a direction in (x, y) as x has entries. The memory does not grow with the steps.

L. Franceschi, M. Donini, P. Frasconi, M. Pontil, "Forward and reverse gradient-based hyperparameter
optimization", ICML 2017.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from optax import tree

from bilevel.batch import draws, with_state
from bilevel.solvers.kit import Batch, Draws, ExplicitSolver, ExplicitState, Info, Problem, Traits, descend
from bilevel.solvers.options import Rule, check_batches, count, factory, field
from bilevel.solvers.parts.inner import Carried, carried, carried_state, inner_loop, inner_rule, next_state
from bilevel.solvers.parts.trees import select, split
from bilevel.solvers.parts.unroll import state_gradient
from bilevel.types import PyTree, Scalar, StepSize


class Directions(NamedTuple):
    """Z: the derivatives in every entry of x, along the first axis."""

    y: PyTree
    memory: list[Any]  # of its floating leaves
    state: list[Any]  # of the floating leaves of the model's state


class Pushed(NamedTuple):
    y: PyTree  # y_N
    memory: PyTree  # m_N
    z: Directions  # Z_N of y, of the memory and of s_N
    gradient: PyTree  # ∇_y g at y_0
    z_seen: PyTree  # Z of s_{N−1}, the state in the last step
    last: Batch | None  # the last draw, with that state
    model: Carried | None


def push(
    problem: Problem,
    rule: Rule,
    steps: int,
    x: PyTree,
    y: PyTree,
    memory: PyTree,
    z: Directions,
    state: PyTree,
    batch: Batch | Draws | None,
) -> Pushed:
    """Take `steps` inner steps from (y, memory) and the model's state at x, with their derivative from Z."""
    basis, drawn = unit_directions(x), draws(batch)

    def step(carry, t):
        y, memory, z, first, (_, _, state) = carry
        batch = with_state(drawn[t], state)
        gradient, tangent_of_g, after = linearized_jointly(problem, x, y, batch, state)
        moving, rebuild = split(memory)

        def update(
            gradient, moving, y, x
        ):  # only rules that ask for the value of g, and a proximal map, depend on x
            at_x = inner_rule(problem, rule, x)
            y, memory = descend(at_x, gradient, rebuild(moving), y, lambda y: problem.g(x, y, batch))
            return (y, split(memory)[0]), memory

        def pushed(e, z):
            of_gradient, of_state = tangent_of_g(e, z.y, z.state)
            of_y, of_memory = tangent(of_gradient, z.memory, z.y, e)
            return Directions(of_y, of_memory, of_state)

        (y, _), tangent, memory = jax.linearize(update, gradient, moving, y, x, has_aux=True)
        states = z.state, state, after
        return (y, memory, jax.vmap(pushed)(basis, z), select(t == 0, gradient, first), states), None

    carry = y, memory, z, tree.zeros_like(y), (z.state, state, state)
    end, _ = lax.scan(step, carry, jnp.arange(steps, dtype=jnp.int32))
    y, memory, z, gradient, (z_seen, *states) = end
    last = with_state(drawn[steps - 1], states[0])
    return Pushed(y, memory, z, gradient, z_seen, last, carried(*states))


def linearized_jointly(
    problem: Problem, x: PyTree, y: PyTree, batch: Batch | None, state: PyTree
) -> tuple[PyTree, Callable[..., tuple[PyTree, PyTree]], PyTree]:
    """Return (∇_y g, push, the next state), where push maps (dx, dy, ds) to the derivatives of both."""
    if state is None:
        g = problem.oracles.linearize_jointly(x, y, batch)
        return g.gradient, lambda dx, dy, ds: (g.push(dx, dy), ds), None
    moving, rebuild = split(state)

    def function(x: PyTree, y: PyTree, moving: list[Any]) -> tuple[tuple[PyTree, list[Any]], PyTree]:
        seen = with_state(batch, state := rebuild(moving))
        after = next_state(problem, x, y, seen, state)
        return (problem.oracles.inner_gradient(x, y, seen), split(after)[0]), after

    (gradient, _), push, after = jax.linearize(function, x, y, moving, has_aux=True)
    return gradient, push, after


def forward_hypergradient(problem: Problem, x: PyTree, pushed: Pushed) -> tuple[Scalar, PyTree]:
    """Return f(x, y_N), and ∇_x f + Zᵀ∇_y f with the part through the state in f."""
    y, batch = pushed.y, pushed.last
    f = problem.oracles.outer_gradients(x, y, batch)
    slopes = f.y, state_gradient(problem, x, y, batch, pushed.model)
    along = jax.vmap(lambda *row: jnp.asarray(tree.vdot(slopes, row)))(pushed.z.y, pushed.z_seen)
    return f.value, tree.add(f.x, ravel_pytree(x)[1](along))


def displaced(x: PyTree, y: PyTree, z: Directions, to: PyTree) -> PyTree:
    """Return y + Z(to − x): y as a function of x, to first order."""
    along, _ = ravel_pytree(tree.sub(to, x))
    return jax.tree.map(lambda a, rows: a + jnp.tensordot(along.astype(a.dtype), rows, axes=1), y, z.y)


def unit_directions(x: PyTree) -> PyTree:
    """Return the unit directions of x, stacked."""
    flat, unravel = ravel_pytree(x)
    return jax.vmap(unravel)(jnp.eye(flat.size, dtype=flat.dtype))


def no_derivative(x: PyTree, y: PyTree, memory: PyTree, state: PyTree) -> Directions:
    """Return Z = 0 for y and the floating parts of memory and state, with a row for every entry of x."""
    rows = sum(leaf.size for leaf in jax.tree.leaves(x))
    moving = Directions(y, split(memory)[0], split(state)[0])
    return jax.tree.map(lambda a: jnp.zeros((rows, *a.shape), a.dtype), moving)


class ForwardITD(ExplicitSolver):
    inner_steps: int = field(static=True, converter=count("inner_steps"))
    batches: str = field(static=True, converter=check_batches)
    name: ClassVar[str] = "forward ITD"
    traits: ClassVar[Traits] = Traits(
        supports_prox=True, differentiates_rule=True, uses_hessian=True, unrolled=True, outer_last_only=True
    )

    def step(self, state: ExplicitState, batch: Batch | Draws | None = None) -> tuple[ExplicitState, Info]:
        (x, y, memory, outer_memory), problem, N = state, self.problem, self.inner_steps
        model = carried_state(problem, batch) if N > 1 else None
        zero = no_derivative(x, y, memory, model)
        pushed = push(problem, self.inner, N, x, y, memory, zero, model, batch)
        f, hypergradient = forward_hypergradient(problem, x, pushed)

        def value(x):
            loop = inner_loop(problem, self.inner, N, x, y, memory, batch)
            return problem.f(x, loop.y, loop.last)

        x, outer_memory = descend(self.outer, hypergradient, outer_memory, x, value)
        state = ExplicitState(x, pushed.y, pushed.memory, outer_memory)
        return state, Info(f, hypergradient, pushed.gradient, {}, pushed.model)


@factory()
def forward_itd(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    inner_steps: int = 1,
    batches: str = "independent",
) -> ForwardITD:
    """Compute the hypergradient of `bl.itd` in forward mode: the same iterates at other costs.

        Z_{t+1} = (I − α∇²_yy g(x_k, y_k^t)) Z_t − α∇²_yx g(x_k, y_k^t)    Z_0 = 0,   y_k⁰ = y_{k−1}^N
        x_{k+1} = x_k − β (∇_x f(x_k, y_k^N) + Z_Nᵀ∇_y f(x_k, y_k^N))

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        inner_steps: N, the number of steps on y per step on x.
        batches: "independent", a draw for every inner step; or "shared", one for all, as in `bl.itd`.
    """
    return ForwardITD(problem, inner, outer, inner_steps, batches)


class RTHOState(NamedTuple):
    x: PyTree  # x_{k+1}
    y: PyTree  # y_k
    z: Directions  # Z_k of y, of the inner rule's memory and of the model's state, a row for every entry of x
    inner: PyTree  # memory of the inner rule
    outer: PyTree  # memory of the outer rule


class RTHO(ExplicitSolver):
    inner_steps: int = field(static=True, converter=count("inner_steps"))
    batches: str = field(static=True, converter=check_batches)
    name: ClassVar[str] = "RTHO"
    traits: ClassVar[Traits] = Traits(
        supports_prox=True, differentiates_rule=True, uses_hessian=True, outer_last_only=True
    )
    variables: ClassVar[tuple[str, ...]] = ("x", "y", "z")

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | Draws | None = None) -> RTHOState:
        x, y = self.prepare(x0, y0, batch)
        memory = self.inner.init(y)
        z = no_derivative(x, y, memory, carried_state(self.problem, batch))
        return RTHOState(x, y, z, memory, self.outer.init(x))

    def step(self, state: RTHOState, batch: Batch | Draws | None = None) -> tuple[RTHOState, Info]:
        x, problem, model = state.x, self.problem, carried_state(self.problem, batch)
        pushed = push(problem, self.inner, self.inner_steps, x, state.y, state.inner, state.z, model, batch)
        f, hypergradient = forward_hypergradient(problem, x, pushed)
        y, z = pushed.y, pushed.z
        value = lambda x: problem.f(x, displaced(state.x, y, z, to=x), pushed.last)
        x, outer_memory = descend(self.outer, hypergradient, state.outer, x, value)
        state = RTHOState(x, y, z, pushed.memory, outer_memory)
        return state, Info(f, hypergradient, pushed.gradient, {}, pushed.model)


@factory()
def rtho(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    inner_steps: int = 1,
    batches: str = "independent",
) -> RTHO:
    """Use forward mode and keep Z, like y, from one outer step to the next:

        Z_0 at step k is Z_N of step k−1:   Z ← (I − α∇²_yy g) Z − α∇²_yx g
        x_{k+1} = x_k − β (∇_x f(x_k, y_k) + Zᵀ∇_y f(x_k, y_k))

    Z then tracks dy*/dx = −(∇²_yy g)⁻¹∇²_yx g. So, unlike in `bl.itd`, no bias remains even with few inner steps. Z is
    part of the state: as many copies of y as x has entries.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        inner_steps: the number of steps on y per step on x (Δ in the publication).
        batches: "independent", a draw for every inner step; or "shared", one for all, as in `bl.itd`.
    """
    return RTHO(problem, inner, outer, inner_steps, batches)
