"""Several processes under `jax.distributed` over loopback: one trajectory, one will, and what a killed one leaves."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import jax
import nets
import numpy as np
import pytest

import bilevel as bl
from run_options import with_options

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
PATIENCE = 240  # seconds, for what takes a few on an idle machine


def members(what, folder, of=2):
    """Processes that run `member.py`, each with what it prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ours = {
        "PYTHONPATH": os.pathsep.join([str(Path(bl.__file__).parents[1]), str(HERE), str(HERE.parents[1])]),
        "XLA_FLAGS": os.environ["BILEVEL_TESTS_XLA_FLAGS"],  # compiled quickly, as here
    }
    return [
        subprocess.Popen(
            [sys.executable, str(HERE / "member.py"), *map(str, (i, of, port, folder, what))],
            env=os.environ | ours,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(of)
    ]


def told(what, folder, of=2, status=0):
    """What each process says, in lines of JSON, once all have ended with that status."""
    started = members(what, folder, of)
    try:
        heard = [process.communicate(timeout=PATIENCE) for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert [process.returncode for process in started] == [status] * of, heard
    return [[json.loads(line) for line in out.splitlines() if line.startswith("{")] for out, _ in heard]


def run(steps, **asked):
    """As the members do, in this process."""
    solver = bl.soba(nets.problem, inner=0.1, adjoint=0.1, outer=0.5)
    return bl.run(solver, *nets.start(), data=nets.batch(), steps=steps, **with_options(asked))


def alone(steps=12):
    return run(steps).trace["outer_value"]


def evaluated(steps):
    """The outer loss on the 16 rows that the members evaluate, at every fourth state."""
    keep = lambda state, info: {"y": state.y}
    states = run(steps, record=keep).trace["y"]
    rows = nets.batch(32).outer
    each = [jax.tree.map(lambda a, i=i: a[i], states) for i in range(3, steps, 4)]
    return [float(nets.outer(None, y, rows)) for y in each]


def test_what_one_process_decides_all_do(tmp_path):
    """A stop, Ctrl-C, an error, a loader's end, SIGTERM in one process end both; files are written once."""
    first, second = (
        {each["part"]: each for each in said} for said in told("agreements", tmp_path, status=143)
    )
    for said in (first, second):
        assert (said["stop"]["steps"], said["stop"]["code"]) == (4, "stopped")
        np.testing.assert_allclose(said["stop"]["values"], alone(4), rtol=1e-9)
        assert (said["interrupted"]["steps"], said["interrupted"]["code"]) == (4, "interrupted")
        assert "ZeroDivisionError" in said["raised"]["error"]
        assert said["files"]["rows"] == 13
        np.testing.assert_allclose(said["files"]["valid"], evaluated(12), rtol=1e-9)
        assert len(said["files"]["saved"]) == 3
        assert said["halved"]["halvings"]
        assert (said["shorter"]["steps"], said["shorter"]["code"]) == (3, "exhausted")
    assert first["halved"]["halvings"] == second["halved"]["halvings"]
    # Of a loader, each process gives its share of the rows of a batch.
    batches = [slice(16 * (i % 4), 16 * (i % 4) + 16) for i in range(6)]
    level = lambda rows: tuple(array[rows] for array in nets.batch().inner)
    numbered = lambda rows: np.arange(nets.ROWS)[rows]
    whole = [bl.Batch(level(r), level(r), rows=bl.Levels(numbered(r), numbered(r))) for r in batches]
    expected = bl.run(bl.itd(nets.of_rows, inner=0.1, outer=0.5), *nets.start(), data=whole, steps=6)
    np.testing.assert_allclose(first["loader"]["values"], expected.trace["outer_value"], rtol=1e-9)
    # What two processes saved, one goes on with.
    assert bl.load(tmp_path / "run").steps == 6
    mesh = bl.sharded(jax.sharding.Mesh(np.array(jax.devices()[:4]), ("data",)), y="data")
    went_on = run(12, mesh=mesh, checkpoint=tmp_path / "run", resume="auto")
    np.testing.assert_allclose(went_on.trace["outer_value"], alone(), rtol=1e-9)
    assert went_on.state.v["in"].sharding.num_devices == 4


def test_what_one_process_has_otherwise_is_refused_in_all(tmp_path):
    """And whoever leaves says so: nobody waits for one that has gone."""
    first, second = ({each["part"]: each for each in said} for said in told("unlike", tmp_path))
    for part, says in {
        "x0": "x0 differs: other values in process 1 than in process 0",
        "data": "data differs: .data.inner[0] float64[64, 16]",
        "seed": "seed differs: 0 in process 0 and 1 in process 1",
        "solver": "'adjoint.rule.step_size': 0.2",
    }.items():
        for said in (first, second):
            assert said[part]["kind"] == "ValueError"
            assert says in said[part]["error"]
    assert second["argument"]["kind"] == "ValueError"
    assert second["leaves"]["kind"] == "SystemExit"
    for part, says, steps in (
        ("argument", "process 1 has left the run (ValueError: steps must be", None),
        ("leaves", "process 1 has left the run (SystemExit: 3)", 2),
        ("fails", "process 1 has left the run (RunError: the loader raised OSError", None),
        ("short", "must have as many rows in every process", 2),
    ):
        assert (first[part]["kind"], first[part]["steps"]) == ("RunError", steps)
        assert says in first[part]["error"]
    assert "as many rows in every process" in second["short"]["error"]
    assert (first["interrupted"]["kind"], first["interrupted"]["steps"]) == ("interrupted", 2)
    assert (second["interrupted"]["kind"], second["interrupted"]["steps"]) == ("interrupted", 2)


def test_two_processes_go_on_with_what_one_saved(tmp_path):
    run(6, checkpoint=tmp_path / "run")
    for said in told("go_on", tmp_path / "run"):
        np.testing.assert_allclose(said[0]["values"], alone(), rtol=1e-9)


@pytest.mark.parametrize("victim", [0, 1])
def test_one_process_killed(tmp_path, victim):
    """The other ends by itself, with an error, and what was saved is whole."""
    started = members("killed", tmp_path / "run")
    try:
        for process in started:
            for line in process.stdout:
                if "on its way" in line:
                    break
        started[victim].send_signal(signal.SIGKILL)
        _, err = started[1 - victim].communicate(timeout=PATIENCE)
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert started[1 - victim].returncode not in (0, None)
    said = "another process of this run has gone", "tasks are unhealthy", "leader task was preempted/died"
    assert any(each in err for each in said), err
    if "JaxRuntimeError" in err:  # the connection told at once
        assert (
            "bilevel.loop.errors.RunError: the run raised PeersLost (another process of this run has gone"
            in err
        )
    saved = bl.load(tmp_path / "run")
    assert saved.steps >= 10
    assert saved.steps % 10 == 0
    np.testing.assert_allclose(saved.trace["outer_value"], alone(saved.steps), rtol=1e-6)
