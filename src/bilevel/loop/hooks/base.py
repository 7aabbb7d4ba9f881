"""What a hook sees, and how it asks a run to stop."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from bilevel.checks import MANY, check_count, check_kind
from bilevel.loop.columns import is_real, numbers_in
from bilevel.loop.state import RunState
from bilevel.loop.status import Code
from bilevel.loop.trace import rows_in
from bilevel.solvers.base import Info
from bilevel.types import PyTree
from bilevel.words import listed, shown


@dataclass(frozen=True)
class Event:
    """A run between two chunks. What it holds is only to be read; `run` may be gone after the next chunk: copy it."""

    step: int  # taken so far, those of a resumed run included
    total: int  # the step at which the run will end
    run: RunState  # the run as a value
    info: Info | None  # of the last step; None before the first
    trace: dict[str, Any]  # the rows of the steps since the last event
    seconds: float  # since the run began
    name: str  # the solver's
    packed: Callable[[], Any] | None = field(default=None, repr=False, compare=False)  # behind `so_far`
    solver: Any = field(default=None, repr=False, compare=False)  # None in a sweep
    measured: Callable[..., Any] | None = field(default=None, repr=False, compare=False)  # behind `measure`
    lanes: int | None = None  # of a sweep, how many; its columns and its state have them first
    probes: dict[str, Any] = field(default_factory=dict)  # what the run's probes returned at this step
    # The names that probes have returned so far, the earlier part of a resumed run included; None: there is no probe.
    probed: frozenset[str] | None = field(default=None, repr=False, compare=False)

    def so_far(self) -> Any:
        """The `Result` as if the run ended here. Its state may be gone after the next chunk: copy what is kept."""
        if self.packed is None:
            raise TypeError(
                "this event has no result so far: only those of bl.run have one, not those of a sweep"
            )
        return self.packed()

    def measure(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """`function(solver, state, batch, whole, *arguments)`, compiled, where the run stands.

        `batch` is that of the next step, or of a loader the last that it gave; `whole` says whether it is all the data.
        The function must be pure, and is compiled once if it is the same object every time.

        Args:
            function: what to compute, such as a residual: arrays in, arrays out.
            *arguments: more arrays for it.
        """
        if self.measured is None:
            raise TypeError(
                "this event measures nothing: only those of bl.run do, while it goes on, not a sweep's"
            )
        return self.measured(function, *arguments)

    @property
    def state(self) -> Any:
        """The solver's own state: x, y and what else it has."""
        return self.run.solver

    @property
    def x(self) -> PyTree:
        return self.run.x

    @property
    def y(self) -> PyTree:
        return self.run.y

    @property
    def model_state(self) -> PyTree:
        """What the model carries along besides y, such as batch-norm statistics."""
        return self.run.model

    @property
    def first(self) -> int:
        """The number of the step that the first row of `trace` belongs to, counted from 0."""
        if not self.trace:
            return self.step
        rows = (
            rows_in(self.trace) if self.lanes is None else rows_in(jax.tree.map(lambda a: a[0], self.trace))
        )
        return self.step - rows

    def last(self, metric: str) -> Any:
        """A metric's newest value, or an error that lists what there is. NaN if a probe did not return it this time.

        In a sweep, those of all lanes.
        """
        column = self.column(metric)
        return self._newest(column) if np.size(column) else np.nan

    def newest(self) -> dict[str, Any]:
        """The newest value of every column and of every probe with one number, by name: what a tracker logs."""
        probed = {name: np.atleast_1d(value) for name, value in self.probes.items() if np.ndim(value) == 0}
        columns = numbers_in(probed | self.trace, 1 if self.lanes is None else 2)
        return {name: self._newest(column) for name, column in columns.items()}

    def _newest(self, column: Any) -> Any:
        return float(column[-1]) if self.lanes is None else column[:, -1]

    def column(self, metric: str) -> Any:
        """A metric's values since the last event, at the steps `steps_of(metric)`.

        The trace has one for every step. A probe has one, or none if it did not return the metric this time. A name
        that both have is the trace's.
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
        if self.probed is not None and (name in self.probed or not self.probed):
            return np.empty(0)  # not this time
        known = sorted({*self.trace, *(self.probed or ())})
        where = "the trace has" if self.probed is None else "the trace and the probes have"
        raise KeyError(f"{where} no {shown(metric)}: choose from {listed(known)}")

    def steps_of(self, metric: str) -> Any:
        """After which steps, counted from 1, `column(metric)` has a value."""
        count = np.shape(self.column(metric))[0 if self.lanes is None else 1]
        return np.arange(self.step - count, self.step) + 1


@dataclass(frozen=True)
class Stop:
    """Asks the run to end, at `step` if that was passed already and the run can go back, else where it is."""

    reason: str
    code: Code = Code.STOPPED
    step: int | None = None

    def __post_init__(self) -> None:
        check_kind(self.reason, str, "reason", "a sentence", "say why the run ends")
        check_kind(self.code, Code, "code", "a bl.Code", "pass e.g. bl.Code.STOPPED")
        if self.step is not None:
            check_count(self.step, "step", least=0, most=MANY)


@runtime_checkable
class Hook(Protocol):
    """Called after every chunk. It may also have `begin(event)`, called before the first, and `end(result)`, after all.

    Where a run is broken off without a result, `close()` is called instead of `end`, if there is one.

    Probes are called before all hooks, so that every hook finds what they returned in `event.probes`, whatever the
    order of the list. If a hook that decides stops the run at an earlier step, probes are called again there.

    It may have these attributes, in a run and in a sweep alike:

    * `decides`: true for a hook that is called before the others. If it stops the run at an earlier step, they see the
      run end there.
    * `last`: true for a hook that is called after all others.
    * `stride`: chunks end at the multiples of this number of steps.
    * `note`: a sentence that is added to the status at the end, in a sweep to the status of every lane.
    * `once`: true for a hook that, of several processes of one run, is called in the first only.
    * `of_one_run`: true for a hook that a sweep refuses.
    * `reads_info`: false for a hook that never looks at the two trees of `event.info`, which are as large as x and y.
      For states beyond 1 MiB they are only computed where a hook may look, by another program, whose results may
      differ by rounding. A sweep has no info.
    * `get_state()` and `set_state(state)`: they save and restore what the hook remembers, in numbers, words, arrays and
      containers of them. A checkpoint keeps that; a sweep has none.
    """

    def __call__(self, event: Event) -> Stop | None: ...


@contextmanager
def closing(hooks: list[Any]) -> Iterator[None]:
    """What is broken off inside has no result: hooks that hold something, such as the terminal, let go of it."""
    try:
        yield
    except BaseException:
        for hook in hooks:
            with suppress(Exception):
                getattr(hook, "close", lambda: None)()
        raise


HookLike = Hook | Callable[[Event], Any]


def check_hooks(hooks: Any) -> None:
    fine = lambda hook: callable(hook) and not isinstance(hook, type)
    single = isinstance(hooks, str | bytes) or hasattr(hooks, "_fields")
    if single or not isinstance(hooks, Sequence) or not all(map(fine, hooks)):
        raise TypeError(
            f"hooks must be a list of functions of an event, not {shown(hooks)}: pass e.g. [bl.hooks.Best()]"
        )
    for hook in hooks:
        if (stride := getattr(hook, "stride", None)) is not None:
            check_count(stride, f"the stride of {type(hook).__name__}")
