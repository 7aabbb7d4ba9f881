"""The hooks of a run: told what happens, in their order, and asked whether it is to end."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakMethod

from bilevel.loop.course import Course
from bilevel.loop.hooks import Diagnose, Event, Probe, Stop
from bilevel.loop.hooks.base import closing
from bilevel.loop.result import Result
from bilevel.loop.status import Code, Status, interrupted
from bilevel.loop.told import Diagnosis
from bilevel.loop.trace import Columns
from bilevel.solvers.base import Info


class Audience:
    """`event()(info, rows)` is what there is to tell where the run stands.

    A weak reference to it: in a circle, a run's arrays would outlive its result until the garbage collector comes.
    """

    def __init__(
        self, hooks: list[Any], course: Course, event: "WeakMethod[Callable[[Info | None, Columns], Event]]"
    ):
        here = [hook for hook in hooks if course.team.leads or not getattr(hook, "once", False)]
        self.hooks = sorted(here, key=lambda hook: _rank(hook) == 2)
        self._course, self._method = course, event
        self._begun: list[Any] = []

    def _event(self, info: Info | None, rows: Columns) -> Event:
        event = self._method()
        assert event is not None, "the session is over"
        return event(info, rows)

    @property
    def reads_info(self) -> bool:
        """Whether anyone may look at a step's gradients."""
        return any(getattr(hook, "reads_info", True) for hook in self.hooks)

    @property
    def probes(self) -> list[Probe]:
        return [hook for hook in self.hooks if isinstance(hook, Probe)]

    @property
    def diagnosis(self) -> Diagnosis | None:
        return next((hook.diagnosis for hook in self._begun if isinstance(hook, Diagnose)), None)

    def begin(self) -> None:
        for hook in self.hooks:
            self._begun.append(hook)
            self._call(getattr(hook, "begin", _nothing), self._event(None, {}))

    def end(self, result: Result) -> None:
        """For all that were told of the beginning."""
        course = self._course
        for hook in self._begun:
            try:
                if isinstance(hook, Diagnose) and result.status.code is Code.DIVERGED:
                    hook.broke(course.cause.sentence, course.cause.levels if course.bad_data is None else ())
                getattr(hook, "end", _nothing)(result)
            except Exception as error:
                self._course.failure = self._course.failure or ("a hook", error)

    def closing(self) -> AbstractContextManager[None]:
        """For those that were told of the beginning."""
        return closing(self._begun)

    def leave(self) -> None:
        """The run is over. A hook that keeps an event would keep the run, which keeps the hook."""
        self.hooks, self._begun = [], []

    def notes(self) -> str:
        """What they have to say about the end."""
        return "".join(note for hook in self._begun if isinstance(note := getattr(hook, "note", ""), str))

    def remember(self, result: Result) -> None:
        """Those with a memory are told of the end of a run that needed no more steps."""
        for hook in self.hooks:
            if callable(getattr(hook, "set_state", None)):
                self._begun.append(hook)
                getattr(hook, "begin", _nothing)(self._event(None, {}))
                getattr(hook, "end", _nothing)(result)

    def steps_to_next_mark(self, left: int) -> int:
        """Steps until a hook wants to see the run, at the multiples of its stride; or until the end."""
        strides = [stride for hook in self.hooks if (stride := getattr(hook, "stride", None))]
        return min([left, *(stride - self._course.step % stride for stride in strides)])

    def forget(self, step: int) -> None:
        """What was seen of the steps after this one, from which the run went back."""
        for hook in self.hooks:
            if isinstance(hook, Probe | Diagnose):
                hook.forget(step)

    def tell(self, info: Info | None, start: int) -> None:
        """Hooks that decide see the event first; if one stops the run at an earlier step, others see it end there."""
        course = self._course
        for rank in range(3):
            group = [hook for hook in self.hooks if _rank(hook) == rank]
            if course.step == start or not (group or course.team.several):
                continue
            event = self._event(info, course.log.rows(start))
            stops = [stop for hook in group if isinstance(stop := self._call(hook, event), Stop)]
            if course.team.several:  # a process that stopped alone would leave the others waiting
                told = course.team.all(
                    [[stop.reason[:300], stop.code.value, stop.step] for stop in stops[:8]]
                )
                stops = [Stop(reason, Code(code), step) for each in told for reason, code, step in each]
            # What a deciding hook saw before the run broke comes first, whatever the chunks.
            broke = course.status is not None and course.status.code is Code.DIVERGED
            if stops and (course.status is None or (broke and rank == 0)):
                first = min(stops, key=lambda stop: course.step if stop.step is None else stop.step)
                info = self._stop(first) or info

    def _stop(self, stop: Stop) -> Info | None:
        """Ends the run at the step that was asked for, if it can go back there; returns the Info there."""
        course, seen, reason = self._course, None, stop.reason
        passed = stop.step is not None and stop.step < course.step
        if stop.step is not None and passed and course.kept.possible and course.kept_step <= stop.step:
            run, seen = course.again(course.kept.run(), course.kept_step, stop.step)
            course.back_to(stop.step, run)
        elif passed:
            reason += f" (The run had gone on to step {course.step}, and kept nothing to go back to.)"
        course.status = Status(stop.code, reason)
        return seen

    def _call(self, hook: Callable[..., Any], event: Event) -> Any:
        """What the hook says; one that raises ends the run once the others have seen the event too."""
        course = self._course
        try:
            said = hook(event)
            if isinstance(said, Stop) and not isinstance(said.step, int | None):
                raise TypeError(f"a Stop's step must be a whole number or None, not {said.step!r}")
            return said
        except Exception as error:
            course.failure = course.failure or ("a hook", error)
            return None
        except KeyboardInterrupt:  # raised by the hook, or a second Ctrl-C while in it: the steps are whole
            if course.team.several:
                course.interrupts.heard = True  # all will hear of it
            else:
                course.status = course.status or interrupted(course.step)
            return None


def _rank(hook: Any) -> int:
    """Hooks that decide come first, those that must see what all others have done come last."""
    return 0 if getattr(hook, "decides", False) else 2 if getattr(hook, "last", False) is True else 1


def _nothing(*_: Any) -> None:
    return None
