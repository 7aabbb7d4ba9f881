"""Base class of hooks."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from bilevel.checks import check_count
from bilevel.loop.hooks.event import Event, Stop
from bilevel.words import shown


class Hook:
    """Base class of hooks. Override the methods you need; the others do nothing.

        class Print(bl.hooks.Hook):
            stride = 100

            def __call__(self, event):
                print(event.step, event.last("outer_value"))

    A run calls `begin(event)` before the first chunk, the hook itself after every chunk, and `end(result)` at
    the end. A plain function of an event is a hook too. The attributes have the same meaning in a run and in
    a sweep.

    Probes are called before all other hooks, so every hook finds their numbers in `event.probes`, for any
    order of the list. If a deciding hook stops the run at an earlier step, probes are called again there.
    """

    # Called before the others: if it stops the run at an earlier step, they see that end.
    decides: bool = False
    last: bool = False  # called after all others
    measures: bool = False  # called first; the others see its `values`, as for a probe
    stride: int | None = None  # chunks end at the multiples of this number of steps
    note: str = ""  # a sentence for the final status; in a sweep, for the status of every lane
    once: bool = False  # if several processes share a run, only the first calls it
    of_one_run: bool = False  # a sweep refuses it
    saves: bool = False  # writes checkpoints of the run
    steers: bool = True  # may decide when the run stops, so a checkpoint compares it
    watches_probes: bool = False  # decides by the numbers of probes, which a checkpoint then compares too
    # False: it never reads the two trees of `event.info`, which are as large as x and y. For states above 1
    # MiB another program, which may round differently, computes them, and only if a hook may read them.
    reads_info: bool = True
    # Its settings in words, if they decide when the run stops; a checkpoint compares them.
    asks: str | None = None
    diagnosis: Any = None  # for `result.diagnosis`
    rows: Any = ()  # of a hook that measures: (step, numbers), for `result.probes`
    names: frozenset[str] = frozenset()  # of these numbers, as far as they are known

    def begin(self, event: Event) -> None:
        """Prepare for the run; called before the first chunk."""

    def __call__(self, event: Event) -> Stop | None:
        """Look at the run after a chunk; return a `Stop` to end it."""

    def end(self, result: Any) -> None:
        """Finish; called with the `Result` or the `Sweep`."""

    def close(self) -> None:
        """Release files and screens; called instead of `end` if a run ends without a result."""

    def forget(self, step: int) -> None:
        """Drop the observations after this step; called when the run returns to it."""

    def get_state(self) -> Any:
        """Return the state for a checkpoint: numbers, words, arrays and containers of them."""

    def set_state(self, state: Any) -> None:
        """Restore a state that `get_state` returned."""

    def values(self, step: int) -> dict[str, Any]:
        """Return numbers for `event.probes` at this step, for hooks with `measures`."""
        return {}

    def take_rows(self) -> Sequence[tuple[int, dict[str, Any]]]:
        """Return `rows` and drop them; called at the end."""
        return ()

    def broke(self, cause: str, levels: tuple[str, ...]) -> None:
        """Receive the cause of a divergence and the levels of its step sizes; called before `end`."""

    def decider(self, watched: bool) -> "Hook | None":
        """Return the object that a checkpoint compares. `watched`: another hook watches probes."""
        return self if self.steers else None

    @property
    def remembers(self) -> bool:
        """Return whether it has a state to save."""
        return type(self).get_state is not Hook.get_state

    @property
    def subject(self) -> Any:
        """Return the object that the user passed."""
        return self


class FunctionHook(Hook):
    """Plain function of an event."""

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
    """Object with the attributes of a hook that is no `Hook`; supported for one release."""

    def __getattribute__(self, name: str) -> Any:
        subject = object.__getattribute__(self, "_subject")
        here = name in NAMES and hasattr(subject, name)
        return getattr(subject, name) if here else object.__getattribute__(self, name)

    @property
    def remembers(self) -> bool:
        return all(hasattr(self._subject, name) for name in ("get_state", "set_state"))


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
