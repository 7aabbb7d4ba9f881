"""A run under way: where it stands, what it has seen, and how it goes back to where it was."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bilevel.loop.data.sources import Loader, Memory, source_of
from bilevel.loop.data.streams import FullBatch, draw
from bilevel.loop.devices.offload import fetched, on_host, stored
from bilevel.loop.devices.processes import Team
from bilevel.loop.devices.state_sharding import Places
from bilevel.loop.diagnose.scene import Scene
from bilevel.loop.finite import Watch, moved
from bilevel.loop.interrupts import Interrupts
from bilevel.loop.program import Calls, Program
from bilevel.loop.recovery.snapshots import Kept, lost
from bilevel.loop.result import Result
from bilevel.loop.state import RunState, dress
from bilevel.loop.status import Cause, Status
from bilevel.loop.trace import Log
from bilevel.solvers.base import Info, Solver


def _measured(
    solver: Solver, function: Callable[..., Any], run: RunState, given: Any, *arguments: Any
) -> Any:
    _, batch = draw(given, run.cursor, solver.draws, solver.traits.same_rows)
    whole = isinstance(given, FullBatch)
    return function(solver, run.solver, dress(solver, run, batch), whole, *arguments)


class Failed(Exception):
    """Something that is not ours raised; the course's `failure` says what."""


class Course:
    """What changes while a run goes on. The parts that drive it, chunks, warm-up and hooks, share it."""

    run: RunState
    watch: Watch
    program: Program  # chosen once the shapes of a start are known
    leaves: list[Any]  # of the solver, as the program takes them

    def __init__(
        self,
        solver: Solver,
        data,
        steps: int,
        resume: Result | None,
        thin: int | None,
    ):
        self.solver = solver
        self.step = 0 if resume is None else resume.steps
        self.total = self.step + steps
        place = None if resume is None or resume.recovery is None else resume.recovery.place
        recent = None if place is None else place.rows
        self.log = Log(thin=thin) if resume is None else Log(resume.trace, resume.probes, thin, recent)
        self.source: Memory | Loader = source_of(data, solver, resume)
        self.places: Places | None = None  # where its arrays lie, if on several devices
        self.kept = Kept("off")  # nothing, until the run begins
        self.long = False  # whether its steps are, and have calls of their own
        self.tells = False  # whether someone wants to see the whole Info of the last step
        self.interrupts = Interrupts()
        self.team = Team()  # the processes of the run
        self.status: Status | None = None  # how it ended, once it has
        self.failure: tuple[str, BaseException] | None = None  # what raised, and what it raised
        self.cause = Cause()  # why it broke, if it did
        self.bad_data: str | None = None  # or the data's part in it
        self.torn = False  # the state may be further than the trace, with nothing kept to go back to

    def fail(self, what: str, error: BaseException) -> Failed:
        """To be raised: the run ends here."""
        self.failure = self.team.named(what, error)
        return Failed()

    @property
    def whole(self) -> bool:
        """Whether state and trace belong together, and are there."""
        return not (lost(self.run) or self.torn)

    @property
    def calls(self) -> Calls:
        """What moves the run on: one and the same program the first time and when it goes back."""
        return self.program.donating if self.kept.donates else self.program.keeping

    @property
    def at_once(self) -> bool:
        """Whether any number of steps is one call."""
        return self.source.stream is not None and not (self.long or self.program.offload)

    def placed(self, run: RunState) -> RunState:
        """Where the next call wants it."""
        return stored(run) if self.program.offload else run

    def lent(self, run: RunState) -> RunState:
        """For a call after which this run is wanted again."""
        return jax.tree.map(lambda a: a if on_host(a) else jnp.copy(a), run) if self.kept.donates else run

    def still(self) -> int:
        """The number of steps since what is kept, if they have not moved x; else 0."""
        steps = self.step - self.kept_step
        return steps if steps >= 2 and not moved(self.kept.x(), self.run.x) else 0

    @property
    def kept_step(self) -> int:
        return self.step if self.kept.step is None else self.kept.step

    def broken(self, run: RunState) -> list[str]:
        return self.watch.broken(self.watch.look(run), run)

    def scene(self) -> Scene:
        """Return what explains the run's trouble, where it stands."""
        taken, source = self.kept.taken, self.source

        def seen() -> Any:
            return None if source.stream is None and not taken else source.again(taken, 0, 1)[0]

        def before() -> tuple[int, RunState]:
            step, run = self.kept.before()
            return step, fetched(run)

        def after(warmup: bool) -> RunState:
            given = source.peek()
            if warmup:
                return self.calls.warm_up(self.leaves, self.lent(self.run), given, 1)
            fit = self.program.fit(self.leaves, self.run, given, self.total)
            return fetched(self.calls.one(self.leaves, self.lent(self.run), given, fit.rows(), 0, False)[0])

        return Scene(
            solver=self.solver,
            run=fetched(self.run),
            step=self.step,
            trace=self.log.trace,
            recent=self.log.rows(self.kept_step),
            stream=source.stream,
            alone=not self.team.several,
            measure=self.measured,
            given=source.peek,
            seen=seen,
            before=before,
            after=after,
        )

    def measured(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """`function(solver, state, batch, whole, *arguments)` where the run stands, compiled."""
        taken = self.kept.taken
        nothing = self.source.stream is None and not taken
        given = self.source.peek() if nothing else self.source.again(taken, len(taken), 1)[0]
        return self.solver.compiled(_measured, function)(fetched(self.run), given, *arguments)

    def again(self, run: RunState, start: int, stop: int, warm: bool = False) -> tuple[RunState, Info | None]:
        """The steps from `start` to `stop` once more, from `run`, on the data that were seen there."""
        info, run = None, self.lent(run)
        while start < stop:
            given, count = self.source.again(self.kept.taken, start - self.kept_step, stop - start)
            if warm:
                run = self.calls.warm_up(self.leaves, run, given, count)
            else:
                fit = self.program.fit(self.leaves, run, given, self.total)
                count = min(count, fit.count) if self.at_once else 1
                # The program that ran them first: another might round differently.
                if self.at_once:
                    run, _, info, _ = self.calls.chunk(self.leaves, run, given, fit.blank, count, self.tells)
                else:
                    at = self.calls.one(self.leaves, self.placed(run), given, fit.rows(), 0, self.tells)
                    run, _, info = at
            start += count
        return fetched(run), info

    def last_sane(self, good: RunState, low: int, high: int, warm: bool = False):
        """Of the steps from `low` to `high`, begun at `good`: the last sane run, its step, what broke, its Info."""
        info, names = None, self.broken(self.again(good, low, high, warm)[0])
        while names and high - low > 1:
            middle = (low + high) // 2
            run, seen = self.again(good, low, middle, warm)
            if broken := self.broken(run):
                high, names = middle, broken
            else:
                good, low, info = run, middle, seen
        return good, low, names, info

    def back_to(self, step: int, run: RunState) -> None:
        """`run`, as it was after `step` steps; what came later is forgotten, and its data are given back."""
        self.run = run
        self.give_back(len(self.kept.taken) - (step - self.kept_step))
        self.log.keep(step)
        self.step = step

    def give_back(self, count: int) -> None:
        """The last so many batches of a loader, which no step has used."""
        keep = max(0, len(self.kept.taken) - max(0, count))
        self.source.give_back(self.kept.taken[keep:])
        del self.kept.taken[keep:]

    def recover(self) -> None:
        """After something went wrong within a chunk: the last state that is surely whole."""
        if self.kept.possible:
            self.back_to(self.kept_step, self.kept.run())
        else:
            self.torn = self.kept.donates
