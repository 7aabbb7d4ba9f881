"""Arithmetic on trees that optax leaves out."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from optax.tree import vdot as tree_vdot

from bilevel.types import PyTree


def scaled(factor: Any, tree: PyTree) -> PyTree:
    """factor · tree in the tree's own dtypes, for a factor that is itself computed."""
    return jax.tree.map(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, tree)


def dot(a: PyTree, b: PyTree) -> jax.Array:
    """⟨a, b⟩ over all leaves, always an array."""
    return jnp.asarray(tree_vdot(a, b))


def select(condition: Any, yes: PyTree, no: PyTree) -> PyTree:
    """One tree or the other, by a single condition."""
    return jax.tree.map(lambda a, b: lax.select(condition, a, b), yes, no)


def all_finite(tree: PyTree) -> jax.Array:
    """Whether every entry is; a norm may overflow before any of them does."""
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def nan_unless(fine: Any, tree: PyTree) -> PyTree:
    """The tree, or NaN in all its places: for what a loop could not work out and must not hide."""
    return jax.tree.map(lambda leaf: jnp.where(fine, leaf, jnp.nan), tree)


def divide(numerator: Any, denominator: jax.Array) -> jax.Array:
    """The quotient, and zero where the denominator is not positive."""
    positive = denominator > 0
    return jnp.where(positive, numerator / jnp.where(positive, denominator, 1), 0)
