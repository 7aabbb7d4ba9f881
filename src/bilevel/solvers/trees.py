"""Arithmetic on trees that optax leaves out."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

PyTree = Any


def scaled(factor: Any, tree: PyTree) -> PyTree:
    """factor · tree in the tree's own dtypes, for a factor that is itself computed."""
    return jax.tree.map(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, tree)


def select(condition: Any, yes: PyTree, no: PyTree) -> PyTree:
    """One tree or the other, by a single condition."""
    return jax.tree.map(lambda a, b: lax.select(condition, a, b), yes, no)
