"""What a hook sees, and how it asks a run to stop."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

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


class Hook:
    """Base class of hooks: override what is needed; every other method does nothing.

        class Print(bl.hooks.Hook):
            stride = 100

            def __call__(self, event):
                print(event.step, event.last("outer_value"))

    A run calls `begin(event)` before the first chunk, the hook itself after every chunk, and `end(result)` at the end.
    A plain function of an event is a hook too. The attributes mean the same in a run and in a sweep.

    Probes are called before all other hooks, so that every hook finds their numbers in `event.probes`, whatever the
    order of the list. If a hook that decides stops the run at an earlier step, probes are called again there.
    """

    decides: bool = (
        False  # called before the others; if it stops the run at an earlier step, they see that end
    )
    last: bool = False  # called after all others
    measures: bool = False  # called first, and `values` are shown to the others, as those of a probe
    stride: int | None = None  # chunks end at the multiples of this number of steps
    note: str = ""  # a sentence for the status at the end, in a sweep for the status of every lane
    once: bool = False  # of several processes of one run, only the first calls it
    of_one_run: bool = False  # a sweep refuses it
    saves: bool = False  # writes checkpoints of the run
    steers: bool = True  # may decide when the run stops, so a checkpoint compares it
    watches_probes: bool = False  # decides by the numbers of probes, which a checkpoint then compares too
    # False: it never reads the two trees of `event.info`, which are as large as x and y. For states beyond 1 MiB they
    # are only computed where a hook may read them, by another program, whose results may differ by rounding.
    reads_info: bool = True
    asks: str | None = (
        None  # its settings in words, if they decide when the run stops; a checkpoint compares them
    )
    diagnosis: Any = None  # for `result.diagnosis`
    rows: Sequence[
        tuple[int, dict[str, Any]]
    ] = ()  # of a hook that measures: (step, numbers), for `result.probes`

    def begin(self, event: Event) -> None:
        """Prepare for the run; called before the first chunk."""

    def __call__(self, event: Event) -> Stop | None:
        """Look at the run after a chunk; return a `Stop` to end it."""

    def end(self, result: Any) -> None:
        """Finish; called with the `Result` or the `Sweep`."""

    def close(self) -> None:
        """Release what the hook holds; called instead of `end` where a run is broken off without a result."""

    def forget(self, step: int) -> None:
        """Drop what was seen after this step; called when the run went back to it."""

    def get_state(self) -> Any:
        """Return what a checkpoint saves: numbers, words, arrays and containers of them. A sweep has none."""

    def set_state(self, state: Any) -> None:
        """Restore what `get_state` returned."""

    def values(self, step: int) -> dict[str, Any]:
        """Return the numbers that other hooks find in `event.probes` at this step; for hooks with `measures`."""
        return {}

    def take_rows(self) -> Sequence[tuple[int, dict[str, Any]]]:
        """Return `rows` and drop them; called at the end."""
        return ()

    def broke(self, cause: str, levels: tuple[str, ...]) -> None:
        """Receive why the run diverged, and the levels whose step sizes caused it; called before `end`."""

    def decider(self, watched: bool) -> "Hook | None":
        """Return what a checkpoint compares of it; `watched` tells whether another hook watches probes."""
        return self if self.steers else None

    @property
    def remembers(self) -> bool:
        """Whether it has a state to save."""
        return type(self).get_state is not Hook.get_state

    @property
    def subject(self) -> Any:
        """The object that the user passed."""
        return self


class FunctionHook(Hook):
    """A plain function of an event."""

    def __init__(self, function: Callable[[Event], Any]):
        self._subject = function

    def __call__(self, event: Event) -> Any:
        return self._subject(event)

    @property
    def subject(self) -> Any:
        return self._subject


NAMES = (
    "begin", "end", "close", "note", "stride", "decides", "last", "once", "of_one_run", "reads_info", "get_state",
    "set_state", "asks",
)  # fmt: skip


class UntypedHook(FunctionHook):
    """An object with the attributes of a hook that is no `Hook`; supported for one release."""

    def __getattribute__(self, name: str) -> Any:
        subject = object.__getattribute__(self, "_subject")
        here = name in NAMES and hasattr(subject, name)
        return getattr(subject, name) if here else object.__getattribute__(self, name)

    @property
    def remembers(self) -> bool:
        return all(hasattr(self._subject, name) for name in ("get_state", "set_state"))


@contextmanager
def closing(hooks: list[Hook]) -> Iterator[None]:
    """Close the hooks if the block raises."""
    try:
        yield
    except BaseException:
        for hook in hooks:
            with suppress(Exception):
                hook.close()
        raise


HookLike = Hook | Callable[[Event], Any]


def as_hooks(hooks: Any) -> list[Hook]:
    """Return the hooks, functions wrapped; raise if something is no hook."""
    fine = lambda hook: callable(hook) and not isinstance(hook, type)
    single = isinstance(hooks, str | bytes) or hasattr(hooks, "_fields")
    if single or not isinstance(hooks, Sequence) or not all(map(fine, hooks)):
        raise TypeError(
            f"hooks must be a list of functions of an event, not {shown(hooks)}: pass e.g. [bl.hooks.Best()]"
        )
    wrapped = [hook if isinstance(hook, Hook) else _wrapped(hook) for hook in hooks]
    for hook in wrapped:
        if hook.stride is not None:
            check_count(hook.stride, f"the stride of {type(hook.subject).__name__}")
    return wrapped


def _wrapped(hook: Any) -> Hook:
    found = [name for name in NAMES if hasattr(hook, name)]
    if not found:
        return FunctionHook(hook)
    warnings.warn(
        f"{type(hook).__name__} has the attribute {found[0]!r} of a hook but is no bl.hooks.Hook: derive its class "
        "from bl.hooks.Hook; the next release will read no attributes of other objects",
        DeprecationWarning,
        stacklevel=4,
    )
    return UntypedHook(hook)
