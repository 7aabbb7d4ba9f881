"""A piece of a run between two looks of the host: one compiled call, or one for every batch of a loader."""

import time
from typing import Any

import jax
import numpy as np

from bilevel.loop.chunk_length import SECONDS
from bilevel.loop.course import Course
from bilevel.loop.data.streams import draw
from bilevel.loop.devices.mesh_spec import CannotBeSplit
from bilevel.loop.program import Fit
from bilevel.loop.recovery.snapshots import lost
from bilevel.loop.state import dress
from bilevel.loop.trace import Columns
from bilevel.solvers.base import Info, explained
from bilevel.types import PyTree

IN_FLIGHT = 2  # steps on a loader's batches that the host may be ahead of the device


def take_chunk(
    course: Course, fit: Fit, wanted: int, every: int | None
) -> tuple[Columns, int, Info | None, Any]:
    """At most `wanted` steps; fewer where the data end, the loader fails, the time is up or Ctrl-C came."""
    try:
        if course.at_once:
            course.run, rows, info, seen = course.calls.chunk(
                course.leaves, course.run, course.source.stream, fit.blank, wanted, course.tells
            )
            rows, seen = _on_host((rows, seen))
            done = wanted
        else:
            rows, done, info = _one_by_one(course, fit, wanted, every)
            seen = course.watch.look(course.run)
    except Exception as error:  # from the objectives, as they run or as they are traced
        course.recover()
        raise course.fail("an objective", _explained(course, error)) from error
    # A view would keep the whole buffer alive, which has room for far more rows than a short chunk fills.
    return jax.tree.map(lambda a: a[:done].copy(), rows), done, info, seen


def _one_by_one(course: Course, fit: Fit, wanted: int, every: int | None) -> tuple[Columns, int, Info | None]:
    """A compiled call for each step, as on a loader's batches; the loader works while the device does."""
    rows, info, done, flying = fit.rows(), None, 0, []
    course.run = course.placed(course.run)
    paced = every is not None or course.source.stream is not None  # else by what the loader takes
    deadline = np.inf if paced else time.perf_counter() + SECONDS
    while done < wanted and not course.interrupts.asked and time.perf_counter() < deadline:
        given = next_batch(course)
        if given is None:
            return _on_host(rows), done, info
        info = None  # of the step before: not to be alive next to this one's
        try:
            course.run, rows, info = course.calls.one(
                course.leaves, course.run, given, rows, done, course.tells
            )
        except Exception as error:  # while it was traced or dispatched: the steps before it are whole
            course.failure = "an objective", _explained(course, error, given)
            course.give_back(1)
            break
        done += 1
        flying.append(info.outer_value)
        if len(flying) > IN_FLIGHT:
            jax.block_until_ready(flying.pop(0))
    if course.failure is not None and lost(rows):  # with the steps that they were of
        raise course.failure[1]
    if course.step + done < course.total and course.failure is None:
        _look_ahead(course)
    return _on_host(rows), done, info


def _explained(course: Course, error: Exception, given: Any = None) -> Exception:
    """The error, or one that says which derivative an objective lacks; that shows when a step is compiled."""
    given = course.source.stream if given is None else given
    if given is None or not course.whole:
        return error
    _, batch = draw(given, course.run.cursor, course.solver.draws, course.solver.traits.same_rows)
    return explained(error, course.solver, course.run.solver, dress(course.solver, course.run, batch))


def next_batch(course: Course) -> Any:
    """The loader's next batch; one that raises ends the chunk, with the steps before it kept."""
    if course.source.stream is not None:
        return course.source.stream
    try:
        taken = course.source.take()
    except KeyboardInterrupt:  # within the loader: what is done is kept
        course.interrupts.asked = True
        return None
    except Exception as error:
        course.failure = whose(error), error
        return None
    if taken is None:
        return None
    given, kept = taken
    course.kept.taken.append(kept)
    return given


def whose(error: Exception) -> str:
    """What raised it, as data were asked for."""
    return "laying out the loader's batch" if isinstance(error, CannotBeSplit) else "the loader"


def _look_ahead(course: Course) -> None:
    try:
        course.source.peek()
    except KeyboardInterrupt:
        if not course.team.several:
            raise
        course.interrupts.heard = True  # all will hear of it
    except Exception as error:
        course.failure = whose(error), error


def _on_host(tree: PyTree) -> PyTree:
    """As NumPy arrays, fetched all at once where memory is far away."""
    return jax.device_get(tree) if jax.default_backend() != "cpu" else jax.tree.map(np.asarray, tree)
