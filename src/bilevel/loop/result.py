"""Result of a run: its end, its status and its records."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bilevel.loop.diagnose.report import Diagnosis
from bilevel.loop.state import RunState
from bilevel.loop.status import Status, check_status
from bilevel.loop.summary import as_html, as_text, of_result
from bilevel.types import PyTree


@dataclass(frozen=True)
class Result:
    """Result of a run: its end, its status and its records."""

    x: PyTree
    y: PyTree
    status: Status
    steps: int  # in total, with earlier runs that it resumed
    trace: dict[str, Any]  # by name, one row per step; with `thin` only the steps in "step"
    probes: dict[str, np.ndarray]  # values of `probe`, one row per call, and "step"
    run: RunState = field(repr=False)  # the run as a value, with which `resume=result` continues
    seconds: float = 0.0  # of this run, without earlier ones
    feed: Any = field(default=None, repr=False)  # the loader, with its unused batches
    # (step from which they apply, the lower levels' factor, the outer factor)
    halvings: tuple[tuple[int, float, float], ...] = ()
    thin: int | None = None  # steps per row of the trace; None: 1
    diagnosis: Diagnosis | None = field(default=None, repr=False)  # with `diagnose=True`
    recovery: Any = field(default=None, repr=False)  # with `on_divergence="halve"`, for `resume=`

    def check(self) -> "Result":
        """Return this result, or raise if the run did not end well.

        Raises:
            RunError: the run diverged or failed. The message is from `status`; `error.result` is this result.
            KeyboardInterrupt: Ctrl-C interrupted the run.
        """
        check_status(self.status, self)
        return self

    @property
    def state(self) -> Any:
        """Return the solver's state."""
        return self.run.solver

    @property
    def model_state(self) -> PyTree:
        """Return the model's state, such as batch-norm statistics."""
        return self.run.model

    def __repr__(self) -> str:
        value = f"outer_value={self.trace['outer_value'][-1]:.6g}, " if self.steps else ""
        steps = f"{self.steps} step{'s' * (self.steps != 1)}"
        return f"Result({self.status.code} after {steps}, {value}{self.seconds:.1f} s)"

    def __str__(self) -> str:
        return as_text(*of_result(self))

    def _repr_html_(self) -> str:
        return as_html(*of_result(self))
