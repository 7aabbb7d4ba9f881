"""Trees as plain data for JSON and a list of arrays, and back.

Types that are not Python's own (Equinox modules, optimizer states, named tuples) are written as the names of
their parts. A tree of the same structure restores the types; without one, they become `Saved`.
"""

import base64
from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.types import PyTree

PLAIN = (bool, int, float, str)
DEEPEST = 100
LARGEST = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}  # bytes of a number, by the kind of its dtype


@jax.tree_util.register_pytree_with_keys_class
class Saved:
    """Value of an unknown type: its parts, under the same names."""

    _kind: str = ""
    _parts: Mapping[str, Any] = MappingProxyType({})  # of an object that `copy` or `pickle` begins to make

    def __init__(self, kind: str, parts: dict[str, Any]):
        self._kind, self._parts = kind, parts

    def __getattr__(self, name: str) -> Any:
        if name in self._parts:
            return self._parts[name]
        raise AttributeError(f"{self!r} has no part {name!r}: it has {', '.join(self._parts)}")

    def __getitem__(self, name: Any) -> Any:
        by_place = isinstance(name, int) and str(name) not in self._parts
        return list(self._parts.values())[name] if by_place else self._parts[str(name)]

    def __dir__(self) -> list[str]:
        return list(self._parts)

    def __repr__(self) -> str:
        return f"Saved {self._kind}({', '.join(self._parts)})"

    def tree_flatten_with_keys(self) -> tuple[Any, ...]:
        named = [(jax.tree_util.GetAttrKey(name), part) for name, part in self._parts.items()]
        return named, (self._kind, tuple(self._parts))

    @classmethod
    def tree_unflatten(cls, kind_and_names: tuple[Any, ...], parts: Any) -> "Saved":
        kind, names = kind_and_names
        return cls(kind, dict(zip(names, parts, strict=True)))


def flatten(tree: PyTree) -> tuple[Any, list[Any]]:
    """Return the tree as plain data with numbered arrays, and its arrays in JAX's order of leaves."""
    arrays: list[Any] = []
    return _described(tree, arrays, 0), arrays


def _described(node: Any, arrays: list[Any], depth: int) -> Any:
    if depth > DEEPEST:
        raise TypeError(f"a checkpoint cannot hold containers nested more than {DEEPEST} deep")
    if node is None or type(node) in PLAIN:
        return {"value": node}
    if isinstance(node, bytes):
        return {"bytes": base64.b64encode(node).decode()}
    if callable(getattr(node, "detach", None)):  # a torch tensor, in a loader's position
        arrays.append(node.detach().cpu().numpy())
        return {"tensor": len(arrays) - 1}
    if isinstance(node, jax.Array | np.ndarray | np.generic):
        if not _is_ordinary(node):  # such as words that a probe returned
            flat = np.asarray(node).ravel().tolist()
            return {"objects": [_object(each, arrays, depth + 1) for each in flat], "shape": list(node.shape)}
        arrays.append(node)
        array: Any = node
        kind = {"key": str(jax.random.key_impl(array))} if is_key(array) else {}
        return {"array": len(arrays) - 1, **kind}
    if isinstance(node, dict):
        ordered = isinstance(node, OrderedDict)
        names = list(node) if ordered else _sorted(node)  # as JAX does
        parts = [[_key(name), _described(node[name], arrays, depth + 1)] for name in names]
        return {"OrderedDict" if ordered else "dict": parts}
    if type(node) in (list, tuple):
        return {type(node).__name__: [_described(each, arrays, depth + 1) for each in node]}
    # Every child counts as a leaf, so that only the topmost level comes apart.
    children = jax.tree_util.tree_leaves_with_path(node, is_leaf=lambda each: each is not node)
    if len(children) == 1 and children[0][1] is node:
        raise TypeError(
            f"a checkpoint cannot hold {_a(node)}: only arrays, numbers, words and containers of them"
        )
    names = [jax.tree_util.keystr(path[:1], simple=True) for path, _ in children]
    within = [_described(child, arrays, depth + 1) for _, child in children]
    return {"node": type(node).__name__, "parts": [list(part) for part in zip(names, within, strict=True)]}


def unflatten(description: Any, arrays: list[Any]) -> PyTree:
    """Return the tree, with `Saved` in place of types that are not Python's own."""
    match description:
        case {"value": value}:
            return value
        case {"objects": parts, "shape": shape}:
            column = np.empty(len(parts), dtype=object)
            column[:] = unflatten({"list": parts}, arrays)
            return column.reshape(shape)
        case {"bytes": text}:
            return base64.b64decode(text)
        case {"tensor": number}:
            import torch  # pyright: ignore[reportMissingImports]

            return torch.from_numpy(np.array(arrays[number]))
        case {"array": number, "key": kind}:
            return jax.random.wrap_key_data(jnp.asarray(arrays[number]), impl=kind)
        case {"array": int(number)} if number >= 0:
            return arrays[number]
        case {"dict": parts}:
            return {_unkey(name): unflatten(part, arrays) for name, part in parts}
        case {"OrderedDict": parts}:
            return OrderedDict(unflatten({"dict": parts}, arrays))
        case {"list": parts}:
            return [unflatten(part, arrays) for part in parts]
        case {"tuple": parts}:
            return tuple(unflatten({"list": parts}, arrays))
        case {"node": kind, "parts": parts}:
            return Saved(kind, {str(name): unflatten(part, arrays) for name, part in parts})
    raise ValueError(f"not the description of a tree: {description!r}")


def words_of(array: Any) -> Any:
    """Return the numbers in an array of random keys; any other array as it is."""
    return jax.random.key_data(array) if is_key(array) else array


def is_key(array: Any) -> bool:
    return isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def _is_ordinary(array: Any) -> bool:
    """Return whether a file of arrays can hold the array's numbers."""
    if is_key(array) or np.ma.isMaskedArray(array):
        return is_key(array)
    jax_type = array.dtype.kind == "V" and array.dtype.names is None  # such as bfloat16
    return jax_type or array.dtype.itemsize <= LARGEST.get(array.dtype.kind, -1)


def _object(value: Any, arrays: list[Any], depth: int) -> Any:
    """Return any value as plain data; one that cannot be kept becomes its text."""
    count = len(arrays)
    try:
        return _described(value, arrays, depth)
    except Exception:
        del arrays[count:]
        return {"value": str(value)}


def _sorted(node: dict[Any, Any]) -> list[Any]:
    try:
        return sorted(node)
    except Exception:  # JAX would refuse it; in a loader's position it may be
        return list(node)


def _key(name: Any) -> Any:
    """Return the key of a dict as plain data; it may be a number, a word, or a tuple of them."""
    if isinstance(name, np.generic):
        name = name.item()
    if name is None or type(name) in PLAIN:
        return name
    if type(name) is tuple:
        return {"tuple": [_key(part) for part in name]}
    raise TypeError(f"a checkpoint cannot hold a dict with {_a(name)} for a key: use numbers or words")


def _unkey(name: Any) -> Any:
    return tuple(map(_unkey, name["tuple"])) if isinstance(name, dict) else name


def _a(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
