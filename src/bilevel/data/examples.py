"""Examples: inputs and targets that travel together and know where they come from."""

import operator
from dataclasses import replace
from typing import Any

import equinox as eqx
import numpy as np


class Examples(eqx.Module):
    """`inputs[i]` belongs to `targets[i]`; `source` says in words where they were read from.

    A pytree of two arrays, so that it is one level's part of a `Batch` as it is, and a minibatch of it is one as well.
    """

    inputs: Any  # one row per example
    targets: Any
    source: str = eqx.field(static=True, default="")

    def __check_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise ValueError(
                f"{len(self.inputs)} inputs but {len(self.targets)} targets; there must be one target per input"
            )

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows: np.ndarray) -> "Examples":
        """The examples at `rows` (indices or a mask), in that order."""
        return replace(self, inputs=self.inputs[rows], targets=self.targets[rows])

    def split(self, *sizes: int, seed: int | np.random.Generator) -> tuple["Examples", ...]:
        """Disjoint sets of the given sizes, drawn uniformly without replacement; the rest is left out.

        `train, valid = examples.split(2000, 500, seed=0)`. The same integer seed gives the same sets.
        """
        counts = [operator.index(size) for size in sizes]
        if not counts or min(counts) < 1:
            raise ValueError(f"sizes {sizes}: name one or more sets of at least one example each")
        if sum(counts) > len(self):
            from_where = f" ({self.source})" if self.source else ""
            raise ValueError(
                f"sizes {sizes} need {sum(counts)} examples, but there are {len(self)}{from_where}; "
                "ask for fewer, or use the full data set"
            )
        order = np.random.default_rng(seed).permutation(len(self))
        ends = np.cumsum(counts)
        return tuple(self.take(order[end - count : end]) for count, end in zip(counts, ends, strict=True))
