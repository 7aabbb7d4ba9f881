"""Where a run ended, how, and what it saw on the way."""

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
    """Where a run ended, how, and what it saw on the way."""

    x: PyTree
    y: PyTree
    status: Status
    steps: int  # taken in all, those of the run it resumed included
    trace: dict[str, Any]  # by name, one row per step, or with `thin` for those that "step" names
    probes: dict[str, np.ndarray]  # what `probe` returned, one row per call, and "step"
    run: RunState = field(repr=False)  # the run as a value; `resume=result` goes on from it
    seconds: float = 0.0  # that this run took, without those it resumed
    feed: Any = field(default=None, repr=False)  # the loader, with what was taken from it and not used
    # (from which step on, the factor of the lower levels' step sizes, that of the outer one's)
    halvings: tuple[tuple[int, float, float], ...] = ()
    thin: int | None = None  # every so many steps have a row in the trace; None: all
    diagnosis: Diagnosis | None = field(default=None, repr=False)  # with `diagnose=True`
    recovery: Any = field(default=None, repr=False)  # with `on_divergence="halve"`, for `resume=`

    def check(self) -> "Result":
        """Return this result, or raise if the run did not end well.

        Raises:
            RunError: the run diverged or failed. The message is that of `status`; `error.result` is this result.
            KeyboardInterrupt: Ctrl-C interrupted the run.
        """
        check_status(self.status, self)
        return self

    @property
    def state(self) -> Any:
        """The solver's own state."""
        return self.run.solver

    @property
    def model_state(self) -> PyTree:
        """What the model carried along besides y, such as batch-norm statistics."""
        return self.run.model

    def __repr__(self) -> str:
        value = f"outer_value={self.trace['outer_value'][-1]:.6g}, " if self.steps else ""
        steps = f"{self.steps} step{'s' * (self.steps != 1)}"
        return f"Result({self.status.code} after {steps}, {value}{self.seconds:.1f} s)"

    def __str__(self) -> str:
        return as_text(*of_result(self))

    def _repr_html_(self) -> str:
        return as_html(*of_result(self))
