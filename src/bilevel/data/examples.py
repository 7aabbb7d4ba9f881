"""Inputs and targets of a data set, and their source."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from bilevel.checks import check_array, check_count, check_generator, check_kind


class Examples(eqx.Module):
    """Inputs and targets, one row per example; `source` describes their origin in words.

    This is a pytree of two arrays, so it can be one level of a `Batch`, and a minibatch of it is `Examples` again.
    """

    inputs: Any  # one row per example
    targets: Any
    source: str = eqx.field(static=True, default="")

    def __check_init__(self) -> None:
        check_array(self.inputs, "inputs")
        check_array(self.targets, "targets")
        fix = "describe the origin of the examples, or leave it out"
        check_kind(self.source, str, "source", "a text", fix)
        if len(self.inputs) != len(self.targets):
            raise ValueError(
                f"{len(self.inputs)} inputs but {len(self.targets)} targets; there must be one target per input"
            )

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows: np.ndarray) -> "Examples":
        """Return the examples at `rows` (indices or a mask), in that order."""
        rows = _rows(rows, len(self))
        return replace(self, inputs=self.inputs[rows], targets=self.targets[rows])

    def split(self, *sizes: int, seed: int | np.random.Generator) -> tuple["Examples", ...]:
        """Return disjoint sets of the given sizes, drawn uniformly without replacement.

        `train, valid = examples.split(2000, 500, seed=0)`. The same integer seed gives the same sets. Rows
        that are left over are in no set.
        """
        counts = [check_count(size, "the size of a set") for size in sizes]
        if not counts:
            raise ValueError(f"sizes {sizes}: name one or more sets of at least one example each")
        if sum(counts) > len(self):
            from_where = f" ({self.source})" if self.source else ""
            raise ValueError(
                f"sizes {sizes} need {sum(counts)} examples, but there are {len(self)}{from_where}; "
                "ask for fewer, or use the full data set"
            )
        order = check_generator(seed).permutation(len(self))
        return tuple(map(self.take, np.split(order, np.cumsum(counts))[:-1]))


def _rows(rows: Any, count: int) -> Any:
    """Return `rows`, or raise unless they are a mask or numbers of existing rows."""
    check_array(rows, "rows", 1)
    if isinstance(rows, Tracer):
        return rows
    if jnp.issubdtype(rows.dtype, np.bool_):
        if len(rows) != count:
            problem = f"rows is a mask of {len(rows)}, but there are {count} examples"
            raise ValueError(f"{problem}: give one for each")
        return rows
    if not jnp.issubdtype(rows.dtype, np.integer):
        raise TypeError(f"rows must be whole numbers or a mask, not {rows.dtype}: convert them")
    outside = np.asarray(rows)[(np.asarray(rows) < -count) | (np.asarray(rows) >= count)]
    if outside.size:
        problem = f"rows has the number {outside[0]}, but there are {count} examples"
        raise ValueError(f"{problem}: count them from 0")
    return rows
