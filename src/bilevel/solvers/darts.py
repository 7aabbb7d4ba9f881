"""DARTS' two updates (Liu, Simonyan & Yang 2019), which avoid second derivatives of g."""

from typing import Any, NamedTuple

from optax import tree

from bilevel.checks import prepare
from bilevel.problem import Batch, Problem
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.difference import cross_difference
from bilevel.solvers.inner import inner_step
from bilevel.solvers.rule import as_rule, check_positive, descend

PyTree = Any


class DARTSState(NamedTuple):
    x: PyTree
    y: PyTree
    inner: PyTree  # state of the inner rule
    outer: PyTree  # state of the outer rule


def darts(problem: Problem, inner: Any, outer: Any, *, xi: Any, epsilon: float = 0.01) -> Solver:
    """DARTS, second order: one virtual step on y, differentiated by a finite difference.

        y'      = y_k − ξ ∇_y g(x_k, y_k)                 b = ∇_y f(x_k, y'),   h = epsilon / ‖b‖
        x_{k+1} = x_k − β (∇_x f(x_k, y') − ξ (∇_x g(x_k, y_k + hb) − ∇_x g(x_k, y_k − hb)) / 2h)
        y_{k+1} = y_k − α ∇_y g(x_{k+1}, y_k)

    What it neglects: like single-loop ITD it looks one step ahead, so it keeps ITD's bias: it treats
    (∇²_yy g)⁻¹ as ξI. The difference adds an error of order epsilon².

    As published, with ξ the inner step size there. The authors' code also carries the inner optimiser's
    momentum into the virtual step; here y' is a plain gradient step.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        xi: ξ, the length of the virtual step, usually the inner step size.
        epsilon: the displacement of y in the difference; 0.01 is the publication's.
    """
    check_positive(xi, "virtual step size xi")
    check_positive(epsilon, "displacement epsilon")
    oracles = problem.oracles

    def hypergradient(x: PyTree, y: PyTree, batch: Batch | None) -> tuple[Any, PyTree]:
        ahead = tree.add_scale(y, -xi, oracles.inner_gradient(x, y, batch))
        f = oracles.outer_gradients(x, ahead, batch)
        return f.value, tree.add_scale(f.x, -xi, cross_difference(oracles, x, y, f.y, epsilon, batch))

    return _alternate("DARTS", problem, inner, outer, hypergradient)


def darts_first_order(problem: Problem, inner: Any, outer: Any) -> Solver:
    """DARTS, first order (ξ = 0): x and y descend in turn, each as if the other were a constant.

        x_{k+1} = x_k − β ∇_x f(x_k, y_k)
        y_{k+1} = y_k − α ∇_y g(x_{k+1}, y_k)

    What it neglects: that y* depends on x, so the whole implicit term. Where f does not contain x itself, as
    in data reweighting or hyperparameter tuning, it never moves x at all.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
    """
    oracles = problem.oracles

    def hypergradient(x: PyTree, y: PyTree, batch: Batch | None) -> tuple[Any, PyTree]:
        f = oracles.outer_gradients(x, y, batch)
        return f.value, f.x

    return _alternate("DARTS, first order", problem, inner, outer, hypergradient)


def _alternate(name: str, problem: Problem, inner: Any, outer: Any, hypergradient: Any) -> Solver:
    """A step on x along `hypergradient(x, y, batch)`, then one on y at the new x."""
    inner_rule, outer_rule = as_rule(inner, "inner"), as_rule(outer, "outer")
    oracles = problem.oracles

    def init(x0: PyTree, y0: PyTree, batch: Batch | None = None) -> DARTSState:
        x, y = prepare(problem, x0, y0, batch)
        return DARTSState(x, y, inner_rule.init(y), outer_rule.init(x))

    def step(state: DARTSState, batch: Batch | None = None) -> tuple[DARTSState, Info]:
        value, direction = hypergradient(state.x, state.y, batch)
        x, outer_memory = descend(outer_rule, direction, state.outer, state.x)
        inner_gradient = oracles.inner_gradient(x, state.y, batch)
        y, inner_memory = descend(inner_rule, inner_gradient, state.inner, state.y)
        return DARTSState(x, y, inner_memory, outer_memory), Info(value, direction, inner_gradient, {})

    return Solver(name, problem, ("x", "y"), init, step, warm_up=inner_step(oracles, inner_rule))
