"""Single-loop approximate implicit differentiation (Algorithm 1 of the paper)."""

from typing import ClassVar

import equinox as eqx
from optax import tree

from bilevel.batch import Batch, Draws, draws
from bilevel.checks import check_count, check_problem, prepare
from bilevel.problem import Problem
from bilevel.solvers.adjoints.base import Adjoint
from bilevel.solvers.adjoints.gradient_steps import as_adjoint
from bilevel.solvers.base import ImplicitState, Info, Solver, check_batches
from bilevel.solvers.fixed_points import adjoint_system, check_rests, residual
from bilevel.solvers.parts.inner import inner_loop, seen_by
from bilevel.solvers.rules import Rule, as_rule, descend
from bilevel.solvers.traits import Traits
from bilevel.types import PyTree, StepSize


class AID(Solver):
    inner: Rule
    adjoint: Adjoint
    outer: Rule
    inner_steps: int = eqx.field(static=True)
    batches: str = eqx.field(static=True, default="shared")
    name: ClassVar[str] = "AID"
    variables: ClassVar[tuple[str, ...]] = ("x", "y", "v")
    traits: ClassVar[Traits] = Traits(supports_prox=True)

    @property
    def draws(self) -> int:
        return 1 if self.batches == "shared" else self.inner_steps + 2

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | Draws | None = None) -> ImplicitState:
        x, y = prepare(self.problem, x0, y0, batch)
        check_rests(self, y)
        v = tree.zeros_like(y)
        return ImplicitState(x, y, v, self.inner.init(y), self.adjoint.init(v), self.outer.init(x))

    def step(self, state: ImplicitState, batch: Batch | Draws | None = None) -> tuple[ImplicitState, Info]:
        x, problem, oracles = state.x, self.problem, self.problem.oracles
        y, inner_memory, gradient, last, model = inner_loop(
            problem, self.inner, self.inner_steps, x, state.y, state.inner, batch
        )  # line 4
        own = [seen_by(model, draws(batch)[i]) for i in range(self.inner_steps, self.draws)]  # for v and x

        rule = self.inner_at(x)

        def at_new_y(batch):
            g, f = oracles.curvature(x, y, batch), oracles.outer_gradients(x, y, batch)
            return adjoint_system(problem, rule, inner_memory, x, y, g, f.y, batch), f

        seen = [at_new_y(each) for each in own or [last]]
        (for_v, _), ((inner, _, lagrangian), f) = seen[0], seen[-1]
        v, adjoint_memory, metrics = self.adjoint.solve(
            for_v.inner, for_v.b, state.v, state.adjoint
        )  # line 6
        hypergradient = tree.sub(f.x, inner.cross(v))  # line 7
        x, outer_memory = descend(self.outer, hypergradient, state.outer, x, lagrangian(v))  # line 8

        inner_gradient = residual(problem, rule, state.inner, state.y, gradient)
        state = ImplicitState(x, y, v, inner_memory, adjoint_memory, outer_memory)
        return state, Info(f.value, hypergradient, inner_gradient, metrics, model)


def aid(
    problem: Problem,
    inner: StepSize | Rule,
    adjoint: StepSize | Rule | Adjoint,
    outer: StepSize | Rule,
    *,
    inner_steps: int = 1,
    batches: str | None = None,
) -> AID:
    """One warm-started step on y, one on the adjoint v, one on x:

        ŷ_k     = y_k⁰ − α ∇_y g(x_k, y_k⁰)                          y_k⁰ = ŷ_{k−1}
        v̂_k     = (I − η ∇²_yy g(x_k, ŷ_k)) v_k⁰ + η ∇_y f(x_k, ŷ_k)   v_k⁰ = v̂_{k−1}
        x_{k+1} = x_k − β (∇_x f(x_k, ŷ_k) − ∇²_xy g(x_k, ŷ_k) v̂_k)

    `inner_steps` = N takes N steps on y first, and `adjoint` may be any way to work on the adjoint system:
    with `adjoints.steps` or `adjoints.cg` this is AID-BiO (Ji et al. 2021) and the loop choices of
    Ji et al. 2022, with `adjoints.neumann` the deterministic variant of BA (Ghadimi & Wang 2018, there without warm
    start of y; their stochastic one truncates the series at random). With an inner rule that rests elsewhere than at
    ∇_y g = 0, or a problem with `prox`, v solves the adjoint system of that point.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        adjoint: η as a float, any optax transformation, or an `bl.Adjoint`.
        outer: β as a float, or any optax transformation.
        inner_steps: N, the number of steps on y per step on x.
        batches: "shared", one draw of each level for all of a step; or "independent", one for each of the N steps on
            y, one for v and one for x. If left out, "shared" for one inner step, as in the paper, and "independent"
            for several, which would otherwise fit y to one batch. A product with v̂_k on the batch that made ŷ_k is
            biased, so certificates for minibatches, `bl.theory.stochastic.aid`, ask for "independent".
    """
    return AID(
        check_problem(problem),
        as_rule(inner, "inner"),
        as_adjoint(adjoint),
        as_rule(outer, "outer"),
        check_count(inner_steps, "inner_steps"),
        check_batches(("shared" if inner_steps == 1 else "independent") if batches is None else batches),
    )
