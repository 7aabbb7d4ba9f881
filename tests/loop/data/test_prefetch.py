"""A loader asked ahead in a thread: every batch is still used exactly once and in order, and no thread stays."""

import signal
import threading

import jax
import numpy as np
import pytest
from test_loaders import AID, SOBA, Counting, Repeatable, Stateful, Z, broken_disk, interrupt, same, seen

import bilevel as bl
from bilevel.loop.data import loader_buffer as feed, prefetch

SOLVERS = pytest.mark.parametrize("solver", [AID, SOBA], ids=["one draw", "three draws"])


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "bilevel-loader"]


class Noting(Counting):
    """Notes in which thread it is asked, and by which settings."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.notes = []

    def __next__(self):
        self.notes.append((threading.current_thread().name, jax.numpy.zeros(1).dtype.name))
        return super().__next__()


@pytest.mark.slow
@SOLVERS
@pytest.mark.parametrize("prefetch", [1, 3])
def test_what_a_run_does_is_the_same_and_it_takes_no_batch_too_many(solver, prefetch):
    loader = Counting()
    ahead = bl.run(
        solver,
        Z,
        Z,
        data=loader,
        steps=7,
        warmup=2,
        options=bl.RunOptions(every=3, prefetch=prefetch),
    )
    same(
        ahead,
        bl.run(
            solver,
            Z,
            Z,
            data=Counting(),
            steps=7,
            warmup=2,
            options=bl.RunOptions(every=3, prefetch=0),
        ),
    )
    assert loader.given == 9 * solver.draws
    assert threads() == []


def test_never_further_ahead_than_told():
    loader, ahead = Counting(), []
    bl.run(
        AID,
        Z,
        Z,
        data=loader,
        steps=30,
        options=bl.RunOptions(every=1, prefetch=3),
        hooks=[lambda event: ahead.append(loader.given - event.step)],
    )
    assert max(ahead) <= 1 + 3 + 1  # one looked at, three in wait, and one under way


@pytest.mark.parametrize("make", [Counting, Stateful, lambda: Repeatable(50)])
def test_stopped_and_resumed(make):
    whole, loader = bl.run(AID, Z, Z, data=make(), steps=12), make()
    stop = lambda event: bl.hooks.Stop("enough", step=4) if event.step >= 4 else None
    result = bl.run(
        AID,
        Z,
        Z,
        data=loader,
        steps=12,
        options=bl.RunOptions(every=6, prefetch=3),
        hooks=[stop],
    )
    assert (result.steps, threads()) == (4, [])
    result = bl.run(AID, data=loader, steps=3, resume=result, options=bl.RunOptions(prefetch=3))
    same(bl.run(AID, data=loader, steps=5, resume=result, options=bl.RunOptions(prefetch=0)), whole)


@pytest.mark.parametrize("k", [1, 4, 7])
def test_ctrl_c(k):
    whole, loader = bl.run(AID, Z, Z, data=Counting(), steps=10), Counting(at=[k], do=interrupt)
    result = bl.run(
        AID,
        Z,
        Z,
        data=loader,
        steps=10,
        options=bl.RunOptions(every=3, prefetch=2),
    )
    assert threads() == []
    assert loader.given <= result.steps + 4
    if result.steps < 10:
        assert result.status.code is bl.Code.INTERRUPTED
        result = bl.run(AID, data=loader, steps=10 - result.steps, resume=result)
    same(result, whole)


class Impatient(threading.Condition):
    """Who has to wait in the main thread has Ctrl-C pressed so many times."""

    times = 0

    def wait_for(self, predicate, timeout=None):
        main = threading.current_thread() is threading.main_thread()
        while main and type(self).times and not predicate():
            type(self).times -= 1
            signal.raise_signal(signal.SIGINT)
        return super().wait_for(predicate, timeout)


@pytest.mark.parametrize("resumed", [False, True], ids=["as the run ends", "as it is resumed too"])
@pytest.mark.parametrize("generator", [False, True])
def test_ctrl_c_while_the_thread_is_waited_for(monkeypatch, generator, resumed):
    """The thread is still in the loader when the run has ended, and later gives what it was asked for."""
    held, stuck = threading.Event(), threading.Event()

    def stick():
        stuck.set()
        assert held.wait(20)

    def stop(event):
        if event.step == 4:
            assert stuck.wait(20)
            monkeypatch.setattr(Impatient, "times", 2)  # the first is a request, which the run has fulfilled
            return bl.hooks.Stop("enough")
        return None

    monkeypatch.setattr(prefetch.threading, "Condition", Impatient)
    loader = Counting(at=[5], do=stick)
    batches = (batch for batch in loader) if generator else loader
    result = bl.run(
        AID,
        Z,
        Z,
        data=batches,
        steps=12,
        options=bl.RunOptions(every=1, prefetch=2),
        hooks=[stop],
    )
    assert (result.steps, len(threads())) == (4, 1)
    if resumed:
        monkeypatch.setattr(Impatient, "times", 1)
        with pytest.raises(KeyboardInterrupt):
            bl.run(AID, data=batches, steps=8, resume=result)
    held.set()
    result = bl.run(AID, data=batches, steps=8, resume=result, options=bl.RunOptions(prefetch=2))
    assert seen(result) == list(range(12))
    assert threads() == []


@pytest.mark.parametrize(("solver", "k"), [(AID, 1), (AID, 4), (SOBA, 3), (SOBA, 7), (SOBA, 11)])
def test_an_error_comes_in_its_place_and_loses_nothing(solver, k):
    whole = bl.run(solver, Z, Z, data=Counting(), steps=5, options=bl.RunOptions(prefetch=0))
    loader = Counting(at=[k], do=broken_disk)
    with pytest.raises(
        bl.RunError, match=rf"the loader raised OSError .*after {k // solver.draws} steps?\."
    ) as e:
        bl.run(solver, Z, Z, data=loader, steps=5, options=bl.RunOptions(prefetch=2))
    assert "prefetch=0" in e.value.__cause__.__notes__[0]
    assert threads() == []
    result = e.value.result
    same(
        bl.run(solver, data=loader, steps=5 - result.steps, resume=result, options=bl.RunOptions(prefetch=2)),
        whole,
    )


def test_an_error_that_no_step_came_to_waits_for_the_run_that_does():
    loader = Counting(at=[6], do=broken_disk)
    stop = lambda event: bl.hooks.Stop("enough") if event.step == 4 else None
    raised = lambda event: [thread.join(60) for thread in threads()] if event.step == 4 else None
    result = bl.run(
        AID,
        Z,
        Z,
        data=loader,
        steps=9,
        options=bl.RunOptions(every=4, prefetch=2),
        hooks=[stop, raised],
    )
    assert not loader.at
    with pytest.raises(bl.RunError, match="after 6 steps") as e:
        bl.run(AID, data=loader, steps=5, resume=result, options=bl.RunOptions(prefetch=2))
    same(
        bl.run(AID, data=loader, steps=3, resume=e.value.result),
        bl.run(AID, Z, Z, data=Counting(), steps=9),
    )


def test_the_end_comes_in_its_place():
    result = bl.run(AID, Z, Z, data=Counting(4), steps=9, options=bl.RunOptions(prefetch=3))
    assert (result.status.code, seen(result), threads()) == (bl.Code.EXHAUSTED, [0, 1, 2, 3], [])


def test_by_the_settings_of_the_caller_s_thread():
    for x64 in (True, False):
        loader = Noting()
        with jax.enable_x64(x64):
            zeros = np.zeros(2, np.float64 if x64 else np.float32)
            bl.run(AID, zeros, zeros, data=loader, steps=4, options=bl.RunOptions(prefetch=2))
        assert [name for name, _ in loader.notes] == ["MainThread"] + 3 * ["bilevel-loader"]
        assert {kind for _, kind in loader.notes} == {"float64" if x64 else "float32"}


def test_a_thread_only_for_those_that_take_time(monkeypatch):
    for seconds, thread in ((-1.0, "bilevel-loader"), (np.inf, "MainThread")):
        monkeypatch.setattr(feed, "SLOW", seconds)
        loader = Noting()
        bl.run(AID, Z, Z, data=loader, steps=5)
        assert {name for name, _ in loader.notes[1:]} == {thread}


def test_a_number_that_is_none(as_users_see_it):
    with pytest.raises((TypeError, ValueError), match=r"prefetch .*: pass e\.g\. prefetch=2$"):
        bl.run(AID, Z, Z, data=Counting(), steps=2, options=bl.RunOptions(prefetch=-1))
