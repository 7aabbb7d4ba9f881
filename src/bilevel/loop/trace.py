"""What a run saw: the trace of every step and the probes between chunks, as plain NumPy arrays."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bilevel.types import PyTree

Columns = dict[str, Any]  # by name: an array with one row per step, or a tree of such arrays
Probed = tuple[int, dict[str, Any]]  # the step a probe was called at, and what it returned


class Log:
    """Collects rows; joined only when asked for, so that a long run stays linear in its length."""

    def __init__(self, trace: Columns | None = None, probes: Columns | None = None):
        self._traces: list[Columns] = [trace] if trace else []
        self._probes: list[dict[str, Any]] = _as_rows(probes or {})

    def add(self, rows: Columns) -> None:
        self._traces.append(rows)

    def add_probes(self, rows: Sequence[Probed]) -> None:
        self._probes += _numbered(rows)

    def keep(self, steps: int) -> None:
        """The first so many steps; what came later is forgotten."""
        extra = sum(map(rows_in, self._traces)) - steps
        while extra > 0:
            last = self._traces.pop()
            length = rows_in(last)
            if length > extra:
                self._traces.append(jax.tree.map(lambda a, keep=length - extra: a[:keep], last))
            extra -= length

    def rows(self, start: int) -> Columns:
        """The rows from step `start` on, which began with a chunk."""
        kept, length = [], sum(map(rows_in, self._traces))
        for part in reversed(self._traces):
            if length <= start:
                break
            kept.append(part)
            length -= rows_in(part)
        return join(kept[::-1])

    def check_columns(self, row: Columns) -> None:
        """A resumed run must record what the earlier one did, or the two cannot be joined."""
        if not self._traces:
            return
        shape = lambda rows, skip: jax.tree.map(lambda a: (tuple(a.shape[skip:]), str(a.dtype)), rows)
        if shape(self._traces[0], 1) != shape(row, 0):
            names = [set(self._traces[0]), set(row)]
            raise ValueError(
                f"the earlier run's trace has the columns {sorted(names[0])}, this one's would have "
                f"{sorted(names[1])}, or others of those names: resume with the same record and the same solver, so "
                "that they can be joined"
            )

    @property
    def trace(self) -> Columns:
        return join(self._traces)

    def probes(self, more: Sequence[Probed] = ()) -> dict[str, np.ndarray]:
        """One row per call of a probe; a name that a call left out is NaN there (or None, if it is no number).

        `more` are rows that a probe still holds.
        """
        rows = [*self._probes, *_numbered(more)]
        names = list(dict.fromkeys(name for row in rows for name in row))
        return {name: _column([row.get(name) for row in rows]) for name in names}


def rows_in(columns: Columns) -> int:
    return len(jax.tree.leaves(columns)[0])


def join(rows: list[Columns]) -> PyTree:
    """The rows of each name one after the other."""
    if len(rows) <= 1:
        return rows[0] if rows else {}
    return jax.tree.map(lambda *parts: np.concatenate(parts), *rows)


def _numbered(rows: Sequence[Probed]) -> list[dict[str, Any]]:
    return [{"step": step, **values} for step, values in rows]


def _column(values: list[Any]) -> np.ndarray:
    """Stacked if they are numbers or arrays of one shape, else as objects."""
    try:
        given = [np.asarray(value) for value in values if value is not None]
        if len(given) == len(values) and given[0].dtype != object:
            return np.stack(given)
        if given and given[0].dtype.kind in "biuf":
            missing = np.full(given[0].shape, np.nan)
            return np.stack([missing if value is None else np.asarray(value) for value in values])
    except (TypeError, ValueError):
        pass
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def _as_rows(columns: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    count = len(next(iter(columns.values()))) if columns else 0
    return [{name: values[i] for name, values in columns.items()} for i in range(count)]
