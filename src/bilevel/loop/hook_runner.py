"""Stages that call the hooks of a run. A hook sees the run and may stop it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

from bilevel.loop.driver import DECIDES, LAST, SEES, back_to, has_diverged, recovered
from bilevel.loop.errors import caught
from bilevel.loop.hooks.base import Hook
from bilevel.loop.hooks.event import Event, Stop
from bilevel.loop.plan import Plan, Progress
from bilevel.loop.policies import NoHooks, lost
from bilevel.loop.result import Result
from bilevel.loop.status import Code, Status, interrupted
from bilevel.loop.trace import Columns
from bilevel.words import shown

RANKS = DECIDES, SEES, LAST


class HookRunner(NoHooks):
    """Hooks of one run, or of a sweep."""

    def __init__(self, hooks: Sequence[Hook], leads: bool, probed: frozenset[str]):
        here = [hook for hook in hooks if leads or not hook.once]  # the hooks in this process
        self.hooks = sorted(here, key=lambda hook: rank(hook) == LAST)
        self._probed = set(probed)  # the names that probes have returned
        self._begun: list[Hook] = []

    @property
    def reads_info(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return whether a hook may read the gradients of a step."""
        return any(hook.reads_info for hook in self.hooks)

    @property
    def _probes(self) -> list[Hook]:
        return [hook for hook in self.hooks if hook.measures]

    @property
    def diagnosis(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return next((found for hook in self._begun if (found := hook.diagnosis) is not None), None)

    def probe_rows(self) -> list[Any]:
        """Return the rows that the probes hold."""
        return [row for probe in self._probes for row in probe.rows]

    def take_probe_rows(self) -> list[Any]:
        """Take these rows from the probes."""
        return [row for probe in self._probes for row in probe.take_rows()]

    def begin(self, plan: Plan, progress: Progress) -> Progress:
        for hook in self.hooks:
            self._begun.append(hook)
            progress, _ = self._call(hook.begin, plan, progress, self._event(plan, progress, {}))
        return self._call(self._check_names, plan, progress, self._event(plan, progress, {}))[0]

    def _check_names(self, event: Event) -> None:
        """Raise if two hooks measure numbers of the same name."""
        names = sorted(name for probe in self._probes for name in probe.names)
        if twice := [name for name, other in pairwise(names) if name == other]:
            raise ValueError(
                f'two hooks measure {shown(twice[0])}: pass name= to bl.hooks.Evaluate, such as name="train"'
            )

    def end(self, plan: Plan, progress: Progress, result: Any) -> Progress:
        """Call `end` of every hook that was called at the beginning."""
        failure, diverged = progress.failure, has_diverged(progress) and progress.failure is None
        for hook in self._begun:
            if diverged:
                levels = progress.cause.levels if progress.bad_data is None else ()
                _, raised = caught("a hook", hook.broke, progress.cause.sentence, levels)
                failure = failure or raised
                if raised is not None:
                    continue
            _, raised = caught("a hook", hook.end, result)
            failure = failure or raised
        return replace(progress, failure=failure)

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Close the hooks that have begun if the block raises."""
        try:
            yield
        except BaseException:
            for hook in self._begun:
                with suppress(Exception):
                    hook.close()
            raise

    def leave(self) -> None:
        """Drop the hooks: one that keeps an event would keep the run, which keeps the hook."""
        self.hooks, self._begun = [], []

    def notes(self) -> str:
        """Return the hooks' sentences for the status."""
        return "".join(f" {note}" for hook in self._begun if (note := hook.note.strip()))

    def remember(self, plan: Plan, progress: Progress, result: Result) -> None:
        """Call the hooks that have a state at the end of a run that needs no more steps."""
        for hook in self.hooks:
            if hook.remembers:
                self._begun.append(hook)
                hook.begin(self._event(plan, progress, {}))
                hook.end(result)

    def steps_to_next_mark(self, step: int, left: int) -> int:
        """Return the steps until a multiple of a hook's stride, or until the end."""
        strides = [stride for hook in self.hooks if (stride := hook.stride)]
        return min([left, *(stride - step % stride for stride in strides)])

    def forget(self, step: int) -> None:
        """Make the hooks forget the steps after this one, to which the run returned."""
        for hook in self.hooks:
            hook.forget(step)

    def tell(self, plan: Plan, progress: Progress, start: int, ranks: Sequence[int] = RANKS) -> Progress:
        """Call the probes, then the hooks. If a hook stops the run earlier, the later ones see that end."""
        if DECIDES in ranks:
            progress = self._call_probes(plan, progress, start)
        for each in ranks:
            group = [hook for hook in self.hooks if rank(hook) == each and not hook.measures]
            if progress.step <= start or not (group or plan.team.several):
                continue
            event, stops = self._event(plan, progress, plan.log.rows(start)), []
            for hook in group:
                progress, stop = self._call(hook, plan, progress, event)
                stops += [] if stop is None else [stop]
            if plan.team.several:  # if only one process stopped, the others would wait for it
                told = plan.team.all([[stop.reason[:300], stop.code.value, stop.step] for stop in stops[:8]])
                stops = [Stop(reason, Code(code), step) for each in told for reason, code, step in each]
            # A stop of a deciding hook before the run broke has priority, for any chunks.
            if stops and (progress.status is None or (has_diverged(progress) and each == DECIDES)):
                seen = progress.step
                # Of equal steps, the first hook's stop counts. No step means the present one.
                first = min(stops, key=lambda stop: seen if stop.step is None else stop.step)
                progress = _stopped(plan, progress, first)
                if progress.step < seen:  # the probes' values are from a later state
                    for probe in self._probes:
                        probe.forget(progress.step)
                    progress = self._call_probes(plan, progress, start)
        return progress

    def _event(self, plan: Plan, progress: Progress, rows: Columns) -> Event:
        probes = self._probes
        values = {name: value for probe in probes for name, value in probe.values(progress.step).items()}
        self._probed.update(*(probe.names for probe in probes))
        event = replace(plan.event(plan, progress, rows), probes=values)
        return replace(
            event,
            probed=frozenset(self._probed) if probes else None,
            awaited=not all(probe.names for probe in probes),
        )

    def _call_probes(self, plan: Plan, progress: Progress, start: int) -> Progress:
        if self._probes and progress.step > start:
            event = self._event(plan, progress, plan.log.rows(start))
            for probe in self._probes:
                progress, _ = self._call(probe, plan, progress, event)
        return progress

    def _call(
        self, hook: Callable[..., Any], plan: Plan, progress: Progress, event: Event
    ) -> tuple[Progress, Stop | None]:
        """Call a hook. If it raises, the run ends after the others have seen the event too."""
        stop, failure = caught("a hook", _asked, hook, event, progress.run, interruptible=True)
        if failure is None:
            return progress, stop
        if failure.is_interrupt:  # the steps are complete
            failure.forget()
            if plan.team.several:
                plan.interrupts.hear()  # all processes will receive it
                return progress, None
            plan.interrupts.ask()
            return replace(progress, status=progress.status or interrupted(progress.step)), None
        progress = recovered(plan, progress) if lost(progress.run) else progress
        return replace(progress, failure=progress.failure or failure), None


def _asked(hook: Callable[..., Any], event: Event, run: Any) -> Stop | None:
    """Return the stop that the hook asks for, if any. Raise if the hook deleted arrays of the run."""
    said = hook(event)
    if isinstance(said, Stop) and not isinstance(said.step, int | None):
        raise TypeError(f"a Stop's step must be a whole number or None, not {said.step!r}")
    if lost(run):
        raise RuntimeError(
            "it deleted or donated arrays of the run: copy them first, as with jnp.copy(event.state.x)"
        )
    return said if isinstance(said, Stop) else None


def _stopped(plan: Plan, progress: Progress, stop: Stop) -> Progress:
    """End the run at the requested step if it can return there."""
    reason, kept = stop.reason, plan.kept_step(progress)
    to = progress.step if stop.step is None else stop.step
    if to < progress.step and plan.snapshots.possible and kept <= to:
        run, info = plan.again(plan, progress, plan.snapshots.run(), kept, to)
        progress = back_to(plan, progress, to, run)
        progress = replace(progress, info=info or progress.info)
    elif to < progress.step:
        reason += f" (The run had gone on to step {progress.step}, and kept nothing to go back to.)"
    return replace(progress, status=Status(stop.code, reason))


def rank(hook: Hook) -> int:
    return DECIDES if hook.decides else LAST if hook.last else SEES
