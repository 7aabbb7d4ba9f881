"""Segments and curves between the points of a run, along which the proofs use the assumptions.

Contraction integrates ∇²_yy g over [y_k⁰, y*_k], and the errors at ŷ_k compare it with y*_k. The drift of y*
and v* and the descent of Φ follow (x, y*(x)) from x_k to x_{k+1}. Each piece is evaluated at its ends and at
`NODES` in between. A violation proves a constant wrong. A violation only elsewhere is not detected.
"""

from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from bilevel.batch import Batch
from bilevel.problem import Problem
from bilevel.theory.verification.reference import DENSE, cross_matrix, hessian_matrix
from bilevel.types import PyTree

# With the ends, the Gauss–Lobatto points of order five.
NODES = (0.5 - (3 / 28) ** 0.5, 0.5, 0.5 + (3 / 28) ** 0.5)
Norms = Any  # numbers per iteration: a JAX array here, a NumPy array in judgments


class Piece(NamedTuple):
    """Piece of a run: steps and changes between neighboring points, curvatures at every point (last axis).

    Fields that need matrices are None where these are too large.
    """

    x_step: Norms
    y_step: Norms
    outer_x_change: Norms  # of ∇_x f
    outer_y_change: Norms  # of ∇_y f
    hessian_change: Norms  # of ∇²_yy g
    cross_change: Norms  # of ∇²_xy g
    outer_x: Norms  # ‖∇_x f‖
    outer_y: Norms  # ‖∇_y f‖
    curvature_low: Norms  # smallest eigenvalue of ∇²_yy g
    curvature_high: Norms  # and its largest
    cross: Norms  # ‖∇²_xy g‖


def between(start: PyTree, end: PyTree) -> PyTree:
    """Return the points at `NODES` of the segment, stacked."""
    points = lambda a, b: jnp.stack([a + jnp.asarray(t, a.dtype) * (b - a) for t in NODES])
    return jax.tree.map(points, start, end)


def stacked(*points: PyTree) -> PyTree:
    """Return single points as one stack."""
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
        return *vectors, hessian_matrix(inner, y), cross_matrix(inner, y)

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
    """Return norms of the changes of H and C, the ends of H's spectrum, and ‖C‖.

    They come from one joint decomposition.
    """
    change, gram = lambda A: A[1:] - A[:-1], lambda A: jnp.swapaxes(A, -1, -2) @ A
    spectra = jnp.linalg.eigvalsh(jnp.concatenate([H, change(H), gram(C), gram(change(C))]))
    n = len(H)
    at, turn, cross, cross_turn = jnp.split(spectra, [n, 2 * n - 1, 3 * n - 1])
    root = lambda squares: jnp.sqrt(jnp.maximum(squares[:, -1], 0))
    return [jnp.abs(turn).max(axis=1), root(cross_turn)], [at[:, 0], at[:, -1], root(cross)]
