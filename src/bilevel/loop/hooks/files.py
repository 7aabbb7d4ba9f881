"""Trace and probes in files that grow during the run: JSON lines, CSV, or TensorBoard events."""

import csv
import json
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from bilevel.checks import MANY, check_count, check_path
from bilevel.loop.hooks.base import Hook
from bilevel.loop.hooks.event import Event


class _TraceHook(Hook):
    """Hook that writes every `thin`-th row of the trace, and every row after whose step a probe was called."""

    of_one_run = True
    reads_info = False
    once = True

    def __init__(self, thin: int):
        self.thin: int = check_count(thin, "thin", most=MANY)

    def scalars(self, event: Event) -> Iterator[tuple[int, dict[str, Any]]]:
        """Return the steps to write, counted from 0, and their scalars by name."""
        columns = {name: v for name, v in event.trace.items() if isinstance(v, np.ndarray) and v.ndim == 1}
        count, probed = len(event.trace["outer_value"]), event.probed_numbers()
        wanted = [*range(-event.first % self.thin, count, self.thin)]
        wanted += [count - 1] if probed and count - 1 not in wanted[-1:] else []
        for i in wanted:
            row = {name: values[i].item() for name, values in columns.items()}
            yield event.first + i, row | (probed if i == count - 1 else {})


class _Lines(_TraceHook, ABC):
    """Append one line per row. A full disk does not end the run."""

    note: str = ""

    def __init__(self, path: str | Path, *, thin: int = 1):
        self.path: Path = check_path(path, "path")
        super().__init__(thin)
        self._file: Any = None
        self._probed: Iterable[str] = ()  # names of probes
        self._length: int | None = None  # of the file, at the checkpoint that the run resumes

    def get_state(self) -> dict[str, Any]:
        """Return the length of the file. A resumed run takes the steps of later lines again."""
        return {"length": None if self._file is None else self._file.tell()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._length = state["length"]

    def begin(self, event: Event) -> None:
        self.note = ""
        # A resumed run continues its file; a new one starts a new file.
        self._file = self.path.open(
            "a" if event.step else "w", newline="", encoding="utf-8", errors="backslashreplace"
        )
        if event.step and self._length is not None:
            if self._file.tell() < self._length:
                warnings.warn(
                    f"{str(self.path)!r} is shorter than it was at step {event.step}: lines before that are missing "
                    "(the trace has them)",
                    RuntimeWarning,
                    stacklevel=2,
                )
            self._file.truncate(min(self._length, self._file.tell()))
        self._length = None

    def __call__(self, event: Event) -> None:
        if self.note:
            return
        whole, self._probed = self._file.tell(), event.probed or ()
        try:
            for step, row in self.scalars(event):
                self._write({"step": step} | row)
            self._file.flush()
        except OSError as error:
            self.note = f" {str(self.path)!r} ends before step {event.first}: {error.strerror or error}."
            with suppress(OSError):
                os.truncate(self.path, whole)
            with suppress(RuntimeWarning):  # it must not end the run where warnings are errors
                warnings.warn(f"{self.note.strip()} The run continues.", RuntimeWarning, stacklevel=2)

    def end(self, result: Any) -> None:
        if self._file is not None:
            with suppress(OSError):  # the disk may be full
                self._file.close()
            self._file = None

    @abstractmethod
    def _write(self, row: dict[str, Any]) -> None: ...


class JSONLines(_Lines):
    """Write one JSON object per step: its number, counted from 0, and the scalars of the trace.

    If probes were called after the step, their numbers follow. NaN and infinity, which JSON does not have, are
    written as null.

    Args:
        path: the file; a new run replaces it, a resumed run continues it.
        thin: the number of steps per line.
    """

    def _write(self, row: dict[str, Any]) -> None:
        clean = {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in row.items()}
        self._file.write(json.dumps(clean) + "\n")


class CSV(_Lines):
    """Write one row per step, under a header: its number, counted from 0, and the scalars of the trace.

    If probes were called after the step, their numbers follow; elsewhere, their columns are empty. The header
    has the names of every `bl.hooks.Evaluate`, and those that a `bl.hooks.Probe` returned at its first call. A
    resumed run keeps the header of its file.

    Args:
        path: the file; a new run replaces it, a resumed run continues it.
        thin: the number of steps per line.
    """

    def begin(self, event: Event) -> None:
        super().begin(event)
        self._columns: list[str] = []

    def _write(self, row: dict[str, Any]) -> None:
        if self._file.tell() == 0:
            self._columns = [*row, *sorted({*self._probed} - row.keys())]
            csv.writer(self._file).writerow(self._columns)
        elif not self._columns:  # a resumed run
            written = {name.encode("utf-8", "backslashreplace").decode(): name for name in row}
            with self.path.open(newline="", encoding="utf-8") as file:
                self._columns = [written.get(name, name) for name in next(csv.reader(file))]
        csv.DictWriter(self._file, self._columns, extrasaction="ignore").writerow(row)


class TensorBoard(_TraceHook):
    """Write the scalars of the trace and of probes as TensorBoard events. Needs `pip install "bilevel[tensorboard]"`.

    Args:
        folder: the log folder, as for `tensorboard --logdir`.
        thin: the number of steps per event.
    """

    def __init__(self, folder: str | Path, *, thin: int = 1):
        try:
            from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError(
                'the TensorBoard hook needs tensorboardX: pip install "bilevel[tensorboard]"'
            ) from error
        self._make: Any = SummaryWriter
        self.folder: Path = check_path(folder, "folder")
        super().__init__(thin)
        self._writer: Any = None

    def begin(self, event: Event) -> None:
        # A resumed run may have written events of steps that it repeats.
        self._writer = self._make(str(self.folder), purge_step=event.step or None)

    def __call__(self, event: Event) -> None:
        for step, row in self.scalars(event):
            for name, value in row.items():
                self._writer.add_scalar(name, float(value), step)
        self._writer.flush()

    def end(self, result: Any) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
