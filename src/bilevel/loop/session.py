"""One call of `run`: the compiled loop in chunks, with hooks, a trace and outcomes around it."""

import time
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakMethod

import jax

from bilevel.arrays import as_arrays
from bilevel.checks import check_batch, signature, variables
from bilevel.loop.chunk_length import Pace
from bilevel.loop.chunks import take_chunk
from bilevel.loop.course import Course, Failed
from bilevel.loop.data.streams import FullBatch, Given, Minibatches, Stream
from bilevel.loop.devices.agreement import check_alike, have_data
from bilevel.loop.devices.mesh_spec import Sharded
from bilevel.loop.devices.offload import fetched
from bilevel.loop.devices.processes import PeersLost, Team, brief
from bilevel.loop.devices.state_sharding import Places, lay, lay_batch
from bilevel.loop.diagnose.divergence import why_risen
from bilevel.loop.diagnose.standstill import never_moved, standstill
from bilevel.loop.errors import RunError
from bilevel.loop.fingerprint import difference, fingerprint
from bilevel.loop.finite import NORM, Watch, bad_metric, blow_up, largest_measure
from bilevel.loop.hook_runner import Audience
from bilevel.loop.hooks.base import Event
from bilevel.loop.hooks.calls import DECIDES, LAST, SEES
from bilevel.loop.program import LONG_STEPS, SMALL, Fit, program_of
from bilevel.loop.recovery.halving import Guard
from bilevel.loop.recovery.rollback import judge
from bilevel.loop.recovery.snapshots import Kept, policy_for
from bilevel.loop.result import Result
from bilevel.loop.state import RunState
from bilevel.loop.status import Code, Status, completed, exhausted, failed, interrupted, under_way
from bilevel.loop.trace import Columns, rows_in
from bilevel.loop.warm_up import warm_up
from bilevel.solvers.base import Info, Solver
from bilevel.types import PyTree


class Session:
    """A run from its beginning to its end."""

    def __init__(
        self,
        solver: Solver,
        record,
        data,
        steps: int,
        resume,
        replay: str,
        every,
        hooks: list[Any],
        thin: int | None,
        halve: bool,
        prefetch: int | None = None,
        offload: bool = False,
        mesh: Sharded | None = None,
        team: Team | None = None,
    ):
        self.began = time.perf_counter()
        if resume is not None and not halve:  # the run would not go back
            resume = replace(resume, recovery=None)
        self.guard = Guard(solver, halve, every, resume)
        self.solver, self.replay, self.every, self.prefetch = solver, replay, every, prefetch
        team = team or Team()
        if resume is not None and resume.thin != thin:
            raise ValueError(
                f"the earlier run had thin={resume.thin}, this one has thin={thin}: pass the same, so that their "
                "traces can be joined"
            )
        self.record, self.offload, self.mesh = record, offload, mesh
        self._place = resume.recovery.place if resume is not None and resume.recovery is not None else None
        self._owed = 0  # batches of a loader, since that place
        if resume is not None and self._place is not None and self._place.mark is not None:
            self._owed = resume.feed.used - self._place.mark.used
            resume = replace(resume, feed=self._place.mark)
        self.course = Course(self.guard.solver, data, steps, resume, thin)
        self.course.team = self.course.interrupts.team = team
        self.audience = Audience(hooks, self.course, WeakMethod(self._event))
        self.suspect: tuple[str, int] | None = None  # the first metric that was not finite, and when
        self.largest = 0.0 if resume is None else largest_measure(resume.trace)  # measure of stationarity
        self._borrowed = resume is not None  # the state is the user's
        if resume is not None:
            run = _checked(resume, solver, self.course.source.stream)
            self._lie((run.x, run.y, run.model))
            self.course.run = run if self.course.places is None else self.course.places.put(run)

    def begin(self, x0: PyTree, y0: PyTree, seed: Any, model_state: PyTree) -> None:
        """From x0 and y0. Whatever does not fit is refused here, before any work is done."""
        course = self.course
        x, y = variables(x0, y0)
        model_state = as_arrays(model_state, "model_state")  # jit would refuse in its own words
        x, y, model_state = self._lie((x, y, model_state))
        stream = course.source.first()
        if stream is None:
            raise ValueError("data is a loader without a single batch: give one that is not used up")
        if not have_data(course) and course.failure is not None:
            raise course.failure[1]
        # Of a stream of the user's own, the start sees a batch.
        if isinstance(stream, FullBatch | Minibatches | Given):
            check_batch(self.solver.problem, stream.data)
        course.run = course.placed(course.program.start(course.leaves, x, y, stream, seed, model_state))

    def _lie(self, given: tuple[PyTree, PyTree, PyTree]) -> tuple[PyTree, PyTree, PyTree]:
        """x, y and the model state on the devices where they belong; data and program are made to fit."""
        course, mesh = self.course, self.mesh
        named = dict(zip(("x0", "y0", "model_state"), given, strict=True))
        check_alike(course.team, named | {"data": course.source.stream})
        given, stream = lay(given, course.source.stream, mesh)
        course.places = Places.of(*given)
        if course.places is not None and self.offload:
            raise ValueError(
                'offload="outer" is for one device, and x or y lie on several: leave it out, and let the mesh split x '
                "and with it the memory of its rule (bl.sharded)"
            )
        if course.places is not None:
            course.source.lie(None if mesh is None else partial(lay_batch, mesh), stream)
        x, _, model = given  # a meta-learner begins with a y of another shape than y0
        self._shapes = signature((x, model, stream))
        self._use(course.solver)
        return given

    def _use(self, solver: Solver) -> None:
        course = self.course
        course.solver = solver
        shapes = self._shapes
        course.program, course.leaves = program_of(solver, self.record, self.offload, course.places, shapes)

    def heed_term(self) -> None:
        """SIGTERM asks the run to end, as Ctrl-C does."""
        self.course.interrupts.heeds_term = True

    def go(self, warmup: int) -> Result:
        """To the end, whatever that is."""
        course, audience = self.course, self.audience
        taken = self._take_again()
        fit = self._fit()  # refuses a step that does not fit, before any work is done
        left = course.total - course.step + warmup
        ahead = course.source.asked_ahead(left, self.prefetch)
        with course.interrupts, ahead, audience.closing():
            try:
                course.watch = Watch(self.solver, course.run)
                size = fit.bytes if fit is not None else 0
                roomy = size <= SMALL and not self.guard.halve  # which keeps a good state anyway
                course.kept = Kept(policy_for(self.replay, size, self.guard.halve), roomy)
                course.kept.agreed = course.team.first
                course.long = size > LONG_STEPS
                course.tells = size <= SMALL or audience.reads_info
                if self._borrowed:  # an earlier result must outlive the run
                    course.run = course.lent(course.run)
                if self._place is not None:
                    course.kept.adopt(self._place.run, self._place.step, taken, course.run)
                    self._place = None
                if warmup:
                    warm_up(course, warmup)
                    while self._halved():
                        warm_up(course, warmup)
                        fit = self._fit() if course.status is None else fit
                audience.begin()
                if course.failure is not None:
                    raise Failed
                if course.status is None and fit is not None:
                    self._chunks(fit)
            except KeyboardInterrupt:
                course.team.lost = course.team.several  # they wait within a step, and hear nothing
                course.recover()
                if not course.whole:
                    raise
                course.status = interrupted(course.step)
            except Failed:
                pass
            except (PeersLost, jax.errors.JaxRuntimeError) as error:
                course.fail("the run", error)
                if not course.team.several:
                    raise
            result, well = self._result(), course.failure is None
            audience.end(result)
            if well and not course.team.lost:
                self._share_failure()
        if course.failure is not None:
            result = self._result()
            audience.leave()
            raise self._error(result, course.failure[1])
        status = result.status.with_note(audience.notes())
        result = replace(result, status=status, diagnosis=audience.diagnosis)
        audience.leave()
        return result

    def _error(self, result: Result, cause: BaseException) -> RunError:
        """The run forgets the cause, whose traceback knows the run."""
        error = RunError(result.status.message, result if self.course.whole else None)
        error.__cause__, self.course.failure = cause, None
        return error

    def ended(self, result: Result) -> Result:
        """A result that needs no more steps, if this is its run. Hooks that remember it are told of its end."""
        if self.course.source.stream is not None:
            self._fit()
        self.audience.remember(result)
        result = replace(result, diagnosis=self.audience.diagnosis)
        self.audience.leave()
        return result

    def so_far(self) -> Result:
        """The result as if the run ended here: what there is to save of a run that goes on.

        Its state is the run's own, which the next chunk may take away: copy what is to be kept.
        """
        return self._packed(under_way(self.course.step, self.course.total))

    def _fit(self) -> Fit | None:
        course = self.course
        if not have_data(course):
            if course.failure is not None:  # only when resuming: a new run has peeked already
                result = self._result()
                raise RunError(result.status.message, result) from course.failure[1]
            course.status = exhausted(course.step, course.total)
            return None
        left = course.total - course.step
        fit = course.program.fit(course.leaves, course.run, course.source.peek(), left)
        course.log.expect(fit.row)
        return fit

    def _take_again(self) -> list[Any]:
        """The batches between the place to go back to and where the run resumes."""
        taken = [] if self._place is None else list(self._place.taken)
        while self._owed and have_data(self.course):
            if (item := self.course.source.take()) is not None:
                taken.append(item[1])
            self._owed -= 1
        return taken

    def _halved(self) -> bool:
        """After a divergence: whether the run goes on from an earlier state, with smaller steps."""
        if not self.guard.goes_on(self.course):
            return False
        self._use(self.guard.solver)
        return True

    def _chunks(self, fit: Fit) -> None:
        course, pace = self.course, Pace(fit.seconds, self.every)
        while course.step < course.total and course.status is None:
            left = course.total - course.step
            by_clock = course.source.stream is not None or self.every is not None
            paced = pace.steps(left, course.step) if by_clock else left
            wanted = min(paced, fit.count, self.audience.steps_to_next_mark(left))
            if course.team.several:
                if not have_data(course):
                    if course.failure is not None:
                        raise Failed
                    ended = interrupted(course.step), exhausted(course.step, course.total)
                    course.status = ended[0] if course.interrupts.asked else ended[1]
                    break
                # The first process has the clock; and every step on loaders waits for all of them.
                wanted = course.team.first(wanted if course.source.stream is not None else 1)
            began, start, info = time.perf_counter(), course.step, None  # no earlier Info next to this one
            self.guard.keep(course)
            course.log.settle(course.kept_step)
            rows, done, info, seen = take_chunk(course, fit, wanted, self.every)
            pace.took(done, time.perf_counter() - began, compiled=not fit.compiled)
            fit.compiled, fit.seconds = True, pace.seconds_per_step
            if done:
                course.log.add(rows, start)
                course.step = start + done
                self._note_metrics(rows)
                info = judge(course, rows, seen) or info
                self.guard.saw(course.log.rows(start))
                info = self.audience.tell(info, start, [DECIDES])
                if self.guard.halve and course.status is not None:
                    self._share_failure()  # before one process goes back and another does not
                if course.failure is None and self._halved():
                    self._forget(course.step)
                    fit = self._fit() or fit
                    continue
                self.audience.tell(info, start, [SEES, LAST])
            self._share_failure()
            if course.failure is not None:
                raise Failed
            course.interrupts.agree()
            if course.status is None and course.interrupts.asked:
                course.status = interrupted(course.step)
            elif course.status is None and course.source.ended and not course.team.several:
                course.status = exhausted(course.step, course.total)

    def _share_failure(self) -> None:
        """What raised in one process ends the run in all of them."""
        course = self.course
        if not course.team.several:
            return
        mine = None if course.failure is None else f"{course.failure[0]} raised {brief(course.failure[1])}"
        for number, told in enumerate(course.team.all(mine)):
            if told is not None and course.failure is None:
                course.failure = f"process {number}", RuntimeError(told)

    def _forget(self, step: int) -> None:
        """What was seen of the steps after this one, from which the run went back."""
        self.suspect = self.suspect if self.suspect is not None and self.suspect[1] < step else None
        self.largest = largest_measure(self.course.log.trace)
        self.audience.forget(step)

    def _note_metrics(self, rows: Columns) -> None:
        self.largest = max(self.largest, largest_measure(rows))
        if self.suspect is None and (found := bad_metric(rows)) is not None:
            self.suspect = (found[0], self.course.step - rows_in(rows) + found[1])

    def _event(self, info: Info | None, rows: Columns) -> Event:
        rows = jax.tree.map(lambda a: a, rows)  # the log's own dict is not for hooks to change
        course, seconds = self.course, time.perf_counter() - self.began
        run = fetched(course.run) if self.audience.reads_info else course.run  # they may compute with it
        name, solver = self.solver.name, course.solver
        return Event(
            course.step, course.total, run, info, rows, seconds, name, self.so_far, solver, course.measured
        )

    # The end

    def _result(self) -> Result:
        course = self.course
        if course.whole:
            course.run = fetched(course.run)
        status, trace = course.status or completed(course.total), course.log.trace
        if course.failure is not None:
            status = failed(course.step, *course.failure)
        elif status.code in (Code.COMPLETED, Code.STOPPED, Code.EXHAUSTED) and course.step:
            status = self._remarked(status, trace)
        elif status.code is Code.CONVERGED:
            status = status.with_note("" if self.largest > 0 else never_moved(course.scene(), self.largest))
        if course.failure is None and status.code is not Code.DIVERGED and course.step:
            status = status.with_note(self.solver.remark(trace))
        hidden = status.code is Code.DIVERGED and self.suspect is not None and self.suspect[0] == NORM
        if self.suspect is not None and self.suspect[1] < course.step and not hidden:
            status = status.with_suspect(*self.suspect)
        result = self._packed(status if status.code is Code.DIVERGED else status.with_note(self.guard.note()))
        for probe in self.audience.probes:
            course.log.add_probes(probe.take_rows())
        return result

    def _remarked(self, status: Status, trace: Columns) -> Status:
        """A finite end: f may have blown up, or x stand still."""
        course = self.course
        if note := blow_up(trace, course.step, lambda: why_risen(course.scene())):
            return status.with_note(note)
        if not (count := course.still()):
            return status
        found = standstill(course.scene(), count, self.largest)
        if found.converged and course.status is None:
            status = completed(course.total, converged=True)
        return status.with_note(found.sentence)

    def _packed(self, status: Status) -> Result:
        course = self.course
        return Result(
            x=course.run.x,
            y=course.run.y,
            status=status,
            steps=course.step,
            trace=jax.tree.map(lambda a: a, course.log.trace),
            probes=course.log.probes([row for probe in self.audience.probes for row in probe.rows]),
            run=fetched(course.run) if course.whole else course.run,
            seconds=time.perf_counter() - self.began,
            feed=course.source.mark(),
            thin=course.log.thin,
            halvings=self.guard.halvings,
            recovery=self.guard.recovery(course),
            diagnosis=self.audience.diagnosis,
        )


def _checked(resume: Result, solver: Solver, stream: Stream | None) -> RunState:
    """The earlier run, if this solver, problem and data are the ones that produced it."""
    run = resume.run
    now = fingerprint(solver, run.x, run.y, stream, run.model)
    if (found := difference(run.fingerprint, now)) is not None:
        raise ValueError(
            f"resume= is of another run: {found}. To begin a new run from there, pass x0=result.x, y0=result.y"
        )
    return run
