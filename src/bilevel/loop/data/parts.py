"""Whole data set in parts, in order: slices of arrays in memory, or the batches of a loader."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.arrays import as_arrays, leaves_of
from bilevel.batch import Batch
from bilevel.checks import check_count
from bilevel.loop.data.loaders import as_dicts
from bilevel.loop.data.streams import Stream
from bilevel.types import PyTree
from bilevel.words import shown


class Part(NamedTuple):
    """Arrays, of which the part is all, or the `size` rows from `start`."""

    data: PyTree
    start: np.int32  # the number of its first row in the data set
    size: int | None
    rows: int


class Arrays:
    """Arrays in memory, as one part, or in slices of `size` rows, of which the last may have fewer."""

    def __init__(self, data: PyTree, size: int | None):
        self.data: PyTree = _converted(data, "data")
        self._size = size if size is None else check_count(size, "size")
        # Without a size, arrays may have any shapes.
        self._rows = 1 if size is None else rows_of(self.data, "data")

    def parts(self) -> Iterator[Part]:
        if self._size is None:
            yield Part(self.data, np.int32(0), None, 1)
            return
        for start in range(0, self._rows, self._size):
            size = min(self._size, self._rows - start)
            yield Part(self.data, np.int32(start), size, size)


class Batches:
    """Loader of batches, which starts again for every look at the data."""

    def __init__(self, loader: Iterable[Any]):
        self.loader = loader

    def parts(self) -> Iterator[Part]:
        start = 0
        for batch in self.loader:
            arrays = _converted(batch, "a batch of data")
            rows = rows_of(arrays, "a batch of data")
            yield Part(arrays, np.int32(start), None, rows)
            start += rows


def _converted(tree: PyTree, name: str) -> PyTree:
    leaves_of(tree, name)  # raises if it is no tree
    return as_arrays(as_dicts(tree), name)


def parts_of(data: Any, size: int | None) -> Arrays | Batches:
    """Return the data as an object with `parts()`. Raise for data that cannot be read twice from the start."""
    if isinstance(data, Stream):
        raise TypeError(
            f"data is a stream ({type(data).__name__}), which draws batches without end: pass the arrays themselves, "
            "and size= for the rows per batch"
        )
    if isinstance(data, Iterator):
        raise TypeError(
            f"data is an iterator ({type(data).__name__}), which can be read only once: pass the loader itself, a list "
            "of batches, or an object whose __iter__ starts again"
        )
    arrays = isinstance(data, tuple | Mapping | Batch | str | bytes) or hasattr(data, "shape")
    if arrays or not isinstance(data, Iterable):
        return Arrays(data, size)
    if isinstance(data, list) and any(hasattr(each, "shape") for each in data):
        raise TypeError(
            "data is a list of arrays, which may be the parts of one batch or many batches: pass a tuple of arrays, or "
            "a list of tuples or dicts"
        )
    if size is not None:
        raise ValueError(
            f"size={shown(size)} cuts arrays, but data is a loader with batches already: leave it out"
        )
    return Batches(data)


def rows_of(tree: PyTree, name: str) -> int:
    """Return the number of rows that all arrays share; raise if they differ, or if there are none."""
    rows = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(tree)}
    if len(rows) != 1 or rows & {(), (0,)}:
        found = ", ".join(sorted(str(shape[0]) if shape else "none, of a number" for shape in rows))
        raise ValueError(
            f"every array of {name} must have one row per example, but the numbers of rows are {found or 'missing'}: "
            "give all arrays the same rows, or pass all of them at once, without size="
        )
    return rows.pop()[0]
