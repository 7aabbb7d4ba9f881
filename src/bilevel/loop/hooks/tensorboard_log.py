"""Trace as TensorBoard scalars."""

from pathlib import Path
from typing import Any

import numpy as np

from bilevel.checks import MANY, check_count, check_path
from bilevel.loop.hooks.base import Hook
from bilevel.loop.hooks.event import Event


class TensorBoard(Hook):
    """Write the scalars of the trace as TensorBoard events. Needs `pip install "bilevel[tensorboard]"`.

    Args:
        folder: the log folder, as for `tensorboard --logdir`.
        thin: the number of steps per event.
    """

    of_one_run = True  # not of a sweep
    reads_info = False
    once = True  # of several processes, only the first writes

    def __init__(self, folder: str | Path, *, thin: int = 1):
        try:
            from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError(
                'the TensorBoard hook needs tensorboardX: pip install "bilevel[tensorboard]"'
            ) from error
        self._make: Any = SummaryWriter
        self.folder: Path = check_path(folder, "folder")
        self.thin: int = check_count(thin, "thin", most=MANY)
        self._writer: Any = None

    def begin(self, event: Event) -> None:
        # A resumed run may have written events of steps that it repeats.
        self._writer = self._make(str(self.folder), purge_step=event.step or None)

    def __call__(self, event: Event) -> None:
        for name, values in event.trace.items():
            if isinstance(values, np.ndarray) and values.ndim == 1:
                for i in range(-event.first % self.thin, len(values), self.thin):
                    self._writer.add_scalar(name, float(values[i]), event.first + i)
        self._writer.flush()

    def end(self, result: Any) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
