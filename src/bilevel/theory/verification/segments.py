"""Where the proofs use the assumptions: along segments and curves between the points of a run, not only at them.

Contraction integrates ∇²_yy g over [y_k⁰, y*_k], the errors at ŷ_k compare it with y*_k, and the drift of y* and v* and
the descent of Φ follow (x, y*(x)) from x_k to x_{k+1}. Each piece is seen at its ends and at `NODES` in between: a
violation proves a constant wrong, and a function that keeps to its constants there and breaks them elsewhere is missed.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from bilevel.batch import Batch
from bilevel.problem import Problem
from bilevel.theory.verification.reference import DENSE, cross_matrix, hessian_matrix
from bilevel.types import PyTree

NODES = (0.5 - (3 / 28) ** 0.5, 0.5, 0.5 + (3 / 28) ** 0.5)  # with the ends, the Gauss–Lobatto points of order five
Norms = Any  # numbers per iteration: a JAX array here, a NumPy array once it is judged


class Along(NamedTuple):
    """A piece of a run: steps and changes between neighbouring points, curvatures at every point (last axis)."""

    x_step: Norms
    y_step: Norms
    outer_x_change: Norms  # of ∇_x f
    outer_y_change: Norms  # of ∇_y f
    hessian_change: Norms | None  # of ∇²_yy g; matrices are written out only while they are small
    cross_change: Norms | None  # of ∇²_xy g
    outer_x: Norms  # ‖∇_x f‖
    outer_y: Norms  # ‖∇_y f‖
    curvature_low: Norms | None  # smallest eigenvalue of ∇²_yy g
    curvature_high: Norms | None  # and its largest
    cross: Norms | None  # ‖∇²_xy g‖


def between(start: PyTree, end: PyTree) -> PyTree:
    """The points at `NODES` of the segment, stacked."""
    return jax.tree.map(lambda a, b: jnp.stack([a + jnp.asarray(t, a.dtype) * (b - a) for t in NODES]), start, end)


def stacked(*points: PyTree) -> PyTree:
    """Single points as one stack."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *points)


def joined(*stacks: PyTree) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *stacks)


def is_small(x: PyTree, y: PyTree) -> bool:
    return ravel_pytree(x)[0].size <= DENSE and ravel_pytree(y)[0].size <= DENSE


def along(problem: Problem, data: Batch | None, *pieces: tuple[PyTree, PyTree]) -> list[Along]:
    """What is seen at the points (x, y) of each piece, which is a stack of them, and between neighbours in it."""
    lengths = [len(jax.tree.leaves(x)[0]) for x, _ in pieces]
    small = is_small(*jax.tree.map(lambda a: a[0], pieces[0]))

    def at(x, y):
        f, flat = problem.oracles.outer_gradients(x, y, data), lambda tree: ravel_pytree(tree)[0]
        vectors = flat(x), flat(y), flat(f.x), flat(f.y)
        if not small:
            return vectors
        inner = problem.oracles.linearise(x, y, data)
        return *vectors, hessian_matrix(inner, y), cross_matrix(inner, y)

    x, y, f_x, f_y, *matrices = jax.vmap(at)(*joined(*pieces))
    size = lambda a: jnp.linalg.norm(a, axis=-1)
    change = lambda a: a[1:] - a[:-1]
    steps = [size(change(a)) for a in (x, y, f_x, f_y)]  # those from one piece to the next are left out below
    changes, points = steps + [None, None], [size(f_x), size(f_y), None, None, None]
    if matrices:
        H, C = matrices
        gram = lambda A: jnp.swapaxes(A, -1, -2) @ A
        spectra = jnp.linalg.eigvalsh(jnp.concatenate([H, change(H), gram(C), gram(change(C))]))
        low, high = spectra[:, 0], spectra[:, -1]
        n, m = len(H), len(H) - 1
        root = lambda squares: jnp.sqrt(jnp.maximum(squares, 0))
        changes = steps + [jnp.maximum(high, -low)[n : n + m], root(high[2 * n + m :])]
        points = [size(f_x), size(f_y), low[:n], high[:n], root(high[n + m : 2 * n + m])]
    found, first = [], 0
    for length in lengths:
        cut = lambda values, end: [None if a is None else a[first:end] for a in values]
        found.append(Along(*cut(changes, first + length - 1), *cut(points, first + length)))
        first += length
    return found
