"""Trace of every step and probes between chunks, as plain NumPy arrays."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from bilevel.types import PyTree

Columns = dict[str, Any]  # by name: an array with one row per step, or a tree of such arrays
Probed = tuple[int, dict[str, Any]]  # the step of a probe's call, and its values

STEP = "step"  # column of a thinned trace with the steps of its rows


class Part(NamedTuple):
    """Rows of the trace, and their steps."""

    steps: Sequence[int] | np.ndarray  # ascending
    rows: Columns

    def where(self, wanted: np.ndarray | slice) -> "Part":
        """Return some of the rows as copies. A view would keep all of them in memory."""
        steps = self.steps[wanted] if isinstance(wanted, slice) else np.asarray(self.steps)[wanted]
        return Part(steps, jax.tree.map(lambda a: np.array(a[wanted]), self.rows))


class Log:
    """Collector of rows. It joins them only on request, so the cost of a long run is linear in its length.

    `thin=k` keeps the rows of steps 0, k, 2k, … and the last one. It keeps whole the rows to which the run
    may still return, and the rows of the chunk that hooks read.
    """

    def __init__(
        self,
        trace: Columns | None = None,
        probes: Columns | None = None,
        thin: int | None = None,
        recent: Columns | None = None,  # newest rows of a thinned trace, still whole
    ):
        self.thin = thin
        self._blank: Columns = {}  # columns of length zero, once the row of a step is known
        self._settled: list[Part] = []  # thinned, final
        self._recent: list[Part] = []
        self._probes: list[dict[str, Any]] = _as_rows(probes or {})
        if trace and rows_in(trace):
            whole = Part(range(rows_in(trace)), trace) if thin is None else _numbered_part(trace)
            if recent is None:
                self._recent.append(whole)
                return
            newest = _numbered_part(recent)
            older = np.asarray(whole.steps) < newest.steps[0]
            self._recent += [whole.where(older)] * bool(older.any()) + [newest]

    def add(self, rows: Columns, start: int) -> None:
        """Add rows of the steps from `start`."""
        self._recent.append(Part(range(start, start + rows_in(rows)), rows))

    def settle(self, step: int) -> None:
        """Thin the rows before `step - 1`: the run will not return to a state before `step`."""
        if self.thin is None:
            return
        while self._recent and self._recent[0].steps[-1] < step - 1:
            self._settle(self._recent.pop(0))

    def _settle(self, part: Part) -> None:
        wanted = np.asarray(part.steps) % self.thin == 0
        if not wanted.any():
            return
        self._settled.append(part.where(wanted))
        # Join parts of similar length: the number of parts stays small, and each row moves rarely.
        while len(self._settled) > 1 and len(self._settled[-2].steps) <= len(self._settled[-1].steps):
            self._settled[-2:] = [_joined(self._settled[-2:])]

    def add_probes(self, rows: Sequence[Probed]) -> None:
        self._probes += _numbered(rows)

    def keep(self, steps: int) -> None:
        """Keep the first `steps` steps and drop all later ones."""
        while self._recent and self._recent[-1].steps[-1] >= steps:
            part = self._recent.pop()
            if (count := bisect_left(part.steps, steps)) > 0:
                self._recent.append(
                    Part(part.steps[:count], jax.tree.map(lambda a, n=count: a[:n], part.rows))
                )
        self._probes = [row for row in self._probes if row[STEP] <= steps]

    def rows(self, start: int) -> Columns:
        """Return all rows from step `start`, to which the run may still return."""
        return join([part.rows for part in self._from(start)])

    def since(self, start: int) -> Columns:
        """Return the rows from step `start` with the steps' numbers, as in a thinned trace."""
        part = _joined(self._from(start))
        return {STEP: np.asarray(part.steps)} | part.rows

    def _from(self, start: int) -> list[Part]:
        parts = [part for part in self._recent if part.steps[-1] >= start]
        return [
            p if p.steps[0] >= start else p.where(slice(bisect_left(p.steps, start), None)) for p in parts
        ]

    def expect(self, row: Columns) -> None:
        """Store the shapes of a row. Raise if they do not fit the trace of the resumed run."""
        if self.thin is not None and STEP in row:
            raise ValueError(
                f'record returned "{STEP}", which in a thinned trace says whose rows were kept: choose another name'
            )
        self._blank = jax.tree.map(lambda a: np.zeros((0, *a.shape), a.dtype), row)
        if not self._recent:
            return
        shape = lambda rows, skip: jax.tree.map(lambda a: (tuple(a.shape[skip:]), str(a.dtype)), rows)
        before = self._recent[0].rows
        if shape(before, 1) != shape(row, 0):
            names = [set(before), set(row)]
            raise ValueError(
                f"the earlier run's trace has the columns {sorted(names[0])}, this one's would have "
                f"{sorted(names[1])}, or others of those names: resume with the same record and the same solver, so "
                "that they can be joined"
            )

    @property
    def trace(self) -> Columns:
        """Return the trace by name, one row per step. A thinned trace also has the steps' numbers."""
        if not (self._recent or self._settled):
            return (
                self._blank
                if self.thin is None or not self._blank
                else {STEP: np.zeros(0, int)} | self._blank
            )
        if self.thin is None:
            if len(self._recent) > 1:  # joined once: a long run reads its trace several times
                self._recent = [_joined(self._recent)]
            return self._recent[0].rows
        parts = list(self._settled)
        for part in self._recent:
            wanted = np.asarray(part.steps) % self.thin == 0
            wanted[-1] |= part is self._recent[-1]
            parts.append(part.where(wanted))
        rows = join([part.rows for part in parts])
        return {STEP: np.concatenate([part.steps for part in parts])} | rows

    @property
    def probed(self) -> frozenset[str]:
        """Return the names that probes have returned."""
        return frozenset(name for row in self._probes for name in row) - {STEP}

    def probes(self, more: Sequence[Probed] = ()) -> dict[str, np.ndarray]:
        """Return one row per step at which a probe was called, including the rows `more` that probes still hold.

        A name missing at a step is NaN in its row, or None if it is not numeric.
        """
        rows = [*self._probes, *_numbered(more)]
        names = list(dict.fromkeys(name for row in rows for name in row))
        return {name: _column([row.get(name) for row in rows]) for name in names}


def _numbered_part(trace: Columns) -> Part:
    """Return the part of rows whose steps are a column."""
    return Part(trace[STEP], {name: column for name, column in trace.items() if name != STEP})


def _joined(parts: list[Part]) -> Part:
    steps = range(parts[0].steps[0], parts[-1].steps[-1] + 1)
    if not all(isinstance(part.steps, range) for part in parts) or len(steps) != sum(
        len(part.steps) for part in parts
    ):
        steps = np.concatenate([part.steps for part in parts])
    return Part(steps, join([part.rows for part in parts]))


def rows_in(columns: Columns) -> int:
    return len(jax.tree.leaves(columns)[0])


def join(rows: list[Columns]) -> PyTree:
    """Concatenate the rows of each name."""
    if len(rows) <= 1:
        return rows[0] if rows else {}
    return jax.tree.map(lambda *parts: np.concatenate(parts), *rows)


def _numbered(rows: Sequence[Probed]) -> list[dict[str, Any]]:
    """Return one row per step, with the values of all probes."""
    joined: dict[int, dict[str, Any]] = {}
    for step, values in sorted(rows, key=lambda row: row[0]):
        joined.setdefault(step, {STEP: step}).update(values)
    return [*joined.values()]


def _column(values: list[Any]) -> np.ndarray:
    """Stack numbers or arrays of one shape; return other values as an array of objects."""
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
