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
    """Pieces of a run: steps and changes between neighbouring points, curvatures at every point (last axis)."""

    x_step: Norms
    y_step: Norms
    outer_x_change: Norms  # of ∇_x f
    outer_y_change: Norms  # of ∇_y f
    outer_y: Norms  # ‖∇_y f‖
    # Only while the matrices are small enough to be written out:
    hessian_change: Norms | None  # of ∇²_yy g
    cross_change: Norms | None  # of ∇²_xy g
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


def along(problem: Problem, data: Batch | None, x: PyTree, y: PyTree, small: bool) -> Along:
    """What is seen at a stack of points (x, y) and between neighbours in it."""

    def at(x, y):
        f, flat = problem.oracles.outer_gradients(x, y, data), lambda tree: ravel_pytree(tree)[0]
        inner = problem.oracles.linearise(x, y, data) if small else None
        matrices = (None, None) if inner is None else (hessian_matrix(inner, y), cross_matrix(inner, y))
        return flat(x), flat(y), flat(f.x), flat(f.y), *matrices

    x, y, f_x, f_y, H, C = jax.vmap(at)(x, y)
    size = lambda a: jnp.linalg.norm(a, axis=-1)
    change, spectral = lambda a: a[1:] - a[:-1], lambda A: jnp.linalg.norm(A, ord=2, axis=(-2, -1))
    spectrum = None if H is None else jnp.linalg.eigvalsh(H)
    return Along(
        x_step=size(change(x)),
        y_step=size(change(y)),
        outer_x_change=size(change(f_x)),
        outer_y_change=size(change(f_y)),
        outer_y=size(f_y),
        hessian_change=None if H is None else spectral(change(H)),
        cross_change=None if C is None else spectral(change(C)),
        curvature_low=None if spectrum is None else spectrum[:, 0],
        curvature_high=None if spectrum is None else spectrum[:, -1],
        cross=None if C is None else spectral(C),
    )
