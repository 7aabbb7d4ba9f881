"""Arrays of other libraries as JAX arrays: torch tensors, big-endian, strided and memory-mapped NumPy arrays."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.types import PyTree


def as_arrays(tree: PyTree, name: str) -> PyTree:
    """The tree with every leaf a JAX array, or an error that names the leaf."""
    if all(isinstance(leaf, jax.Array) and not _weak(leaf) for leaf in jax.tree.leaves(tree)):
        return tree
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: as_array(leaf, name + jax.tree_util.keystr(path)), tree
    )


def as_array(leaf: Any, name: str) -> jax.Array:
    """One leaf as a JAX array; `name` says where it was found."""
    if isinstance(leaf, jax.Array):
        return jnp.asarray(leaf, dtype=leaf.dtype) if _weak(leaf) else leaf
    if callable(getattr(leaf, "detach", None)):  # a torch tensor, without importing torch
        leaf = _from_torch(leaf.detach())
        if isinstance(leaf, jax.Array):
            return leaf
    if np.ma.isMaskedArray(leaf):
        raise TypeError(f"{name} is a masked array: fill what is masked, e.g. {name}.filled(0.0)")
    array = np.asarray(leaf)
    if array.dtype.kind not in "biufcV" or (array.dtype.kind == "V" and array.dtype.names is not None):
        raise TypeError(
            f"{name} is {_what(leaf, array)}, not an array of numbers: convert it, or keep it out of the data"
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    try:
        # A copy always: JAX 0.10.0's `asarray` shares aligned memory, which its owner may fill again.
        return jnp.array(np.ascontiguousarray(array).reshape(array.shape))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name} is {_what(leaf, array)}, which JAX has no type for: convert it first"
        ) from error


def _weak(leaf: jax.Array) -> bool:
    """Whether its dtype came from a Python number, and would change in the first sum with an array."""
    return getattr(leaf, "weak_type", False)  # arrays of keys have no such thing


def _from_torch(tensor: Any) -> Any:
    try:
        return tensor.cpu().numpy()
    except TypeError:  # bfloat16, which NumPy has not
        return jnp.from_dlpack(tensor.cpu())


def _what(leaf: Any, array: np.ndarray) -> str:
    return f"a {type(leaf).__name__} of dtype {array.dtype}"
