"""Single-loop approximate implicit differentiation (Algorithm 1 of the paper)."""

from typing import ClassVar

from bilevel.batch import draws
from bilevel.solvers.adjoints.base import Adjoint, as_adjoint
from bilevel.solvers.kit import Batch, Draws, ImplicitSolver, ImplicitState, Info, Problem, Traits, descend
from bilevel.solvers.options import Rule, check_batches, count, factory, field
from bilevel.solvers.parts.inner import Carried, inner_loop, seen_by
from bilevel.types import StepSize


class AID(ImplicitSolver):
    adjoint: Adjoint = field(converter=as_adjoint)
    inner_steps: int = field(static=True, converter=count("inner_steps"))
    batches: str = field(static=True, converter=check_batches)
    name: ClassVar[str] = "AID"
    traits: ClassVar[Traits] = Traits(supports_prox=True, inner_rule="differentiable", extra_draws=2)

    def step(self, state: ImplicitState, batch: Batch | Draws | None = None) -> tuple[ImplicitState, Info]:
        x, loop = state.x, (self.problem, self.inner, self.inner_steps)
        y, inner, gradient, last, model = inner_loop(*loop, x, state.y, state.inner, batch)  # line 4
        system = self.system(x, y, inner, self.draws_after(batch, last, model))
        v, adjoint, metrics = system.solve(state.v, state.adjoint)  # line 6
        hypergradient = system.hypergradient(v)  # line 7
        x, outer = descend(self.outer, hypergradient, state.outer, x, system.lagrangian(v))  # line 8
        info = Info(system.f.value, hypergradient, self.residual(state, gradient), metrics, model)
        return ImplicitState(x, y, v, inner, adjoint, outer), info

    def draws_after(
        self, batch: Batch | Draws | None, last: Batch | None, model: Carried | None
    ) -> list[Batch | None]:
        """Return the draws for v and for x, or if the step has one draw for all, the last of the inner steps."""
        own = [seen_by(model, draws(batch)[i]) for i in range(self.inner_steps, self.draws)]
        return own or [last]


@factory()
def aid(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    adjoint: StepSize | Rule | Adjoint,
    outer: StepSize | Rule,
    inner_steps: int = 1,
    batches: str | None = None,
) -> AID:
    """Take one warm-started step on y, one on the adjoint v and one on x:

        ŷ_k     = y_k⁰ − α ∇_y g(x_k, y_k⁰)                          y_k⁰ = ŷ_{k−1}
        v̂_k     = (I − η ∇²_yy g(x_k, ŷ_k)) v_k⁰ + η ∇_y f(x_k, ŷ_k)   v_k⁰ = v̂_{k−1}
        x_{k+1} = x_k − β (∇_x f(x_k, ŷ_k) − ∇²_xy g(x_k, ŷ_k) v̂_k)

    `inner_steps` = N takes N steps on y first, and `adjoint` may be any `bl.Adjoint`. With `adjoints.steps` or
    `adjoints.cg` this is AID-BiO (Ji et al. 2021) with the loop choices of Ji et al. 2022. With `adjoints.neumann` it
    is the deterministic variant of BA (Ghadimi & Wang 2018), which has no warm start of y; their stochastic one
    truncates the series at random. If the inner rule converges where ∇_y g is not 0, or the problem has `prox`, v
    solves the adjoint system of that fixed point.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        adjoint: η as a float, any optax transformation, or a `bl.Adjoint`.
        outer: β as a float, or any optax transformation.
        inner_steps: N, the number of steps on y per step on x.
        batches: "shared", one draw of each level per step; or "independent", one for each of the N steps on y, one for
            v and one for x. The default is "shared" for one inner step, as in the paper, and "independent" for several,
            which would otherwise fit y to one batch. A product with v̂_k on the batch that made ŷ_k is biased, so the
            certificates for minibatches, `bl.theory.stochastic.aid`, need "independent".
    """
    if batches is None:
        batches = "shared" if inner_steps == 1 else "independent"
    return AID(problem, inner, adjoint, outer, inner_steps, batches)
