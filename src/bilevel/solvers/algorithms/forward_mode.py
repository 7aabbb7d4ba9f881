"""Forward mode (Franceschi et al. 2017): ITD without stored iterates, and RTHO, whose state holds dy/dx."""

from typing import ClassVar, NamedTuple

from bilevel.solvers.kit import Batch, Draws, ExplicitSolver, ExplicitState, Info, Problem, Traits, descend
from bilevel.solvers.options import Rule, check_batches, count, factory, field
from bilevel.solvers.parts.forward import Directions, displaced, forward_hypergradient, no_derivative, push
from bilevel.solvers.parts.inner import carried_state, inner_loop
from bilevel.types import PyTree, StepSize


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
