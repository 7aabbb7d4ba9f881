"""Conversion to JAX arrays: from torch tensors and from big-endian, strided and memory-mapped NumPy arrays."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, SingleDeviceSharding

from bilevel.types import PyTree

ALIGNED = 64  # bytes: the arrays of a CPU begin at multiples of this number
FEW = 2**24  # numbers that are checked on the host
WIDE = {np.dtype(name) for name in ("float64", "int64", "uint64", "complex128")}  # which need x64


def as_arrays(tree: PyTree, name: str) -> PyTree:
    """Return the tree with JAX arrays as leaves; raise, with its path, for a leaf that cannot be converted."""
    leaves = leaves_of(tree, name)
    if all(isinstance(leaf, jax.Array) and is_fit(leaf) for leaf in leaves):
        return tree
    convert = lambda path, leaf: as_array(leaf, name + jax.tree_util.keystr(path))
    return jax.tree_util.tree_map_with_path(convert, tree)


def as_array(leaf: Any, name: str) -> jax.Array:
    """Return one leaf as a JAX array; `name` is its place, for error messages."""
    plain = _plain(leaf, name)
    if isinstance(plain, jax.Array):
        return plain
    # Always a copy: its owner may overwrite the memory. `jnp.array` would compile a program for every shape.
    return _made(lambda a: jax.device_put(_copied(a)), plain, leaf, name)


def as_host(leaf: Any, name: str) -> Any:
    """Return one leaf as a new NumPy array that JAX can use; return a JAX array unchanged."""
    plain = _plain(leaf, name)
    if isinstance(plain, jax.Array):
        return plain
    if plain.dtype.kind in "cV":  # JAX has some of these types
        _made(lambda a: jnp.array(a.ravel()[:0]), plain, leaf, name)
    return _copied(plain)


def _copied(array: np.ndarray) -> np.ndarray:
    """Return a copy in aligned memory, which JAX can use without another copy."""
    memory = np.empty(array.nbytes + ALIGNED, np.uint8)
    begin = -memory.ctypes.data % ALIGNED
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _made(make: Any, array: np.ndarray, leaf: Any, name: str) -> Any:
    try:
        return make(array)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(
            f"{name} is {_what(leaf, array)}, which JAX has no type for: convert it first"
        ) from error


def _plain(leaf: Any, name: str) -> Any:
    """Return a JAX array unchanged, and anything else as a NumPy array."""
    if isinstance(leaf, jax.Array):
        if not _usable(leaf):
            raise ValueError(f"{name} {_unusable(leaf)}")
        leaf = _on_auto(leaf)
        return jnp.asarray(leaf, dtype=leaf.dtype) if _weak(leaf) else leaf
    check_no_torch_module(leaf, name)
    if callable(getattr(leaf, "detach", None)):  # a torch tensor, without importing torch
        if (moved := _on_gpu(leaf)) is not None:
            return moved
        try:
            leaf = leaf.detach().cpu().numpy()
        except TypeError:  # bfloat16, which NumPy lacks
            return jnp.from_dlpack(leaf.detach().cpu())
    if np.ma.isMaskedArray(leaf):
        raise TypeError(f"{name} is a masked array: fill what is masked, e.g. {name}.filled(0.0)")
    try:
        array = np.asarray(leaf)
    except Exception as error:
        raise TypeError(
            f"{name} is a {type(leaf).__name__}, of which NumPy makes no array: {error}"
        ) from error
    if array.dtype.kind not in "biufcV" or (array.dtype.kind == "V" and array.dtype.names is not None):
        raise TypeError(
            f"{name} is {_what(leaf, array)}, not an array of numbers: convert it, or keep it out of the data"
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        raise TypeError(
            f"{name} is {_what(leaf, array)}, which JAX has no type for: convert it first, e.g. by .astype(float)"
        )
    return array


def _on_gpu(tensor: Any) -> jax.Array | None:
    """Return a copy on the GPU of a torch tensor that is there, or None."""
    if not getattr(tensor, "is_cuda", False) or jax.default_backend() != "gpu":
        return None
    x64 = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    if str(tensor.dtype).endswith("64") and not x64:  # JAX would round it with a warning
        return None
    return jnp.copy(jnp.from_dlpack(tensor.detach().contiguous()))


def leaves_of(tree: PyTree, name: str) -> list[Any]:
    """Return the leaves; raise a plain error if the tree cannot be flattened."""
    try:
        leaves = jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, Iterator))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name} has a dict whose keys cannot be sorted, as they are of several types: name all of them by strings"
        ) from error
    if passing := [leaf for leaf in leaves if isinstance(leaf, Iterator)]:
        raise TypeError(
            f"{name} has a {type(passing[0]).__name__} in it, which is no array: make one of what it gives"
        )
    return leaves


def check_no_torch_module(leaf: Any, name: str) -> None:
    """Raise for a `torch.nn.Module`, without importing torch."""
    if any(kind.__module__ == "torch.nn.modules.module" for kind in type(leaf).__mro__):
        raise TypeError(
            f"{name} is a torch module ({type(leaf).__name__}), not a tree of arrays: write the losses in torch, make "
            "the problem by front = bl.torch.front(module, inner=..., outer=...), and pass **front.start (and "
            "front.x0, if x is a module)"
        )


def check_usable(tree: PyTree, name: str) -> None:
    """Raise if an array was deleted, or has 64 bits while x64 is off."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if isinstance(leaf, jax.Array) and not _usable(leaf):
            raise ValueError(f"{name}{jax.tree_util.keystr(path)} {_unusable(leaf)}")


def at_hand(leaves: list[jax.Array]) -> bool:
    """Return whether NumPy reads the arrays without a copy, which is faster than a compiled program."""
    here = lambda leaf: leaf.is_fully_addressable and all(at.platform == "cpu" for at in leaf.devices())
    return sum(leaf.size for leaf in leaves) <= FEW and all(here(leaf) for leaf in leaves)


def is_explicit(leaf: Any) -> bool:
    """Return whether an array is on a mesh with Explicit axes: JAX then checks shardings during tracing."""
    if not isinstance(leaf, jax.Array):
        return False
    if not isinstance(leaf, Tracer) and isinstance(leaf.sharding, SingleDeviceSharding):
        return False
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return False
    return AxisType.Explicit in jax.typeof(leaf).sharding.mesh.axis_types


def _on_auto(leaf: jax.Array) -> jax.Array:
    """Return the array on the same devices with Auto axes, since objectives are written without a mesh."""
    if isinstance(leaf, Tracer) or not leaf.is_fully_addressable or not is_explicit(leaf):
        return leaf
    assert isinstance(leaf.sharding, NamedSharding)
    mesh = Mesh(np.asarray(leaf.sharding.mesh.devices), leaf.sharding.mesh.axis_names)
    return jax.device_put(leaf, NamedSharding(mesh, leaf.sharding.spec))


def is_fit(leaf: jax.Array) -> bool:
    """Return whether a JAX array needs no conversion."""
    return not _weak(leaf) and _usable(leaf) and (isinstance(leaf, Tracer) or not is_explicit(leaf))


def _usable(leaf: jax.Array) -> bool:
    """Return whether the array has values, and not 64 bits while x64 is off."""
    if isinstance(leaf, Tracer):
        return True
    x64 = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    return not leaf.is_deleted() and (x64 or leaf.dtype not in WIDE)


def _unusable(leaf: jax.Array) -> str:
    if leaf.is_deleted():
        return "is an array that was deleted or donated to a compiled program: make it again, or pass a copy"
    return (
        f"has dtype {leaf.dtype}, made with x64 on, which is off now: run under jax.enable_x64(True), or convert it by "
        f".astype({str(leaf.dtype).replace('64', '32').replace('128', '64')!r})"
    )


def _weak(leaf: jax.Array) -> bool:
    """Return whether its dtype came from a Python number and would change in a sum with an array."""
    return getattr(leaf, "weak_type", False)  # arrays of keys have no weak type


def _what(leaf: Any, array: np.ndarray) -> str:
    return f"a {type(leaf).__name__} of dtype {array.dtype}"
