"""A run of a solver with everything measured that the lemmas speak of. Pure: usable inside jit and vmap."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from optax import tree

from bilevel.batch import Batch
from bilevel.loop.scan import scan
from bilevel.problem import Problem
from bilevel.solvers.aid import AID
from bilevel.solvers.base import Solver
from bilevel.theory.verification.reference import DENSE, cross_matrix, exact, hessian_matrix, solve_hessian
from bilevel.theory.verification.single_loop import step_sizes
from bilevel.types import Number, PyTree

Norms = Any  # one number per iteration: a JAX array here, a NumPy array once it is judged


class Dense(NamedTuple):
    """What is measured only while ∇²_yy g and ∇²_xy g are small enough to be written out."""

    curvature_low: Norms  # smallest eigenvalue of ∇²_yy g(x_k, ŷ_k)
    curvature_high: Norms  # and its largest
    cross: Norms  # ‖∇²_xy g(x_k, ŷ_k)‖
    hessian_change: Norms  # ‖∇²_yy g(x_k, ŷ_k) − ∇²_yy g(x_{k−1}, ŷ_{k−1})‖
    cross_change: Norms  # ‖∇²_xy g(x_k, ŷ_k) − ∇²_xy g(x_{k−1}, ŷ_{k−1})‖
    jacobian: Norms  # ‖∇_x y*(x_k)‖
    jacobian_error: Norms  # ‖∇_x ŷ_k − ∇_x y*(x_k)‖ where ŷ_k is one inner step (ITD)


class Run(NamedTuple):
    """Norms at iterations k = 0..K−1; a change from k − 1 to k is zero at k = 0."""

    y_error: Norms  # ‖ŷ_k − y*_k‖
    warm_error: Norms  # ‖y_k⁰ − y*_k‖
    y_step: Norms  # ‖ŷ_k − y_k⁰‖
    v_error: Norms  # ‖v̂_k − ṽ*_k‖ (AID; zero for ITD, like the next)
    v_star_error: Norms  # ‖v̂_k − v*_k‖
    x_step: Norms  # ‖x_k − x_{k−1}‖
    estimate_error: Norms  # ‖∇̂Φ(x_k) − ∇Φ(x_k)‖
    gradient: Norms  # ‖∇Φ(x_k)‖
    gradient_change: Norms  # ‖∇Φ(x_k) − ∇Φ(x_{k−1})‖
    value: Norms  # Φ(x_k)
    next_value: Norms  # Φ(x_{k+1})
    descent: Norms  # Φ(x_0) − min_{j≤k+1} Φ(x_j)
    outer_x: Norms  # ‖∇_x f‖, the larger of its values at ŷ_k and at y*_k
    outer_y: Norms  # ‖∇_y f‖, likewise
    point_step: Norms  # ‖(x_k, ŷ_k) − (x_{k−1}, ŷ_{k−1})‖
    outer_change: Norms  # ‖∇f(x_k, ŷ_k) − ∇f(x_{k−1}, ŷ_{k−1})‖
    inner_residual: Norms  # of the reference, as is the next
    adjoint_residual: Norms
    sizes: dict[str, Norms]  # ‖x_k‖, ‖y*_k‖ and ‖v*_k‖, from which rounding is judged
    dense: Dense | None


class _Point(NamedTuple):
    """What the next iteration compares itself with."""

    x: PyTree
    y: PyTree
    outer: tuple[PyTree, PyTree]
    hypergradient: PyTree
    matrices: tuple | None


def measure(
    solver: Solver,
    x0: PyTree,
    y0: PyTree,
    steps: int,
    data: Batch | None = None,
    solution: Callable[[PyTree], PyTree] | None = None,
) -> Run:
    """`steps` steps of AID or ITD from (x0, y0), measured against `exact` answers at every x_k.

    Args:
        solver: `bl.aid` or `bl.itd` with floats at every level: the paper's Algorithms 1 and 2.
        x0: where x starts.
        y0: where y starts.
        steps: how many iterations to run and measure.
        data: the whole data at every step; the theory is about deterministic gradients.
        solution: x ↦ y*(x) in closed form; left out, y* is solved for by Newton's method.
    """
    problem, adjoint, alpha = solver.problem, isinstance(solver, AID), step_sizes(solver)["alpha"]
    start = solver.init(x0, y0, data)
    record = lambda state, info: (state.x, state.y, state.v if adjoint else None, info.hypergradient)
    _, (x_next, y, v, estimate) = scan(solver, start, data, steps=steps, record=record)
    # One row more than there are steps: Φ(x_K) is wanted as well. The rest of that row is padding.
    before = lambda first, rest: jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rest)
    padded = lambda rest: jax.tree.map(lambda a: jnp.concatenate([a, a[-1:]]), rest)
    rows = (before(start.x, x_next), before(start.y, y), padded(y), padded(v), padded(estimate))

    def body(carry, row):
        point, guess = carry
        star, point, norms = _measure(problem, alpha, data, solution, point, guess, row)
        return (point, star.y), norms

    first = jax.tree.map(lambda a: a[0], rows)
    shapes = jax.eval_shape(lambda row: _measure(problem, alpha, data, solution, None, row[1], row)[1], first)
    _, norms = lax.scan(body, (tree.zeros_like(shapes), start.y), rows)
    values = norms["value"]
    norms = jax.tree.map(lambda a: a[:-1], _without_first_change(norms))
    descent = values[0] - jnp.minimum(values[0], lax.cummin(values[1:]))
    return Run(**norms, next_value=values[1:], descent=descent)


def _without_first_change(norms: dict[str, Any]) -> dict[str, Any]:
    """Changes from k − 1 to k start at k = 1: before that there is nothing to compare with."""
    zero = lambda a: a.at[0].set(0)
    changes = {
        name: zero(norms[name]) for name in ("x_step", "gradient_change", "point_step", "outer_change")
    }
    dense = norms["dense"]
    if dense is not None:
        dense = dense._replace(
            hessian_change=zero(dense.hessian_change), cross_change=zero(dense.cross_change)
        )
    return norms | changes | {"dense": dense}


def _measure(
    problem: Problem,
    alpha: Number,
    data: Batch | None,
    solution: Callable[[PyTree], PyTree] | None,
    before: _Point | None,
    guess: PyTree,
    iterate: tuple,
):
    """The exact answers at x_k, the point itself, and the norms of iteration k by name."""
    x, warm, y, v, estimate = iterate
    oracles, distance = problem.oracles, lambda a, b: tree.norm(tree.sub(a, b))
    star = exact(problem, x, guess, data, solution)
    inner, f, f_star = (
        oracles.linearise(x, y, data),
        oracles.outer_gradients(x, y, data),
        oracles.outer_gradients(x, star.y, data),
    )
    small = ravel_pytree(y)[0].size <= DENSE and ravel_pytree(x)[0].size <= DENSE
    matrices = (hessian_matrix(inner, y), cross_matrix(inner, y)) if small else None
    point = _Point(x, y, (f.x, f.y), star.hypergradient, matrices)
    before = point if before is None else before
    nothing = jnp.zeros_like(star.value)
    norms = {
        "y_error": distance(y, star.y),
        "warm_error": distance(warm, star.y),
        "y_step": distance(y, warm),
        "v_error": nothing if v is None else distance(v, solve_hessian(inner, f.y)),
        "v_star_error": nothing if v is None else distance(v, star.v),
        "x_step": distance(x, before.x),
        "estimate_error": distance(estimate, star.hypergradient),
        "gradient": tree.norm(star.hypergradient),
        "gradient_change": distance(star.hypergradient, before.hypergradient),
        "value": star.value,
        "outer_x": jnp.maximum(tree.norm(f.x), tree.norm(f_star.x)),
        "outer_y": jnp.maximum(tree.norm(f.y), tree.norm(f_star.y)),
        "point_step": distance((x, y), (before.x, before.y)),
        "outer_change": distance((f.x, f.y), before.outer),
        "inner_residual": star.inner_residual,
        "adjoint_residual": star.adjoint_residual,
        "sizes": {"x": tree.norm(x), "y": tree.norm(star.y), "v": tree.norm(star.v)},
        "dense": None if matrices is None else _dense(oracles, alpha, data, before, star, x, warm, matrices),
    }
    return star, point, norms


def _dense(oracles, alpha, data, before, star, x, warm, matrices) -> Dense:
    H, C = matrices
    spectrum = jnp.linalg.eigvalsh(H)
    at_star, at_warm = oracles.linearise(x, star.y, data), oracles.linearise(x, warm, data)
    C_star, C_warm = cross_matrix(at_star, warm), cross_matrix(at_warm, warm)
    # Both Jacobians as m × n matrices: −∇²_xy g (∇²_yy g)⁻¹ at y*, and −α∇²_xy g at the warm start.
    exact_jacobian = -jnp.linalg.solve(hessian_matrix(at_star, warm), C_star.T).T
    spectral = lambda A: jnp.linalg.norm(A, ord=2)
    return Dense(
        curvature_low=spectrum[0],
        curvature_high=spectrum[-1],
        cross=spectral(C),
        hessian_change=spectral(H - before.matrices[0]),
        cross_change=spectral(C - before.matrices[1]),
        jacobian=spectral(exact_jacobian),
        jacobian_error=spectral(-jnp.asarray(alpha, C_warm.dtype) * C_warm - exact_jacobian),
    )
