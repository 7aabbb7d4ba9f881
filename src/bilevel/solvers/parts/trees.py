"""Arithmetic on trees that optax lacks."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from optax.tree import vdot as tree_vdot

from bilevel.types import PyTree


def scaled(factor: Any, tree: PyTree) -> PyTree:
    """Return factor · tree in the tree's dtypes, for a computed factor."""
    return jax.tree.map(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, tree)


def dot(a: PyTree, b: PyTree) -> jax.Array:
    """Return ⟨a, b⟩ over all leaves, always an array."""
    return jnp.asarray(tree_vdot(a, b))


def select(condition: Any, yes: PyTree, no: PyTree) -> PyTree:
    """Return one of two trees, by a single condition."""
    return jax.tree.map(lambda a, b: lax.select(condition, a, b), yes, no)


def all_finite(tree: PyTree) -> jax.Array:
    """Return whether every entry is finite; a norm may overflow before any entry does."""
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def nan_unless(fine: Any, tree: PyTree) -> PyTree:
    """Return the tree, or NaN in all its places, for a result that a loop could not compute."""
    return jax.tree.map(lambda leaf: jnp.where(fine, leaf, jnp.nan), tree)


def divide(numerator: Any, denominator: jax.Array) -> jax.Array:
    """Return the quotient, and zero where the denominator is not positive."""
    positive = denominator > 0
    return jnp.where(positive, numerator / jnp.where(positive, denominator, 1), 0)


def split(tree: PyTree) -> tuple[list[Any], Callable[[list[Any]], PyTree]]:
    """Return the floating leaves of a tree, and the function that puts others in their place."""
    leaves, structure = jax.tree.flatten(tree)
    floating = [jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves]

    def rebuild(moving: list[Any]) -> PyTree:
        source, pairs = iter(moving), zip(floating, leaves, strict=True)
        return structure.unflatten([next(source) if f else leaf for f, leaf in pairs])

    return [leaf for f, leaf in zip(floating, leaves, strict=True) if f], rebuild
