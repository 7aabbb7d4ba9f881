"""Event for hooks, and their request to stop."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bilevel.checks import MANY, check_count, check_kind
from bilevel.loop.columns import is_real, numbers_in
from bilevel.loop.state import RunState
from bilevel.loop.status import Code
from bilevel.solvers.base import Info
from bilevel.types import PyTree
from bilevel.words import listed, shown


@dataclass(frozen=True)
class Event:
    """Run between two chunks. Do not change its fields. The next chunk may free `run`: copy what you keep."""

    step: int  # the number of steps so far, with those before a resume
    total: int  # the step at which the run will end
    run: RunState  # the run as a value
    info: Info | None  # of the last step; None before the first
    trace: dict[str, Any]  # the rows of the steps since the last event
    seconds: float  # since the run began
    name: str  # of the solver
    packed: Callable[[], Any] | None = field(default=None, repr=False, compare=False)  # for `so_far`
    solver: Any = field(default=None, repr=False, compare=False)  # None in a sweep
    measured: Callable[..., Any] | None = field(default=None, repr=False, compare=False)  # for `measure`
    # The number of lanes of a sweep; they are the first axis of its columns and state.
    lanes: int | None = None
    probes: dict[str, Any] = field(default_factory=dict)  # the values of the run's probes at this step
    # The names that probes have returned so far, also before a resume, or will return. None: there is no probe.
    probed: frozenset[str] | None = field(default=None, repr=False, compare=False)
    awaited: bool = field(
        default=False, repr=False, compare=False
    )  # whether a probe has returned nothing yet

    def so_far(self) -> Any:
        """Return the `Result` as if the run ended here. The next chunk may free its state: copy it."""
        if self.packed is None:
            raise TypeError("the events of a sweep have no result so far: only the events of bl.run do")
        return self.packed()

    def measure(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return `function(solver, state, batch, whole, *arguments)` at the present state, compiled.

        `batch` is the batch of the next step; with a loader, its last batch. `whole` is true if it is all the
        data. The function must be pure. It is compiled once if it is the same object every time.

        Args:
            function: computes arrays from arrays, for example a residual.
            *arguments: more arrays for it.
        """
        if self.measured is None:
            raise TypeError(
                "event.measure works only while bl.run is running, not in a sweep or after the run"
            )
        return self.measured(function, *arguments)

    @property
    def state(self) -> Any:
        """Return the state of the solver: x, y and its other fields."""
        return self.run.solver

    @property
    def x(self) -> PyTree:
        return self.run.x

    @property
    def y(self) -> PyTree:
        return self.run.y

    @property
    def model_state(self) -> PyTree:
        """Return the model's state, such as batch-norm statistics."""
        return self.run.model

    @property
    def first(self) -> int:
        """Return the number of the step of the first row of `trace`, counted from 0."""
        rows = self.trace["outer_value"].shape[-1] if self.trace else 0  # in a sweep, lanes are first
        return self.step - rows

    def last(self, metric: str) -> Any:
        """Return the newest value of a metric, in a sweep of all lanes. Raise if there is no such metric.

        The value is NaN if a probe did not return it this time.
        """
        column = self.column(metric)
        return self._newest(column) if np.size(column) else np.nan

    def newest(self) -> dict[str, Any]:
        """Return the newest value of every column and every scalar probe, by name, as a tracker logs them."""
        columns = numbers_in(self.trace, 1 if self.lanes is None else 2)
        return {name: self._newest(column) for name, column in columns.items()} | self.probed_numbers()

    def probed_numbers(self) -> dict[str, float]:
        """Return the numbers of probes at this step, without the names that the trace has too."""
        probed = {name: np.atleast_1d(value) for name, value in self.probes.items() if np.ndim(value) == 0}
        return {name: float(value[0]) for name, value in numbers_in(probed).items() if name not in self.trace}

    def _newest(self, column: Any) -> Any:
        return float(column[-1]) if self.lanes is None else column[:, -1]

    def column(self, metric: str) -> Any:
        """Return the values of a metric since the last event, at the steps `steps_of(metric)`.

        The trace has one per step. A probe has one, or none if it did not return the metric this time. If
        both have the name, the trace's values are returned.
        """
        name = metric if isinstance(metric, str) else None
        if name in self.trace:
            return self.trace[name]
        if name in self.probes:
            value = np.asarray(self.probes[name])
            if value.ndim or not is_real(value.dtype):
                raise TypeError(
                    f"a hook watches one number, but the probe's {shown(name)} is {shown(self.probes[name])}: "
                    "return a float"
                )
            return value[None]
        if self.probed is not None and (name in self.probed or self.awaited):
            return np.empty(0)  # not returned this time
        known = sorted({*self.trace, *(self.probed or ())})
        where = "the trace has" if self.probed is None else "the trace and the probes have"
        raise KeyError(f"{where} no {shown(metric)}: choose from {listed(known)}")

    def steps_of(self, metric: str) -> Any:
        """Return the steps, counted from 1, after which `column(metric)` has a value."""
        count = np.shape(self.column(metric))[0 if self.lanes is None else 1]
        return np.arange(self.step - count, self.step) + 1


@dataclass(frozen=True)
class Stop:
    """Request to end the run at `step` if it can return there, else at the present step."""

    reason: str
    code: Code = Code.STOPPED
    step: int | None = None

    def __post_init__(self) -> None:
        check_kind(self.reason, str, "reason", "a sentence", "say why the run ends")
        check_kind(self.code, Code, "code", "a bl.Code", "pass e.g. bl.Code.STOPPED")
        if self.step is not None:
            check_count(self.step, "step", least=0, most=MANY)
