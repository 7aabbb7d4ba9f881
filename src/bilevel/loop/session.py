"""One call of `run`: the compiled loop in chunks, with hooks, a trace and outcomes around it."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.arrays import as_arrays
from bilevel.checks import check_batch, variables
from bilevel.loop.errors import RunError
from bilevel.loop.fingerprint import difference, fingerprint
from bilevel.loop.hooks import Event, Probe, Stop
from bilevel.loop.interrupts import Interrupts
from bilevel.loop.pace import SECONDS, Pace
from bilevel.loop.program import Fit, program_of
from bilevel.loop.replay import Kept, lost
from bilevel.loop.result import Result
from bilevel.loop.sources import source_of
from bilevel.loop.state import RunState, dress
from bilevel.loop.status import (
    Code,
    Status,
    completed,
    diverged,
    exhausted,
    failed,
    interrupted,
    interrupted_in_warm_up,
)
from bilevel.loop.streams import FullBatch, Given, Minibatches, Stream, draw
from bilevel.loop.trace import Columns, Log, rows_in
from bilevel.loop.watch import Watch, bad_data, bad_metric, first_bad_row, remark
from bilevel.solvers.base import Info, Solver
from bilevel.types import PyTree

LOOK_AHEAD = 200  # steps, after the loss alone has become infinite, within which a variable may follow
IN_FLIGHT = 2  # steps on a loader's batches that the host may be ahead of the device


class Failed(Exception):
    """Something that is not ours raised; the session's `failure` says what."""


class Session:
    """A run under way."""

    def __init__(self, solver: Solver, record, data, steps: int, resume, replay: str, every, hooks: list):
        self.began = time.perf_counter()
        self.solver, self.hooks, self.replay, self.every = solver, hooks, replay, every
        self.program, self.leaves = program_of(solver, record)
        self.step = 0 if resume is None else resume.steps
        self.total = self.step + steps
        self.log = Log() if resume is None else Log(resume.trace, resume.probes)
        self.status: Status | None = None
        self.failure: tuple[str, BaseException] | None = None
        self.suspect: tuple[str, int] | None = None  # the first metric that was not finite, and when
        self.moved, self.earlier = True, self.step  # whether the last chunk moved x, and where it began
        self.source = source_of(data, solver, resume)
        self.torn = False  # the state may be further than the trace, with nothing kept to go back to
        self.interrupts = Interrupts()
        if resume is not None:
            self.run: RunState = _checked(resume, solver, self.source.stream)

    def begin(self, x0: PyTree, y0: PyTree, seed: Any, model_state: PyTree) -> None:
        """From x0 and y0. Whatever does not fit is refused here, before any work is done."""
        stream = self.source.first()
        if stream is None:
            raise ValueError("data is a loader without a single batch: give one that is not used up")
        if isinstance(
            stream, FullBatch | Minibatches | Given
        ):  # of a stream of the user's own, the start sees a batch
            check_batch(self.solver.problem, stream.data)
        x, y = variables(x0, y0)
        model_state = as_arrays(model_state, "model_state")  # jit would refuse in its own words
        self.run = self.program.start(self.leaves, x, y, stream, seed, model_state)

    def go(self, warmup: int) -> Result:
        """To the end, whatever that is."""
        begun: list = []
        fit = self._fit()  # refuses a step that does not fit, before any work is done
        with self.interrupts:
            try:
                self.watch, self.kept = (
                    Watch(self.solver, self.run),
                    Kept(self.replay, fit.bytes if fit is not None else 0),
                )
                if self.kept.donates:  # what the user holds, x0 or an earlier result, must outlive the run
                    self.run = jax.tree.map(jnp.copy, self.run)
                if warmup:
                    self._guarded_warm_up(warmup)
                for hook in self.hooks:
                    begun.append(hook)
                    self._call(getattr(hook, "begin", _nothing), self._event(None, {}))
                if self.failure is not None:
                    raise Failed
                if self.status is None and fit is not None:
                    self._chunks(fit)
            except KeyboardInterrupt:
                self._recover()
                if lost(self.run) or self.torn:
                    raise
                self.status = interrupted(self.step)
            except Failed:
                pass
            result = self._result()
            for hook in begun:
                try:
                    getattr(hook, "end", _nothing)(result)
                except Exception as error:
                    self.failure = self.failure or ("a hook", error)
        if self.failure is not None:
            result = self._result()
            whole = not (lost(self.run) or self.torn)
            raise RunError(result.status.message, result if whole else None) from self.failure[1]
        return result

    def _fit(self) -> Fit | None:
        try:
            first = self._guard("the loader", self.source.peek)
        except Failed as failed:  # only when resuming: a new run has peeked already
            result = self._result()
            raise RunError(result.status.message, result) from failed.__cause__
        if first is None:
            self.status = exhausted(self.step, self.total)
            return None
        fit = self.program.fit(self.leaves, self.run, first, self.total - self.step)
        self.log.check_columns(fit.row)
        return fit

    def _chunks(self, fit: Fit) -> None:
        pace = Pace(fit.seconds, self.every)
        while self.step < self.total and self.status is None:
            left = self.total - self.step
            paced = pace.steps(left) if self.source.stream is not None else self.every or left
            wanted = min(paced, left, fit.count)
            began, start = time.perf_counter(), self.step
            self.kept.at_start_of_chunk(self.run, self.step)
            rows, done, info, seen = self._chunk(fit, wanted)
            pace.took(done, time.perf_counter() - began, compiled=not fit.compiled)
            fit.compiled, fit.seconds = True, pace.seconds_per_step
            if done:
                self.log.add(rows)
                self.step = start + done
                self.moved, self.earlier = bool(seen[0]), start
                info = self._judge(rows, seen) or info
                self._tell(info, start)
            if self.failure is not None:
                raise Failed
            if self.status is None and self.interrupts.asked:
                self.status = interrupted(self.step)
            elif self.status is None and self.source.ended:
                self.status = exhausted(self.step, self.total)

    def _chunk(self, fit: Fit, wanted: int) -> tuple[Columns, int, Info | None, Any]:
        """At most `wanted` steps; fewer where the data end, the loader fails, the time is up or Ctrl-C came."""
        try:
            if self.source.stream is not None:
                take = self.program.donating_chunk if self.kept.donates else self.program.chunk
                self.run, rows, info, seen = take(
                    self.leaves, self.run, self.source.stream, fit.blank, wanted
                )
                rows, seen = _on_host((rows, seen))
                done = wanted
            else:
                rows, done, info = self._batches(fit, wanted)
                seen = self.watch.look(self.run)
        except Exception as error:  # from the objectives, as they run or as they are traced
            self._recover()
            self.failure = "an objective", error
            raise Failed from error
        return jax.tree.map(lambda a: a[:done], rows), done, info, seen

    def _batches(self, fit: Fit, wanted: int) -> tuple[Columns, int, Info | None]:
        """Steps on a loader's batches, a compiled call for each; the loader works while the device does."""
        take = self.program.donating_one if self.kept.donates else self.program.one
        rows, info, done, flying = fit.rows(), None, 0, []
        deadline = time.perf_counter() + SECONDS if self.every is None else np.inf
        while done < wanted and not self.interrupts.asked and time.perf_counter() < deadline:
            given = self._next()
            if given is None:
                return _on_host(rows), done, info
            try:
                self.run, rows, info = take(self.leaves, self.run, given, rows, done)
            except Exception as error:  # while it was traced or dispatched: the steps before it are whole
                self.failure = "an objective", error
                self._give_back(1)
                break
            done += 1
            flying.append(info.outer_value)
            if len(flying) > IN_FLIGHT:
                jax.block_until_ready(flying.pop(0))
        if self.step + done < self.total and self.failure is None:
            self._look()
        return _on_host(rows), done, info

    def _give_back(self, count: int) -> None:
        """The last so many batches of the loader, which no step has used."""
        keep = len(self.kept.taken) - count
        self.source.give_back(self.kept.taken[keep:])
        del self.kept.taken[keep:]

    def _next(self) -> Any:
        """The loader's next batch; one that raises ends the chunk, with the steps before it kept."""
        try:
            taken = self.source.take()
        except KeyboardInterrupt:  # within the loader: what is done is kept
            self.interrupts.asked = True
            return None
        except Exception as error:
            self.failure = "the loader", error
            return None
        if taken is None:
            return None
        self.kept.taken.append(taken)
        return taken[0]

    def _look(self) -> None:
        try:
            self.source.peek()
        except Exception as error:
            self.failure = "the loader", error

    # What is no longer finite

    def _judge(self, rows: Columns, seen: np.ndarray) -> Info | None:
        """Whether all is still finite. If not, the run goes back to where it was, and the Info there is returned."""
        first = self.step - rows_in(rows)
        if self.suspect is None and (found := bad_metric(rows)) is not None:
            self.suspect = (found[0], first + found[1])
        broken, row = self.watch.broken(seen, self.run), first_bad_row(rows)
        if not broken and row is None:
            return None
        bad_value = self.step if row is None else first + row
        data = bad_data(self.source.seen(self.kept.taken))
        if not self.kept.possible:
            self.status = diverged(
                self.solver, min(bad_value, self.step), broken or ["outer_value"], data=data, kept=False
            )
            return None
        good, low = self.kept.run(), self._kept_step
        run, last, names, info = (
            self._last_sane(good, low, self.step) if broken else (good, self.step, broken, None)
        )
        loss_first = bad_value < last
        if loss_first:  # where the variables are about to follow, they are the reason
            (run, info), last = self._again(good, low, bad_value), bad_value
            _, _, names, _ = self._last_sane(run, last, last + LOOK_AHEAD)
        grown = self.watch.grown(run)  # a variable that has run away is the reason, whichever breaks first
        names = names or grown or ["outer_value"]
        self._back_to(last, run)
        self.status = diverged(
            self.solver,
            last,
            names,
            data=data,
            loss_first=loss_first,
            because=grown,
            suspicion=self._suspicion(),
        )
        return info

    def _suspicion(self) -> str:
        """What the method itself has to say about where the run stands."""
        if self.source.stream is None and not self.kept.taken:  # of a loader, no batch is at hand
            return ""
        given, _ = self.source.again(self.kept.taken, 0, 1)
        _, batch = draw(given, self.run.cursor, self.solver.draws)
        return self.solver.suspicion(self.run.solver, dress(self.solver, self.run, batch))

    def _last_sane(self, good: RunState, low: int, high: int, warm: bool = False):
        """Of the steps from `low` to `high`, begun at `good`: the last sane run, its step, what broke, its Info."""
        info, names = None, self._broken(self._again(good, low, high, warm)[0])
        while names and high - low > 1:
            middle = (low + high) // 2
            run, seen = self._again(good, low, middle, warm)
            if broken := self._broken(run):
                high, names = middle, broken
            else:
                good, low, info = run, middle, seen
        return good, low, names, info

    def _broken(self, run: RunState) -> list[str]:
        return self.watch.broken(self.watch.look(run), run)

    def _again(
        self, run: RunState, start: int, stop: int, warm: bool = False
    ) -> tuple[RunState, Info | None]:
        """The steps from `start` to `stop` once more, from `run`, on the data that were seen there."""
        info = None
        while start < stop:
            given, count = self.source.again(self.kept.taken, start - self._kept_step, stop - start)
            if warm:
                run = self.program.warm_up(self.leaves, run, given, count)
            else:
                fit = self.program.fit(self.leaves, run, given, self.total)
                count = min(count, fit.count)
                if (
                    self.source.stream is not None
                ):  # the program that ran them first: another might round differently
                    run, _, info, _ = self.program.chunk(self.leaves, run, given, fit.blank, count)
                else:
                    run, _, info = self.program.one(self.leaves, run, given, fit.rows(), 0)
            start += count
        return run, info

    def _back_to(self, step: int, run: RunState | None = None) -> None:
        """The run as it was after `step` steps; what came later is forgotten, and its data are given back."""
        self.run = self._again(self.kept.run(), self._kept_step, step)[0] if run is None else run
        self.source.give_back(self.kept.taken[step - self._kept_step :])
        del self.kept.taken[step - self._kept_step :]
        self.log.keep(step)
        self.step = step

    def _recover(self) -> None:
        """After something went wrong within a chunk: the last state that is surely whole."""
        if self.kept.possible:
            self._back_to(self._kept_step, self.kept.run())
        else:
            self.torn = self.kept.donates

    def _guarded_warm_up(self, count: int) -> None:
        try:
            self._warm_up(count)
        except Failed:
            raise
        except Exception as error:
            self._recover()
            self.failure = "an objective, in the warm-up,", error
            raise Failed from error

    def _warm_up(self, count: int) -> None:
        """Steps on y alone, in chunks of their own; if they break, the run ends with the last sane state among them."""
        self.kept.begin(self.run, self.step)
        start, done, pace, compiled = self.step, 0, Pace(None), False
        while done < count and self.status is None:
            given, more = self.source.stream, pace.steps(count - done)
            if given is None:
                given, more = self._next(), 1
                if self.failure is not None:
                    what, error = self.failure
                    self.failure = f"{what}, in the warm-up after {done} of {count} steps,", error
                    raise Failed
                if given is None:
                    ended = (
                        interrupted_in_warm_up(done, count)
                        if self.interrupts.asked
                        else exhausted(0, self.total)
                    )
                    self.status = ended.with_note(
                        f" It was in the warm-up, {done} of {count} steps of which were done."
                    )
                    return
            began = time.perf_counter()
            self.run = jax.block_until_ready(self.program.warm_up(self.leaves, self.run, given, more))
            pace.took(more, time.perf_counter() - began, compiled=not compiled)
            done, compiled = done + more, True
            if self.interrupts.asked and done < count:
                self.status = interrupted_in_warm_up(done, count)
        if self._broken(self.run):
            data = bad_data(self.source.seen(self.kept.taken))
            self.run, last, names, _ = self._last_sane(self.kept.run(), start, start + done, warm=True)
            self.status = diverged(
                self.solver, last - start, names, warmup=True, data=data, suspicion=self._suspicion()
            )

    # Hooks

    def _tell(self, info: Info | None, start: int) -> None:
        """Hooks that decide see the event first; if one stops the run at an earlier step, others see it end there."""
        deciding = [hook for hook in self.hooks if getattr(hook, "decides", False)]
        others = [hook for hook in self.hooks if hook not in deciding]
        for group in (deciding, others):
            if self.step == start or not group:
                continue
            event = self._event(info, self.log.rows(start))
            stops = [stop for hook in group if isinstance(stop := self._call(hook, event), Stop)]
            # What a deciding hook saw before the run broke comes first, whatever the chunks.
            broke = self.status is not None and self.status.code is Code.DIVERGED
            if stops and (self.status is None or (broke and group is deciding)):
                stop = min(stops, key=lambda stop: self.step if stop.step is None else stop.step)
                reason, passed = stop.reason, stop.step is not None and stop.step < self.step
                if stop.step is not None and passed and self.kept.possible and self._kept_step <= stop.step:
                    run, seen = self._again(self.kept.run(), self._kept_step, stop.step)
                    self._back_to(stop.step, run)
                    info = seen or info
                elif passed:
                    reason += f" (The run had gone on to step {self.step}, and kept nothing to go back to.)"
                self.status = Status(stop.code, reason)

    def _event(self, info: Info | None, rows: Columns) -> Event:
        rows = jax.tree.map(lambda a: a, rows)  # the log's own dict is not for hooks to change
        return Event(
            self.step, self.total, self.run, info, rows, time.perf_counter() - self.began, self.solver.name
        )

    def _call(self, hook: Callable, event: Event) -> Any:
        """What the hook says; one that raises ends the run once the others have seen the event too."""
        try:
            said = hook(event)
            if isinstance(said, Stop) and not isinstance(said.step, int | None):
                raise TypeError(f"a Stop's step must be a whole number or None, not {said.step!r}")
            return said
        except Exception as error:
            self.failure = self.failure or ("a hook", error)
            return None
        except KeyboardInterrupt:  # raised by the hook, or a second Ctrl-C while in it: the steps are whole
            self.status = self.status or interrupted(self.step)
            return None

    def _guard(self, what: str, function: Callable, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            self.failure = what, error
            raise Failed from error

    # The end

    def _result(self) -> Result:
        for hook in self.hooks:
            if isinstance(hook, Probe):
                self.log.add_probes(hook.rows)
                hook.rows = []
        status, trace = self.status or completed(self.total), self.log.trace
        if self.failure is not None:
            status = failed(self.step, *self.failure)
        elif status.code in (Code.COMPLETED, Code.STOPPED, Code.EXHAUSTED) and self.step:
            status = status.with_note(remark(trace, self.moved, self.step - self.earlier, self._suspicion))
        if self.failure is None and status.code is not Code.DIVERGED and self.step:
            status = status.with_note(self.solver.remark(trace))
        if self.suspect is not None and self.suspect[1] < self.step:
            status = status.with_suspect(*self.suspect)
        return Result(
            x=self.run.x,
            y=self.run.y,
            status=status,
            steps=self.step,
            trace=trace,
            probes=self.log.probes,
            run=self.run,
            seconds=time.perf_counter() - self.began,
            feed=self.source.mark(),
        )

    @property
    def _kept_step(self) -> int:
        return self.step if self.kept.step is None else self.kept.step


def _checked(resume: Result, solver: Solver, stream: Stream | None) -> RunState:
    """The earlier run, if this solver, problem and data are the ones that produced it."""
    run = resume.run
    now = fingerprint(solver, run.x, run.y, stream, run.model)
    if (found := difference(run.fingerprint, now)) is not None:
        raise ValueError(
            f"resume= is of another run: {found}. To begin a new run from there, pass x0=result.x, y0=result.y"
        )
    return run


def _on_host(tree: PyTree) -> PyTree:
    """As NumPy arrays, fetched all at once where memory is far away."""
    return jax.device_get(tree) if jax.default_backend() != "cpu" else jax.tree.map(np.asarray, tree)


def _nothing(*_: Any) -> None:
    return None
