"""The hooks of a run: told what happens, in their order, and asked whether it is to end."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from weakref import WeakMethod

from bilevel.loop.course import Course
from bilevel.loop.hooks.base import Event, Hook, Stop, closing
from bilevel.loop.hooks.calls import (
    DECIDES,
    RANKS,
    ask,
    earliest,
    gone_on,
    in_order,
    notes,
    of_rank,
    steps_to_next_mark,
)
from bilevel.loop.recovery.snapshots import lost
from bilevel.loop.result import Result
from bilevel.loop.status import Code, Status, interrupted
from bilevel.loop.trace import Columns
from bilevel.solvers.base import Info


class Audience:
    """`event()(info, rows)` is what there is to tell where the run stands.

    A weak reference to it: in a circle, a run's arrays would outlive its result until the garbage collector comes.
    """

    def __init__(
        self, hooks: list[Hook], course: Course, event: "WeakMethod[Callable[[Info | None, Columns], Event]]"
    ):
        self.hooks = in_order(hooks, course.team.leads)
        self._probed = set(course.log.probed)  # the names that probes have returned
        self._course, self._method = course, event
        self._begun: list[Hook] = []

    def _event(self, info: Info | None, rows: Columns) -> Event:
        event = self._method()
        assert event is not None, "the session is over"
        probes, step = self.probes, self._course.step
        values = {name: value for probe in probes for name, value in probe.values(step).items()}
        self._probed |= values.keys()
        return replace(event(info, rows), probes=values, probed=frozenset(self._probed) if probes else None)

    @property
    def reads_info(self) -> bool:
        """Whether anyone may look at a step's gradients."""
        return any(hook.reads_info for hook in self.hooks)

    @property
    def probes(self) -> list[Hook]:
        return [hook for hook in self.hooks if hook.measures]

    @property
    def diagnosis(self) -> Any:
        return next((found for hook in self._begun if (found := hook.diagnosis) is not None), None)

    def begin(self) -> None:
        for hook in self.hooks:
            self._begun.append(hook)
            self._call(hook.begin, self._event(None, {}))

    def end(self, result: Result) -> None:
        """For all that were told of the beginning."""
        course = self._course
        for hook in self._begun:
            try:
                if result.status.code is Code.DIVERGED:
                    hook.broke(course.cause.sentence, course.cause.levels if course.bad_data is None else ())
                hook.end(result)
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
        return notes(self._begun)

    def remember(self, result: Result) -> None:
        """Those with a memory are told of the end of a run that needed no more steps."""
        for hook in self.hooks:
            if hook.remembers:
                self._begun.append(hook)
                hook.begin(self._event(None, {}))
                hook.end(result)

    def steps_to_next_mark(self, left: int) -> int:
        return steps_to_next_mark(self.hooks, self._course.step, left)

    def forget(self, step: int) -> None:
        """What was seen of the steps after this one, from which the run went back."""
        for hook in self.hooks:
            hook.forget(step)

    def tell(self, info: Info | None, start: int, ranks: Sequence[int] = RANKS) -> Info | None:
        """Call probes, then hooks that decide: if one stops the run at an earlier step, the others see it end there.

        Returns the Info of the step at which the run is then.
        """
        course = self._course
        if DECIDES in ranks:
            self._call_probes(info, start)
        for rank in ranks:
            group = [hook for hook in of_rank(self.hooks, rank) if not hook.measures]
            if course.step <= start or not (group or course.team.several):
                continue
            event = self._event(info, course.log.rows(start))
            stops = [stop for hook in group if (stop := self._call(hook, event)) is not None]
            if course.team.several:  # a process that stopped alone would leave the others waiting
                told = course.team.all(
                    [[stop.reason[:300], stop.code.value, stop.step] for stop in stops[:8]]
                )
                stops = [Stop(reason, Code(code), step) for each in told for reason, code, step in each]
            # What a deciding hook saw before the run broke comes first, whatever the chunks.
            broke = course.status is not None and course.status.code is Code.DIVERGED
            if stops and (course.status is None or (broke and rank == 0)):
                seen = course.step
                info = self._stop(earliest(stops, course.step)) or info
                if course.step < seen:  # what the probes returned was of a later state
                    for probe in self.probes:
                        probe.forget(course.step)
                    self._call_probes(info, start)
        return info

    def _call_probes(self, info: Info | None, start: int) -> None:
        if self.probes and self._course.step > start:
            event = self._event(info, self._course.log.rows(start))
            for probe in self.probes:
                self._call(probe, event)

    def _stop(self, stop: Stop) -> Info | None:
        """Ends the run at the step that was asked for, if it can go back there; returns the Info there."""
        course, seen, reason = self._course, None, stop.reason
        passed = stop.step is not None and stop.step < course.step
        if stop.step is not None and passed and course.kept.possible and course.kept_step <= stop.step:
            run, seen = course.again(course.kept.run(), course.kept_step, stop.step)
            course.back_to(stop.step, run)
        elif passed:
            reason += gone_on(course.step)
        course.status = Status(stop.code, reason)
        return seen

    def _call(self, hook: Callable[..., Any], event: Event) -> Stop | None:
        """The stop that the hook asks for; one that raises ends the run once the others have seen the event too."""
        course, stop = self._course, None
        try:
            stop = ask(hook, event)
            if lost(course.run):
                raise RuntimeError(
                    "it deleted or donated arrays of the run: copy them first, as with jnp.copy(event.state.x)"
                )
        except Exception as error:
            course.failure = course.failure or ("a hook", error)
            if lost(course.run):
                course.recover()
        except KeyboardInterrupt:  # the steps are whole
            if course.team.several:
                course.interrupts.heard = True  # all will hear of it
            else:
                course.interrupts.asked, course.status = True, course.status or interrupted(course.step)
        return stop
