"""Hypergradient at a point, for programs with a custom training loop."""

from typing import Any

from optax import tree

from bilevel.batch import Batch
from bilevel.checks import prepare
from bilevel.problem import Problem
from bilevel.solvers.adjoints import cg
from bilevel.solvers.adjoints.base import Adjoint, as_adjoint
from bilevel.solvers.base import compiled
from bilevel.solvers.rules import Rule
from bilevel.types import PyTree, StepSize


def hypergradient(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    data: Batch | None = None,
    *,
    adjoint: StepSize | Rule | Adjoint | None = None,
) -> PyTree:
    """Return the hypergradient at (x, y), shaped like x:

        ∇_x f(x, y) − ∇²_xy g(x, y) v        where        ∇²_yy g(x, y) v = ∇_y f(x, y)

    This is ∇Φ(x) if y minimizes g(x, ·). At another y it is an estimate, whose error is proportional to the
    distance from y to the minimizer. Train y with any method, then call this function and update x.

    The function works under `jax.jit` and `jax.vmap`. It can be differentiated in x, y and data. Forward mode
    works with every adjoint. Reverse mode needs one with a fixed number of steps (`bl.adjoints.steps`,
    `bl.adjoints.neumann`).

    Args:
        problem: the two objectives.
        x: the outer variable.
        y: the inner variable, close to the minimizer of g(x, ·).
        data: the data of both levels.
        adjoint: how to solve for v, which starts from zero: any `bl.Adjoint`; a float or an optax rule is one
            step. If left out, `bl.adjoints.cg()`, which needs ∇²_yy g positive definite; otherwise pass
            `bl.adjoints.minres()` or `bl.adjoints.damped(...)`.

    Raises:
        ValueError: the problem has a proximal map, which depends on an inner step size. Use `bl.aid`.
    """
    x, y = prepare(problem, x, y, data, ("x", "y"))
    if problem.prox is not None:
        raise ValueError(
            "bl.hypergradient cannot use a problem with a proximal map, which depends on the step size of the inner "
            "rule: use bl.aid, or replace the term by a smooth one in g"
        )
    adjoint = cg() if adjoint is None else as_adjoint(adjoint)
    return compiled(problem, adjoint, _hypergradient, problem)(x, y, data)


def _hypergradient(adjoint: Adjoint, problem: Problem, x: PyTree, y: PyTree, data: Any) -> PyTree:
    g, f = problem.oracles.curvature(x, y, data), problem.oracles.outer_gradients(x, y, data)
    v = tree.zeros_like(y)
    v, _, _ = adjoint.solve(g, f.y, v, adjoint.init(v))
    return tree.sub(f.x, g.cross(v))
