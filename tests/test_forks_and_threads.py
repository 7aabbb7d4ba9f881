"""Forks that JAX does not survive are refused, others work; runs in threads are those one after the other."""

import os
import signal
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl

PARENT = """
import os, warnings
warnings.simplefilter("ignore")  # JAX's own, about the fork
import numpy as np
import bilevel as bl

q = bl.problems.quadratic(kappa=4.0)
solver, start = bl.aid(q.problem, inner=0.1, adjoint=0.1, outer=0.1), (np.ones(2), np.zeros(2))
{before}
child = os.fork()
if child == 0:
    try:
        for drive in (
            lambda: bl.run(solver, *start, steps=3),
            lambda: bl.sweep(solver, *start, steps=3),
            lambda: bl.advise(q.problem, *start, steps=10),
        ):
            try:
                print(drive(), flush=True)
            except RuntimeError as error:
                print("refused:", error, flush=True)
            {only_run}
    finally:
        os._exit(0)
os.waitpid(child, 0)
"""


def forked(before: str, only_run: bool = False) -> str:
    """What the child of a process that did `before` prints; if it hangs, the time limit ends the test."""
    code = PARENT.format(before=before, only_run="break" if only_run else "")
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.slow
@pytest.mark.parametrize(
    "before",
    [
        "import jax.numpy as jnp; x = jnp.ones(3)",  # seen: something was compiled
        "import jax; jax.devices()",  # its threads are there
    ],
    ids=["compiled", "only asked for its devices"],
)
def test_a_child_of_a_process_in_which_jax_worked_is_told_so(before):
    said = forked(before).strip().splitlines()
    assert len(said) == 3
    for line in said:
        assert line.startswith("refused: this process was forked from one in which JAX had started to work")
        assert 'multiprocessing.get_context("spawn")' in line


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.slow
def test_a_fork_before_anything_is_computed_works():
    assert "completed after 3 steps" in forked("", only_run=True)


@pytest.fixture(scope="module")
def q():
    return bl.problems.quadratic(kappa=4.0)


@pytest.mark.slow
@pytest.mark.parametrize("same", [True, False], ids=["one solver", "different solvers"])
def test_runs_in_threads_are_bitwise_those_one_after_the_other(q, same):
    """Programs are kept with the problem, which all of them share: here the first of them may be compiled at once."""
    problem = bl.Problem(inner=q.g, outer=q.f)
    solvers = [
        bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.1 if same else 0.02 * (k + 1)) for k in range(4)
    ]
    if not same:
        solvers[3] = bl.itd(problem, inner=0.1, outer=0.05)
    seen: dict[int, list] = {k: [] for k in range(4)}

    def one(k: int):
        return bl.run(
            *(solvers[k], jnp.ones(2), jnp.zeros(2)),
            steps=300,
            options=bl.RunOptions(every=50, probe=lambda state, info: {"x": state.x[0]}),
            progress=True,
            hooks=[lambda event: seen[k].append(event.step)],
        )

    results: dict[int, bl.Result] = {}
    ready = threading.Barrier(4)

    def work(k: int) -> None:
        ready.wait()
        results[k] = one(k)

    handler = signal.getsignal(signal.SIGINT)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (
        signal.getsignal(signal.SIGINT) is handler
    )  # only the main thread may have one, and no run was there
    assert all(steps == [50, 100, 150, 200, 250, 300] for steps in seen.values())
    for k in range(4):
        alone, beside = one(k), results[k]
        assert alone.status == beside.status
        for a, b in zip(jax.tree.leaves(alone.run), jax.tree.leaves(beside.run), strict=True):
            np.testing.assert_array_equal(a, b)
        for name in alone.trace:
            np.testing.assert_array_equal(alone.trace[name], beside.trace[name])
        np.testing.assert_array_equal(alone.probes["x"], beside.probes["x"])


def test_control_c_reaches_the_run_of_the_main_thread_alone(q):
    """While another thread runs too; that one takes all its steps."""
    problem = bl.Problem(inner=q.g, outer=q.f)
    solver, start = bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.1), (jnp.ones(2), jnp.zeros(2))
    begun, asked, other = threading.Event(), threading.Event(), []

    def beside(event) -> None:
        begun.set()
        assert asked.wait(60)

    thread = threading.Thread(
        target=lambda: other.append(
            bl.run(solver, *start, steps=40, options=bl.RunOptions(every=10), hooks=[beside])
        )
    )

    def interrupt(event) -> None:
        if event.step == 20:
            assert begun.wait(60)
            signal.raise_signal(signal.SIGINT)
            asked.set()

    thread.start()
    result = bl.run(solver, *start, steps=100, options=bl.RunOptions(every=10), hooks=[interrupt])
    thread.join()
    assert result.status.code is bl.Code.INTERRUPTED
    assert result.steps == 20
    assert other[0].status.code is bl.Code.COMPLETED
    assert other[0].steps == 40
