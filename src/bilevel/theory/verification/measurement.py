"""Run of a solver with the norms of all lemmas. It is pure, so it works inside jit and vmap.

The proofs use the assumptions along segments and curves between the points of a run. Contraction integrates
∇²_yy g over [y_k⁰, y*_k], and the errors at ŷ_k compare it with y*_k. The drift of y* and v* and the descent
of Φ follow (x, y*(x)) from x_k to x_{k+1}. Each piece is evaluated at its ends and at `NODES` in between. A
violation proves a constant wrong. A violation only elsewhere is not detected.
"""

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array
from optax import tree

from bilevel.batch import Batch
from bilevel.loop.scan import scan
from bilevel.problem import Problem
from bilevel.solvers.adjoints.base import OneStep, Steps
from bilevel.solvers.algorithms.aid import AID
from bilevel.solvers.algorithms.itd import ITD
from bilevel.solvers.algorithms.soba import SOBA
from bilevel.solvers.base import Solver, check_solver
from bilevel.solvers.rules import Descent
from bilevel.theory.verification.reference import (
    DENSE,
    check_solution,
    exact,
    inner_solution,
    matrix,
    solve_hessian,
)
from bilevel.types import Number, PyTree

Solution = Callable[[PyTree], PyTree]
# With the ends, the Gauss–Lobatto points of order five.
NODES = (0.5 - (3 / 28) ** 0.5, 0.5, 0.5 + (3 / 28) ** 0.5)
Norms = Any  # numbers per iteration: a JAX array here, a NumPy array in judgments


class Algorithm(NamedTuple):
    """AID (the paper's Algorithm 1 if both counts are one), single-loop ITD (Algorithm 2) or SOBA."""

    method: str
    sizes: dict[str, Number]  # alpha, eta (not for ITD) and beta
    inner_steps: int = 1
    adjoint_steps: int = 1


def recognize(solver: Solver) -> Algorithm:
    """Return the algorithm of `solver`, or raise if no lemma or certificate covers it."""
    method, rules, counts = "", {}, ()
    if isinstance(solver, AID) and isinstance(solver.adjoint, OneStep | Steps):
        method, rules = "AID", {"alpha": solver.inner, "eta": solver.adjoint.rule, "beta": solver.outer}
        counts = solver.inner_steps, solver.adjoint.count if isinstance(solver.adjoint, Steps) else 1
    elif isinstance(solver, SOBA) and isinstance(solver.adjoint, OneStep):
        method, rules = "SOBA", {"alpha": solver.inner, "eta": solver.adjoint.rule, "beta": solver.outer}
    elif isinstance(solver, ITD) and solver.lengths.steps == 1:
        method, rules = "ITD", {"alpha": solver.inner, "beta": solver.outer}
    sizes = {name: rule.step_size for name, rule in rules.items() if isinstance(rule, Descent)}
    if not rules or len(sizes) < len(rules) or solver.problem.prox is not None:
        raise ValueError(
            "the lemmas and certificates are about AID, single-loop ITD and SOBA with plain gradient steps, and this "
            f"{solver.name} is not: make it with bl.aid(problem, inner=α, adjoint=η, outer=β), "
            "bl.itd(problem, inner=α, outer=β) or bl.soba(problem, inner=α, adjoint=η, outer=β), all of them floats "
            "and the problem without prox; AID may take several steps (inner_steps=N, adjoint=bl.adjoints.steps(η, Q))"
        )
    return Algorithm(method, sizes, *counts)


class Piece(NamedTuple):
    """Piece of a run: steps and changes between neighboring points, curvatures at every point (last axis)."""

    x_step: Norms
    y_step: Norms
    outer_x_change: Norms  # of ∇_x f
    outer_y_change: Norms  # of ∇_y f
    hessian_change: Norms  # of ∇²_yy g; None, like all that need matrices, where these are too large
    cross_change: Norms  # of ∇²_xy g
    outer_x: Norms  # ‖∇_x f‖
    outer_y: Norms  # ‖∇_y f‖
    curvature_low: Norms  # smallest eigenvalue of ∇²_yy g
    curvature_high: Norms  # and its largest
    cross: Norms  # ‖∇²_xy g‖


class Run(NamedTuple):
    """Norms at iterations k = 0..K−1; a change from k − 1 to k is zero at k = 0.

    Iteration k estimates ∇Φ(x_k) at ŷ_k and v̂_k: AID and ITD have just computed them, SOBA starts from them.
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
    oracles, distance = problem.oracles, lambda a, b: tree.norm(tree.sub(a, b))

    def jacobians(x: PyTree, warm: PyTree, y: PyTree) -> dict[str, Any]:
        """Return the norms of both m × n Jacobians: −∇²_xy g (∇²_yy g)⁻¹ at y*, −α∇²_xy g at the warm start."""
        at_star, at_warm = oracles.linearize(x, y, data), oracles.linearize(x, warm, data)
        C_star, C_warm = matrix(at_star.cross, warm), matrix(at_warm.cross, warm)
        jacobian = -jnp.linalg.solve(matrix(at_star.hessian, warm), C_star.T).T
        spectral = lambda A: jnp.linalg.norm(A, ord=2)
        missed = -jnp.asarray(algorithm.sizes["alpha"], C_warm.dtype) * C_warm - jacobian
        return {"jacobian": spectral(jacobian), "jacobian_error": spectral(missed)}

    def body(before: _Previous, row: tuple[Any, ...]) -> tuple[_Previous, dict[str, Any]]:
        """Return the record of iteration k that the next one needs, and the norms of iteration k by name."""
        x, warm, y, v, estimate = row
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
        # ṽ* = (∇²_yy g)⁻¹∇_y f at (x, y)
        tilted = lambda: solve_hessian(oracles.linearize(x, y, data), oracles.outer_gradients(x, y, data).y)
        norms = {
            "y_error": distance(y, star.y),
            "warm_error": distance(warm, star.y),
            "y_step": distance(y, warm),
            "v_error": distance(v, tilted()) if algorithm.method == "AID" else nothing,
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
            norms |= jacobians(x, warm, star.y)
        return _Previous(x, y, star.y, star.hypergradient), norms

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
    _, norms = lax.scan(body, first, rows)
    values, to_next = norms["value"], jax.tree.map(lambda a: a[1:], norms.pop("since_last_star"))
    norms = jax.tree.map(lambda a: a[:-1], norms)
    # The first iteration has no predecessor.
    norms["gradient_change"] = norms["gradient_change"].at[0].set(0)
    descent = values[0] - jnp.minimum(values[0], lax.cummin(values[1:]))
    return Run(**norms, to_next=to_next, next_value=values[1:], descent=descent)


def between(start: PyTree, end: PyTree) -> PyTree:
    """Return the points at `NODES` of the segment, stacked."""
    points = lambda a, b: jnp.stack([a + jnp.asarray(t, a.dtype) * (b - a) for t in NODES])
    return jax.tree.map(points, start, end)


def stacked(*points: PyTree) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *points)


def joined(*stacks: PyTree) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *stacks)


def is_small(x: PyTree, y: PyTree) -> bool:
    return ravel_pytree(x)[0].size <= DENSE and ravel_pytree(y)[0].size <= DENSE


def measure_pieces(problem: Problem, data: Batch | None, *pieces: tuple[PyTree, PyTree]) -> list[Piece]:
    """Return the quantities at the points (x, y) of each piece, and between neighbors in it."""
    lengths = [len(jax.tree.leaves(x)[0]) for x, _ in pieces]
    small = is_small(*jax.tree.map(lambda a: a[0], pieces[0]))

    def at(x, y):
        f, flat = problem.oracles.outer_gradients(x, y, data), lambda tree: ravel_pytree(tree)[0]
        vectors = flat(x), flat(y), flat(f.x), flat(f.y)
        if not small:
            return vectors
        inner = problem.oracles.linearize(x, y, data)
        return *vectors, matrix(inner.hessian, y), matrix(inner.cross, y)

    x, y, f_x, f_y, *matrices = jax.vmap(at)(*joined(*pieces))
    size, change = lambda a: jnp.linalg.norm(a, axis=-1), lambda a: a[1:] - a[:-1]
    steps = [size(change(a)) for a in (x, y, f_x, f_y)]
    slopes = [size(f_x), size(f_y)]
    turns, spectra = _spectra(*matrices) if small else ([None] * 2, [None] * 3)
    # Leave out the changes from the end of one piece to the start of the next.
    ends = list(accumulate(lengths))
    cut = lambda values, start, end: [None if a is None else a[start:end] for a in values]
    return [
        Piece(*cut(steps + turns, end - length, end - 1), *cut(slopes + spectra, end - length, end))
        for length, end in zip(lengths, ends, strict=True)
    ]


def _spectra(H: Array, C: Array) -> tuple[list[Array], list[Array]]:
    """Return norms of the changes of H and C, the ends of H's spectrum, and ‖C‖, by one decomposition."""
    change, gram = lambda A: A[1:] - A[:-1], lambda A: jnp.swapaxes(A, -1, -2) @ A
    spectra = jnp.linalg.eigvalsh(jnp.concatenate([H, change(H), gram(C), gram(change(C))]))
    n = len(H)
    at, turn, cross, cross_turn = jnp.split(spectra, [n, 2 * n - 1, 3 * n - 1])
    root = lambda squares: jnp.sqrt(jnp.maximum(squares[:, -1], 0))
    return [jnp.abs(turn).max(axis=1), root(cross_turn)], [at[:, 0], at[:, -1], root(cross)]
