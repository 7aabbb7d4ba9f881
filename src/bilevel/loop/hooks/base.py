"""What a hook sees, and how it asks a run to stop."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from bilevel.checks import MANY, check_count, check_kind
from bilevel.loop.columns import numbers_in
from bilevel.loop.state import RunState
from bilevel.loop.status import Code
from bilevel.loop.trace import rows_in
from bilevel.solvers.base import Info
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
    def first(self) -> int:
        """The number of the step that the first row of `trace` belongs to, counted from 0."""
        return self.step - (rows_in(self.trace) if self.trace else 0)

    def last(self, metric: str) -> float:
        """A metric's newest value, or an error that lists what there is."""
        return float(self.column(metric)[-1])

    def newest(self) -> dict[str, float]:
        """The newest value of every column with one number per step, by name: what a tracker of experiments logs."""
        return {name: float(column[-1]) for name, column in numbers_in(self.trace).items()}

    def column(self, metric: str) -> Any:
        if not isinstance(metric, str) or metric not in self.trace:
            raise KeyError(f"the trace has no {shown(metric)}: choose from {listed(sorted(self.trace))}")
        return self.trace[metric]


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

    A hook with an attribute `decides` that is true is called before the others, so that if it stops the run at an
    earlier step, they see the run end there; one with an attribute `last` that is true is called after all others. One
    with an attribute `of_one_run` that is true is refused in a sweep; of several processes, one with an attribute
    `once` that is true is called in the first alone. One with an attribute `reads_info` that is false
    never looks at the two trees of `event.info`, which are as large as x and y: for states beyond 1 MiB they are only
    computed where a hook may look, by another program, whose results may differ by rounding. Chunks end at the
    multiples of a hook's `stride`, if it has one; what it says in `note` at the end is added to the status.
    `get_state()` and `set_state(state)` save and restore what it remembers, in numbers, words, arrays and containers of
    them: a checkpoint keeps that.
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
