"""Examples: inputs and targets that travel together and know where they come from."""

import operator
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Examples:
    """`inputs[i]` belongs to `targets[i]`; `source` says in words where they were read from."""

    inputs: np.ndarray
    targets: np.ndarray
    source: str

    def __post_init__(self) -> None:
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
            raise ValueError(
                f"sizes {sizes} need {sum(counts)} examples, but there are {len(self)} ({self.source}); "
                "ask for fewer, or use the full data set"
            )
        order = np.random.default_rng(seed).permutation(len(self))
        ends = np.cumsum(counts)
        return tuple(self.take(order[end - count : end]) for count, end in zip(counts, ends, strict=True))
