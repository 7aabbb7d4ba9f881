"""Run of a solver with the norms of all lemmas. It is pure, so it works inside jit and vmap."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.batch import Batch
from bilevel.loop.scan import scan
from bilevel.problem import Problem
from bilevel.solvers.base import Solver, check_solver
from bilevel.theory.verification.inputs import Algorithm, check_solution, recognize
from bilevel.theory.verification.reference import (
    cross_matrix,
    exact,
    hessian_matrix,
    inner_solution,
    solve_hessian,
)
from bilevel.theory.verification.segments import (
    Norms,
    Piece,
    between,
    is_small,
    joined,
    measure_pieces,
    stacked,
)
from bilevel.types import PyTree

Solution = Callable[[PyTree], PyTree]


class Run(NamedTuple):
    """Norms at iterations k = 0..K−1; a change from k − 1 to k is zero at k = 0.

    ŷ_k and v̂_k are the points at which iteration k estimates ∇Φ(x_k): AID and ITD have just computed them,
    SOBA starts from them.
    """

    y_error: Norms  # ‖ŷ_k − y*_k‖
    warm_error: Norms  # ‖y_k⁰ − y*_k‖
    y_step: Norms  # ‖ŷ_k − y_k⁰‖
    v_error: Norms  # ‖v̂_k − ṽ*_k‖ (AID; zero for the others)
    v_star_error: Norms  # ‖v̂_k − v*_k‖ (zero for ITD)
    x_step: Norms  # ‖x_k − x_{k−1}‖
    estimate_error: Norms  # ‖∇̂Φ(x_k) − ∇Φ(x_k)‖
    gradient: Norms  # ‖∇Φ(x_k)‖
    gradient_change: Norms  # ‖∇Φ(x_k) − ∇Φ(x_{k−1})‖
    value: Norms  # Φ(x_k)
    next_value: Norms  # Φ(x_{k+1})
    descent: Norms  # Φ(x_0) − min_{j≤k+1} Φ(x_j)
    outer_x: Norms  # ‖∇_x f‖, the larger of its values at ŷ_k and at y*_k
    outer_y: Norms  # ‖∇_y f‖, likewise
    at_x: Piece  # at x_k, from ŷ_k to y*_k and then to y_k⁰
    to_next: Piece  # along (x, y*(x)) from x_k to x_{k+1}
    since_last: Piece  # only (x_{k−1}, ŷ_{k−1}) and (x_k, ŷ_k)
    jacobian: Norms | None  # ‖∇_x y*(x_k)‖; ITD with few variables only, like the next
    jacobian_error: Norms | None  # ‖∇_x ŷ_k − ∇_x y*(x_k)‖
    inner_residual: Norms  # of the reference, as is the next
    adjoint_residual: Norms
    sizes: dict[str, Norms]  # ‖x_k‖, ‖y*_k‖ and ‖v*_k‖, for the size of rounding errors


class _Previous(NamedTuple):
    """Previous iteration, for differences."""

    x: PyTree
    y: PyTree
    y_star: PyTree
    hypergradient: PyTree


def measure(
    solver: Solver,
    x0: PyTree,
    y0: PyTree,
    steps: int,
    data: Batch | None = None,
    solution: Solution | None = None,
) -> Run:
    """Measure `steps` steps from (x0, y0) against `exact` answers at every x_k and three points in between.

    Args:
        solver: `bl.aid`, `bl.itd` or `bl.soba` with floats at every level.
        x0: the first x.
        y0: the first y.
        steps: the number of iterations to run and measure.
        data: the whole data at every step; the theory is about deterministic gradients.
        solution: x ↦ y*(x) in closed form; without it, Newton's method computes y*.
    """
    problem, algorithm = check_solver(solver).problem, recognize(solver)
    start = solver.init(x0, y0, data)
    check_solution(solution, start.x, start.y)
    record = lambda state, info: (state.x, state.y, getattr(state, "v", None), info.hypergradient)
    _, (x_next, y, v, estimate) = scan(solver, start, data, steps=steps, record=record)
    # One row more than there are steps, for Φ(x_K). Its other entries are padding.
    before = lambda first, rest: jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rest)
    padded = lambda rest: jax.tree.map(lambda a: jnp.concatenate([a, a[-1:]]), rest)
    x, warm = before(start.x, x_next), before(start.y, y)
    used = (warm, before(start.v, v)) if algorithm.method == "SOBA" else (padded(y), padded(v))
    rows = (x, warm, *used, padded(estimate))

    first = _Previous(start.x, jax.tree.map(lambda a: a[0], used[0]), start.y, tree.zeros_like(start.x))
    body = lambda before, row: _measure(problem, algorithm, data, solution, before, row)
    _, norms = lax.scan(body, first, rows)
    values, to_next = norms["value"], jax.tree.map(lambda a: a[1:], norms.pop("since_last_star"))
    norms = jax.tree.map(lambda a: a[:-1], norms)
    # The first iteration has no predecessor.
    norms["gradient_change"] = norms["gradient_change"].at[0].set(0)
    descent = values[0] - jnp.minimum(values[0], lax.cummin(values[1:]))
    return Run(**norms, to_next=to_next, next_value=values[1:], descent=descent)


def _measure(
    problem: Problem,
    algorithm: Algorithm,
    data: Batch | None,
    solution: Solution | None,
    before: _Previous,
    iterate: tuple[Any, ...],
) -> tuple[_Previous, dict[str, Any]]:
    """Return the record of iteration k that the next one needs, and the norms of iteration k by name."""
    x, warm, y, v, estimate = iterate
    distance = lambda a, b: tree.norm(tree.sub(a, b))
    solve = solution or (lambda x: inner_solution(problem, x, before.y_star, data))
    xs = joined(stacked(before.x), between(before.x, x), stacked(x))
    solved = jax.vmap(solve)(jax.tree.map(lambda a: a[1:], xs))
    y_star, ys = jax.tree.map(lambda a: a[-1], solved), joined(stacked(before.y_star), solved)

    star = exact(problem, x, y_star, data, lambda _: y_star)
    path = joined(stacked(y), between(y, star.y), stacked(star.y), between(star.y, warm), stacked(warm))
    here = jax.tree.map(lambda a: jnp.broadcast_to(a, (9, *a.shape)), x)
    both = stacked(before.x, x), stacked(before.y, y)
    at_x, since_last_star, since_last = measure_pieces(problem, data, (here, path), (xs, ys), both)
    nothing = jnp.zeros_like(star.value)
    norms = {
        "y_error": distance(y, star.y),
        "warm_error": distance(warm, star.y),
        "y_step": distance(y, warm),
        "v_error": distance(v, _adjoint(problem, data, x, y)) if algorithm.method == "AID" else nothing,
        "v_star_error": nothing if v is None else distance(v, star.v),
        "x_step": distance(x, before.x),
        "estimate_error": distance(estimate, star.hypergradient),
        "gradient": tree.norm(star.hypergradient),
        "gradient_change": distance(star.hypergradient, before.hypergradient),
        "value": star.value,
        "outer_x": at_x.outer_x[0:5:4].max(),
        "outer_y": at_x.outer_y[0:5:4].max(),
        "at_x": at_x,
        "since_last_star": since_last_star,
        "since_last": since_last,
        "inner_residual": star.inner_residual,
        "adjoint_residual": star.adjoint_residual,
        "sizes": {"x": tree.norm(x), "y": tree.norm(star.y), "v": tree.norm(star.v)},
        "jacobian": None,
        "jacobian_error": None,
    }
    if is_small(x, y) and algorithm.method == "ITD":
        norms |= _jacobians(problem, algorithm.sizes["alpha"], data, x, warm, star.y)
    return _Previous(x, y, star.y, star.hypergradient), norms


def _adjoint(problem: Problem, data: Batch | None, x: PyTree, y: PyTree) -> PyTree:
    """Return ṽ* = (∇²_yy g)⁻¹∇_y f at (x, y)."""
    return solve_hessian(problem.oracles.linearize(x, y, data), problem.oracles.outer_gradients(x, y, data).y)


def _jacobians(
    problem: Problem, alpha: Any, data: Batch | None, x: PyTree, warm: PyTree, y: PyTree
) -> dict[str, Any]:
    """Return the norms of both m × n Jacobians: −∇²_xy g (∇²_yy g)⁻¹ at y*, −α∇²_xy g at the warm start."""
    at_star, at_warm = problem.oracles.linearize(x, y, data), problem.oracles.linearize(x, warm, data)
    C_star, C_warm = cross_matrix(at_star, warm), cross_matrix(at_warm, warm)
    jacobian = -jnp.linalg.solve(hessian_matrix(at_star, warm), C_star.T).T
    spectral = lambda A: jnp.linalg.norm(A, ord=2)
    missed = -jnp.asarray(alpha, C_warm.dtype) * C_warm - jacobian
    return {"jacobian": spectral(jacobian), "jacobian_error": spectral(missed)}
