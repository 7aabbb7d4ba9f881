"""Sizes and segments of variables that are on the host, where nothing is compiled for them."""

import jax
import numpy as np

from bilevel.types import PyTree


def norm(a: PyTree) -> float:
    return float(np.sqrt(sum(np.sum(np.square(np.asarray(leaf, float))) for leaf in jax.tree.leaves(a))))


def distance(a: PyTree, b: PyTree) -> float:
    return norm(jax.tree.map(lambda a, b: np.asarray(a, float) - np.asarray(b, float), a, b))


def middle(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: (np.asarray(a) + np.asarray(b)) / np.asarray(2, a.dtype), a, b)
