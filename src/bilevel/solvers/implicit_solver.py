"""Implicit differentiation: the adjoint system of a step, and base classes of methods with rules for y, v and x."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
from optax import tree

from bilevel.batch import Batch
from bilevel.oracles import Curvature, Gradients
from bilevel.solvers.adjoints.base import as_adjoint
from bilevel.solvers.base import Solver
from bilevel.solvers.fixed_points import System as FixedPointSystem, adjoint_system, residual
from bilevel.solvers.options import rule_of
from bilevel.solvers.rules import Rule
from bilevel.solvers.traits import Traits
from bilevel.types import Metrics, PyTree, Scalar

Function = Callable[[PyTree], Scalar]


class ImplicitState(NamedTuple):
    """State of methods with an adjoint variable."""

    x: PyTree  # x_{k+1}
    y: PyTree  # ŷ_k, the next warm start
    v: PyTree  # v̂_k, the next warm start
    inner: PyTree  # memory of the inner rule
    adjoint: PyTree  # memory of the adjoint rule or ingredient
    outer: PyTree  # memory of the outer rule


class System(NamedTuple):
    """Adjoint system K v = b at one point (x, y), and the results of its solution.

    K is ∇²_yy g and b is ∇_y f if the inner rule converges where ∇_y g = 0. For other rules it is the system
    of their fixed point. Of several draws the first is for y, the last for x and the one before the last for
    v.
    """

    adjoint: Any  # the method for the system
    gradient: PyTree | None  # ∇_y g on the draw for y, if it was needed
    for_v: tuple[Curvature, PyTree]  # K and b on the draw for v
    f: Gradients  # f and its gradients on the draw for x
    curvature: Curvature  # K on the draw for x, with its cross product
    b: PyTree  # the right-hand side on the draw for x
    lagrangian: Callable[
        [PyTree], Function
    ]  # v ↦ the function of x with this hypergradient, for line searches

    def solve(self, v: PyTree, memory: PyTree = ()) -> tuple[PyTree, PyTree, Metrics]:
        """Return the next v, the memory of the adjoint method and its metrics."""
        return as_adjoint(self.adjoint).solve(*self.for_v, v, memory)

    def hypergradient(self, v: PyTree) -> PyTree:
        """Return ∇_x f − ∇²_xy g·v."""
        return tree.sub(self.f.x, self.curvature.cross(v))


class SystemSolver(Solver):
    """Method that works on the adjoint system of the inner rule's fixed point."""

    def system(
        self,
        x: PyTree,
        y: PyTree,
        memory: PyTree,
        batches: Sequence[Batch | None],
        v: PyTree = None,
        f: Gradients | None = None,
    ) -> System:
        """Return the adjoint system at (x, y).

        Args:
            x: the outer variable.
            y: the inner variable.
            memory: the memory of the inner rule.
            batches: one batch for all parts of the step, or one for each in the order of `System`.
            v: the only vector that the step multiplies. One pass then gives ∇_y g and both products.
            f: the gradients of f, if they are known.
        """
        problem, rule, oracles = self.problem, self.inner_at(x), self.problem.oracles

        def on(batch: Batch | None) -> tuple[PyTree | None, Gradients, FixedPointSystem]:
            along = None if v is None else oracles.along(x, y, v, batch)
            of_f = oracles.outer_gradients(x, y, batch) if f is None else f
            g = oracles.curvature(x, y, batch)
            g, gradient = (g, None) if along is None else (g.knowing(v, along), along.gradient)
            return gradient, of_f, adjoint_system(problem, rule, memory, x, y, g, of_f.y, batch, gradient)

        drawn = [on(batch) for batch in batches]
        (gradient, _, _), (_, _, for_v), (_, of_f, for_x) = drawn[0], drawn[-2:][0], drawn[-1]
        return System(self.part("adjoint"), gradient, (for_v.inner, for_v.b), of_f, *for_x)

    def residual(self, state: Any, gradient: PyTree) -> PyTree:
        """Return ∇_y g at the state; if the inner rule converges elsewhere, the residual of its fixed point."""
        return residual(self.problem, self.inner_at(state.x), state.inner, state.y, gradient)


class ImplicitSolver(SystemSolver):
    """Solver with rules for y, v and x."""

    inner: Rule = eqx.field(converter=rule_of("inner"))
    adjoint: Any
    outer: Rule = eqx.field(converter=rule_of("outer"))
    variables: ClassVar[tuple[str, ...]] = ("x", "y", "v")
    traits: ClassVar[Traits] = Traits(inner_rule="differentiable")

    # A method with another state overrides this; hence `Any`.
    def init(self, x0: PyTree, y0: PyTree, batch: Any = None) -> ImplicitState | Any:
        return self.start(x0, y0, batch)

    def start(self, x0: PyTree, y0: PyTree, batch: Any) -> ImplicitState:
        """Return x0, y0, v = 0 and new memories of the three rules."""
        x, y = self.prepare(x0, y0, batch)
        v = tree.zeros_like(y)
        return ImplicitState(x, y, v, self.inner.init(y), self.adjoint.init(v), self.outer.init(x))
