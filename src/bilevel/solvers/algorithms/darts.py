"""DARTS' two updates (Liu, Simonyan & Yang 2019), which avoid second derivatives of g."""

from typing import ClassVar

from optax import tree

from bilevel.batch import Batch
from bilevel.checks import check_positive, check_problem, prepare
from bilevel.problem import Problem
from bilevel.solvers.base import ExplicitState, Info, Solver
from bilevel.solvers.parts.difference import cross_difference
from bilevel.solvers.parts.inner import inner_loop
from bilevel.solvers.parts.trees import scaled
from bilevel.solvers.rules import Rule, as_rule, descend
from bilevel.solvers.traits import Traits
from bilevel.types import Number, PyTree, StepSize


class DARTS(Solver):
    inner: Rule
    outer: Rule
    xi: Number
    epsilon: Number
    name: ClassVar[str] = "DARTS"
    traits: ClassVar[Traits] = Traits(first_order=True)

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | None = None) -> ExplicitState:
        x, y = prepare(self.problem, x0, y0, batch)
        return ExplicitState(x, y, self.inner.init(y), self.outer.init(x))

    def step(self, state: ExplicitState, batch: Batch | None = None) -> tuple[ExplicitState, Info]:
        x, problem, oracles = state.x, self.problem, self.problem.oracles
        y, inner_memory, inner_gradient, *_ = inner_loop(
            problem, self.inner, 1, x, state.y, state.inner, batch
        )

        ahead = lambda x: tree.sub(y, scaled(self.xi, oracles.inner_gradient(x, y, batch)))
        f = oracles.outer_gradients(x, ahead(x), batch)
        cross = cross_difference(oracles, x, y, f.y, self.epsilon, batch)
        hypergradient = tree.sub(f.x, scaled(self.xi, cross))
        value = lambda x: problem.f(x, ahead(x), batch)
        x, outer_memory = descend(self.outer, hypergradient, state.outer, x, value)
        return ExplicitState(x, y, inner_memory, outer_memory), Info(
            f.value, hypergradient, inner_gradient, {}
        )


class FirstOrderDARTS(Solver):
    inner: Rule
    outer: Rule
    name: ClassVar[str] = "DARTS, first order"
    traits: ClassVar[Traits] = Traits(first_order=True)

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | None = None) -> ExplicitState:
        x, y = prepare(self.problem, x0, y0, batch)
        return ExplicitState(x, y, self.inner.init(y), self.outer.init(x))

    def step(self, state: ExplicitState, batch: Batch | None = None) -> tuple[ExplicitState, Info]:
        x, problem = state.x, self.problem
        y, inner_memory, inner_gradient, *_ = inner_loop(
            problem, self.inner, 1, x, state.y, state.inner, batch
        )
        f = problem.oracles.outer_gradients(x, y, batch)
        x, outer_memory = descend(self.outer, f.x, state.outer, x, lambda x: problem.f(x, y, batch))
        return ExplicitState(x, y, inner_memory, outer_memory), Info(f.value, f.x, inner_gradient, {})


def darts(
    problem: Problem, inner: StepSize | Rule, outer: StepSize | Rule, *, xi: Number, epsilon: Number = 0.01
) -> DARTS:
    """DARTS, second order: one virtual step on y, differentiated by a finite difference.

        y_{k+1} = y_k − α ∇_y g(x_k, y_k)
        y'      = y_{k+1} − ξ ∇_y g(x_k, y_{k+1})         b = ∇_y f(x_k, y'),   h = epsilon / ‖b‖
        x_{k+1} = x_k − β (∇_x f(x_k, y') − ξ (∇_x g(x_k, y_{k+1} + hb) − ∇_x g(x_k, y_{k+1} − hb)) / 2h)

    What it neglects: like single-loop ITD it looks one step ahead, so it keeps ITD's bias: it treats
    (∇²_yy g)⁻¹ as ξI. The difference adds an error of order epsilon².

    The publication's alternation, cut at the other end: there a step begins with x and ends with y, here it begins
    with y. The sequence of updates is the same but for the first one on x. ξ is there the inner step size. The
    authors' code also carries the inner optimizer's momentum into the virtual step; here y' is a plain gradient
    step.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        xi: ξ, the length of the virtual step, usually the inner step size.
        epsilon: the displacement of y in the difference; 0.01 is the publication's.
    """
    check_positive(xi, "virtual step size xi")
    check_positive(epsilon, "displacement epsilon")
    return DARTS(check_problem(problem), as_rule(inner, "inner"), as_rule(outer, "outer"), xi, epsilon)


def darts_first_order(problem: Problem, inner: StepSize | Rule, outer: StepSize | Rule) -> FirstOrderDARTS:
    """DARTS, first order (ξ = 0): y and x descend in turn, each as if the other were a constant.

        y_{k+1} = y_k − α ∇_y g(x_k, y_k)
        x_{k+1} = x_k − β ∇_x f(x_k, y_{k+1})

    What it neglects: that y* depends on x, so the whole implicit term. Where f does not contain x itself, as
    in data reweighting or hyperparameter tuning, it never moves x at all. As in `bl.solvers.darts`, a step
    begins with y.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
    """
    return FirstOrderDARTS(check_problem(problem), as_rule(inner, "inner"), as_rule(outer, "outer"))
