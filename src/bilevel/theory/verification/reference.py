"""Exact reference of all estimates: y*(x), v*(x), Φ(x) and ∇Φ(x), to rounding.

    ∇_y g(x, y*) = 0      ∇²_yy g(x, y*) v* = ∇_y f(x, y*)      ∇Φ(x) = ∇_x f(x, y*) − ∇²_xy g(x, y*) v*

It uses a closed form of y*(x) where there is one. Otherwise damped Newton continues until ‖∇_y g‖ no longer
shrinks; it solves linear systems densely up to `DENSE` unknowns and by conjugate gradients beyond.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import lu_factor, lu_solve
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Float
from optax import tree

from bilevel.batch import Batch
from bilevel.checks import check_callable, check_problem, prepare, signature
from bilevel.oracles import Linearized
from bilevel.problem import Problem
from bilevel.types import PyTree, Scalar
from bilevel.words import described

DENSE = 256
NEWTON_STEPS = 100
SMALLEST_STEP = 2.0**-12


class Exact(NamedTuple):
    """Answers at one x, and the residuals of their equations."""

    y: PyTree  # y*(x)
    v: PyTree  # v*(x)
    value: Scalar  # Φ(x)
    hypergradient: PyTree  # ∇Φ(x)
    inner_residual: Scalar  # ‖∇_y g(x, y*)‖
    adjoint_residual: Scalar  # ‖∇²_yy g·v* − ∇_y f‖


def exact(
    problem: Problem,
    x: PyTree,
    guess: PyTree,
    data: Batch | None = None,
    solution: Callable[[PyTree], PyTree] | None = None,
) -> Exact:
    """Return y*(x), v*(x), Φ(x) and ∇Φ(x); y* from `solution(x)` if given, else by Newton from `guess`.

    Args:
        problem: the two objectives.
        x: the outer point.
        guess: the start of Newton's method for y*(x).
        data: all the data of both levels.
        solution: x ↦ y*(x) in closed form.
    """
    check_problem(problem)
    x, guess = prepare(problem, x, guess, data, ("x", "guess"))
    check_solution(solution, x, guess)
    y = inner_solution(problem, x, guess, data) if solution is None else solution(x)
    inner, f = problem.oracles.linearize(x, y, data), problem.oracles.outer_gradients(x, y, data)
    v = solve_hessian(inner, f.y)
    return Exact(
        y=y,
        v=v,
        value=f.value,
        hypergradient=tree.sub(f.x, inner.cross(v)),
        inner_residual=tree.norm(inner.gradient),
        adjoint_residual=tree.norm(tree.sub(inner.hessian(v), f.y)),
    )


def inner_solution(problem: Problem, x: PyTree, guess: PyTree, data: Batch | None = None) -> PyTree:
    """Return y*(x) by Newton steps y ← y − t·(∇²_yy g)⁻¹∇_y g, with t halved until ‖∇_y g‖ falls by 1 − t/4.

    For a strongly convex g such a t exists until ‖∇_y g‖ is only rounding. Then the iteration ends.
    """
    oracles = problem.oracles
    size = lambda y: tree.norm(oracles.inner_gradient(x, y, data))

    def unfinished(carry):
        _, gradient, rounding, moved, count = carry
        return moved & (gradient > rounding) & (count < NEWTON_STEPS)

    def newton(carry):
        y, gradient, _, _, count = carry
        inner = oracles.linearize(x, y, data)
        direction = solve_hessian(inner, inner.gradient)

        def too_long(trial):
            t, at_trial = trial
            return ~(at_trial <= (1 - t / 4) * gradient) & (t > SMALLEST_STEP)

        def halve(trial):
            t = trial[0] / 2
            return t, size(tree.add_scale(y, -t, direction))

        one = jnp.ones_like(gradient)
        t, at_trial = lax.while_loop(too_long, halve, (one, size(tree.sub(y, direction))))
        moved = at_trial < gradient
        t, gradient = jnp.where(moved, t, 0 * t), jnp.where(moved, at_trial, gradient)
        return tree.add_scale(y, -t, direction), gradient, rounding_of(inner, y), moved, count + 1

    start = (guess, size(guess), jnp.zeros_like(size(guess)), jnp.asarray(True), 0)
    return lax.while_loop(unfinished, newton, start)[0]


def rounding_of(inner: Linearized, y: PyTree) -> Scalar:
    """Return a few ulps of the parts ∇²_yy g·y and ∇_y g − ∇²_yy g·y: a ‖∇_y g‖ below it is rounding."""
    curved = inner.hessian(y)
    size = tree.norm(curved) + tree.norm(tree.sub(inner.gradient, curved))
    return 8 * jnp.finfo(size.dtype).eps * size


def solve_hessian(inner: Linearized, b: PyTree) -> PyTree:
    """Return (∇²_yy g)⁻¹ b."""
    flat, unravel = ravel_pytree(b)
    if flat.size > DENSE:
        return cg(inner.hessian, b, tol=1e-14, maxiter=4 * flat.size)[0]
    H = matrix(inner.hessian, b)
    factors = lu_factor(H)
    v = lu_solve(factors, flat)
    return unravel(v + lu_solve(factors, flat - H @ v))  # one refinement, down to rounding


def matrix(linear: Callable[[PyTree], PyTree], y: PyTree) -> Float[Array, "m n"]:
    """Return the matrix of a linear function of trees like y."""
    flat, unravel = ravel_pytree(y)
    column = lambda unit: ravel_pytree(linear(unravel(unit)))[0]
    return jax.vmap(column, out_axes=1)(jnp.eye(flat.size, dtype=flat.dtype))


def check_solution(solution: Any, x: PyTree, y: PyTree) -> None:
    """Raise unless `solution` is None or a function from x to a tree like y."""
    if solution is None:
        return
    check_callable(solution, "solution", 1, "a function from x to y*(x)", "problem.inner_solution")
    try:
        found = jax.eval_shape(solution, x)
    except Exception as error:
        raise TypeError(
            f"solution must return y*(x), an array or a tree like y, at x, but raises: {error}"
        ) from error
    if signature(found) != signature(y):
        raise TypeError(f"solution must return a tree like y, {described(y)}, but returns {described(found)}")
