"""How hooks are called, by a run and by a sweep alike: in which order, when, and what their answers mean."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bilevel.loop.hooks.base import Event, Hook, Stop

DECIDES, SEES, LAST = RANKS = range(3)  # the order in which hooks are called


def rank(hook: Hook) -> int:
    return DECIDES if hook.decides else LAST if hook.last else SEES


def in_order(hooks: Sequence[Hook], leads: bool = True) -> list[Hook]:
    """Those that this process calls, in the order in which they hear of the beginning and of the end."""
    here = [hook for hook in hooks if leads or not hook.once]
    return sorted(here, key=lambda hook: rank(hook) == LAST)


def of_rank(hooks: Sequence[Hook], wanted: int) -> list[Hook]:
    return [hook for hook in hooks if rank(hook) == wanted]


def steps_to_next_mark(hooks: Sequence[Hook], step: int, left: int) -> int:
    """Steps until a hook wants to see the run, at the multiples of its stride; or until the end."""
    strides = [stride for hook in hooks if (stride := hook.stride)]
    return min([left, *(stride - step % stride for stride in strides)])


class Answer(NamedTuple):
    """What a hook had to say to an event."""

    stop: Stop | None = None
    raised: BaseException | None = None


def ask(hook: Callable[..., Any], event: Event) -> Stop | None:
    """Return the stop that the hook asks for, if it does."""
    said = hook(event)
    if not isinstance(said, Stop):
        return None
    if not isinstance(said.step, int | None):
        raise TypeError(f"a Stop's step must be a whole number or None, not {said.step!r}")
    return said


def answer(hook: Callable[..., Any], event: Event) -> Answer:
    """Return the hook's answer, also if it raises: the others must see the event too."""
    try:
        return Answer(ask(hook, event))
    except (Exception, KeyboardInterrupt) as error:
        return Answer(raised=error)


def earliest(stops: Sequence[Stop], step: int) -> Stop:
    """The first to end the run, which is at `step`; of several at the same step, the first in order."""
    return min(stops, key=lambda stop: step if stop.step is None else stop.step)


def gone_on(step: int) -> str:
    """A note for a run that cannot go back to the step that was asked for."""
    return f" (The run had gone on to step {step}, and kept nothing to go back to.)"


def notes(hooks: Sequence[Hook]) -> str:
    """What they have to say about the end."""
    return "".join(f" {note}" for hook in hooks if (note := hook.note.strip()))
