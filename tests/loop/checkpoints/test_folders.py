"""What is wrong with a folder is said: damage, another run, another writer, a disk that takes no more."""

import json
import os
import shutil
import subprocess
import sys
import zlib
from datetime import timedelta
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from faults import damage
from faults.damage import PROBLEM, SOLVER as AID, X0, Y0

import bilevel as bl
from bilevel.locks import Lock
from bilevel.loop.checkpoints import folder as folder_module
from run_options import with_options


def go(steps, folder, solver=AID, x0=X0, **more):
    return bl.run(
        solver,
        x0,
        Y0,
        **with_options({"steps": steps, "checkpoint": folder, "resume": "auto"} | more),
    )


def numbers(folder):
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


@pytest.fixture(scope="module")
def whole():
    return bl.run(AID, X0, Y0, steps=12)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints of steps 4, 6 and 8."""
    folder = tmp_path_factory.mktemp("saved")
    bl.run(AID, X0, Y0, steps=8, checkpoint=folder, options=bl.RunOptions(save_every=2))
    assert [json.loads(contents(folder, n)["text"])["steps"] for n in numbers(folder)] == [4, 6, 8]
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "run"))


def contents(folder, number):
    return json.loads((folder / str(number) / "contents.json").read_text())


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, (a.run, a.trace), (b.run, b.trace))


@pytest.mark.slow
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before():
    """Every file of it, in every way; what is read is compared with a run of as many steps."""
    found = damage.damaged_checkpoints()
    assert set(found) == {"truncated", "changed", "emptied", "deleted"}
    for outcomes in found.values():
        assert set(outcomes) == {"the one before used"}
        assert sum(outcomes.values()) >= 5  # of the arrays and the contents


@pytest.mark.slow
def test_a_run_goes_on_from_the_one_before_and_sets_the_damaged_one_aside(folder, whole):
    damage.truncated(folder / "4" / "contents.json")
    with pytest.warns(RuntimeWarning, match="checkpoint 4 .* is damaged"):
        result = go(12, folder, save_every=2)
    same(result, whole)
    assert (folder / "4.damaged").is_dir()
    same(go(12, folder), whole)  # without a warning


@pytest.mark.slow
def test_arrays_that_orbax_reads_but_that_are_not_what_was_written(folder, saved):
    """As if a checkpoint had been put together from two."""
    shutil.rmtree(folder / "4" / "arrays")
    shutil.copytree(saved / "3" / "arrays", folder / "4" / "arrays")
    with pytest.warns(RuntimeWarning, match=r"arrays/.* is (missing|not what was written)"):
        assert bl.load(folder).steps == 6


def test_all_damaged(folder):
    for number in numbers(folder):
        (folder / str(number) / "contents.json").unlink()
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(ValueError, match=r"no checkpoint in .* is whole \(3 damaged\): start"),
    ):
        go(12, folder)


def other_problem():
    return bl.Problem(
        inner=lambda x, y: jnp.sum((y - 2 * x["a"]) ** 2), outer=lambda x, y: jnp.sum((y - 1.0) ** 2)
    )


BATCH = bl.Batch(inner=jnp.ones(3), outer=jnp.ones(3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "match"),
    [
        (dict(solver=bl.itd(PROBLEM, inner=0.1, outer=0.1)), r"its solver was AID.*here it is ITD"),
        (dict(solver=bl.aid(other_problem(), inner=0.1, adjoint=0.1, outer=0.1)), "its inner objective was"),
        (
            dict(solver=bl.aid(PROBLEM, inner=0.2, adjoint=0.1, outer=0.1)),
            r"inner\.step_size was 0\.1, here it is 0\.2",
        ),
        (dict(solver=bl.aid(PROBLEM, inner=0.1, adjoint=0.1, outer=0.1, inner_steps=2)), "its solver was"),
        (dict(x0=X0 | {"a": jnp.ones(3)}), "it started from another x0"),
        (dict(x0=X0 | {"big": jnp.ones(4)}), "its x was"),
        (dict(seed=1), "its seed was 0, here it is 1"),
        (dict(steps=7), "has taken 8 steps already"),
        (dict(record=lambda state, info: {"more": state.y}), "the record had other code"),
        (dict(thin=2), "the earlier run had thin=None"),
        (dict(resume=None), 'there is a run in .* already: pass resume="auto"'),
    ],
)
def test_another_run_is_refused_with_what_differs(saved, change, match):
    before = sorted(map(str, saved.rglob("*")))
    with pytest.raises(ValueError, match=match):
        go(**{"steps": 12, "folder": saved} | change)
    assert sorted(map(str, saved.rglob("*"))) == before


@pytest.mark.slow
def test_captured_numbers_and_arrays_count(tmp_path):
    def solver(number, array, rate):
        inner = lambda x, y: number * jnp.sum((y - x) ** 2) + jnp.sum(array * y)
        return bl.aid(
            bl.Problem(inner=inner, outer=lambda x, y: jnp.sum(y**2)),
            inner=optax.sgd(rate),
            adjoint=0.1,
            outer=0.1,
        )

    start, ones = jnp.ones(2), np.ones(2)
    run = lambda steps, *numbers: bl.run(
        solver(*numbers), start, start, steps=steps, checkpoint=tmp_path, resume="auto"
    )
    run(2, 1.5, ones, 0.1)
    assert run(3, 1.5, ones.copy(), 0.1).steps == 3
    for numbers, match in [
        ((1.6, ones, 0.1), "the inner objective read number = 1.5, here it is 1.6"),
        ((1.5, 2 * ones, 0.1), "the inner objective read the array array, which had other values"),
        ((1.5, ones, 0.2), r"inner.numbers\['step_size'\] was -0.1, here it is -0.2"),
    ]:
        with pytest.raises(ValueError, match=match):
            run(4, *numbers)


@pytest.mark.slow
def test_data_of_other_values_or_another_seed(tmp_path):
    problem = bl.Problem(
        inner=lambda x, y, batch: jnp.mean((batch - y[0]) ** 2) + jnp.sum((y - x) ** 2),
        outer=lambda x, y, batch: jnp.mean((batch - y[0]) ** 2),
    )
    rows = jnp.arange(12.0).reshape(12, 1)
    data = lambda rows, seed: bl.epochs(bl.Batch(inner=rows, outer=rows), size=4, seed=seed)
    run = lambda steps, *which: bl.run(
        bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.1),
        jnp.ones(1),
        jnp.ones(1),
        steps=steps,
        data=data(*which),
        checkpoint=tmp_path,
        resume="auto",
    )
    run(2, rows, 0)
    for which, match in [
        ((rows + 1, 0), "its data had other values"),
        ((rows, 1), "drawn with another seed"),
        ((rows[:8], 0), "its data was"),
    ]:
        with pytest.raises(ValueError, match=match):
            run(4, *which)


def rewritten(folder, **changes):
    """The newest contents with something else in them, and sealed again."""
    sealed = contents(folder, 4)
    text = json.dumps(json.loads(sealed["text"]) | changes)
    (folder / "4" / "contents.json").write_text(
        json.dumps({"text": text, "checksum": zlib.crc32(text.encode())})
    )


def test_another_version(folder):
    made_by = {"bilevel": "0.1.9", "jax": "0.10.0", "device": "cpu"}
    rewritten(folder, made_by=made_by)
    with pytest.raises(ValueError, match=rf"written by bilevel 0\.1\.9, this is {bl.__version__}"):
        go(12, folder)
    assert bl.load(folder).steps == 8  # reading is another matter
    rewritten(folder, made_by=made_by, format=99)
    with pytest.raises(ValueError, match=r"have format 99, .* read them with the version that wrote them"):
        bl.load(folder)


@pytest.mark.slow
def test_a_second_run_in_the_same_folder_is_refused(tmp_path, whole):
    refused = []

    def second(event):
        with pytest.raises(
            ValueError, match=r"another run is writing checkpoints into .*: wait for it"
        ) as caught:
            go(12, tmp_path)
        refused.append(str(caught.value))
        go(2, tmp_path / "elsewhere")

    same(go(12, tmp_path, hooks=[second], every=6), whole)
    assert len(refused) == 2
    same(go(12, tmp_path), whole)  # it is free again


@pytest.mark.filterwarnings("ignore:os.fork")  # by JAX, whose threads the child has not
def test_a_forked_child_does_not_hold_the_folder(tmp_path):
    lock = Lock(tmp_path)
    ready, done = os.pipe(), os.pipe()
    if (child := os.fork()) == 0:
        os.write(ready[1], b"r")
        os.read(done[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        with pytest.raises(BlockingIOError):
            Lock(tmp_path)
        lock.close()
        Lock(tmp_path).close()  # though the child still lives
    finally:
        os.write(done[1], b"d")
        os.waitpid(child, 0)


def test_a_second_process_is_refused_and_a_dead_one_is_not(folder, whole):
    hold = f"""
import fcntl, os, time
fcntl.flock(os.open({str(folder)!r}, os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""
    other = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match="another run is writing checkpoints"):
            go(12, folder)
        assert bl.load(folder).steps == 8
    finally:
        other.kill()
        other.communicate()
    same(go(12, folder), whole)


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        OSError(30, "Read-only file system"),
        ValueError("x [os_error_code='28']"),
    ],
    ids=str,
)
def test_a_disk_that_takes_no_more_does_not_end_the_run(tmp_path, whole, monkeypatch, error):
    times = []

    def refuse(self, number, contents, arrays):
        times.append(number)
        if len(times) != 2:
            raise error
        return write(self, number, contents, arrays)

    write = folder_module.Folder._write
    monkeypatch.setattr(folder_module.Folder, "_write", refuse)
    with pytest.warns(
        RuntimeWarning, match=r"step 3 could not be saved in .* \((No space|Read-only)"
    ) as warned:
        result = go(12, tmp_path, save_every=3)
    assert len(warned) == 1
    same(result, whole)
    assert result.status.code is bl.Code.COMPLETED
    assert "Not every checkpoint could be saved" in result.status.message
    assert "the last one that is, is of step 6" in result.status.message
    monkeypatch.undo()
    same(go(12, tmp_path), whole)


def test_a_full_disk_is_seen_before_it_is_written_to(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        result = go(4, tmp_path)
    assert result.steps == 4
    assert "none is" in result.status.message
    assert sorted(os.listdir(tmp_path)) == []


@pytest.mark.slow
def test_a_folder_that_vanishes_is_made_again(tmp_path, whole):
    saver = bl.hooks.Checkpoint(tmp_path / "run", save_every=2)

    def remove(event):
        if event.step == 6:
            saver._settle()  # not under the hands of the writer
            shutil.rmtree(tmp_path / "run")

    same(go(12, None, hooks=[remove, saver], every=2), whole)
    assert bl.load(tmp_path / "run").steps == 12


def test_a_file_in_place_of_the_folder_is_reported_as_such(tmp_path):
    folder = tmp_path / "run"
    saver = bl.hooks.Checkpoint(folder, save_every=2)

    def replace(event):
        if event.step == 4:
            saver._settle()
            shutil.rmtree(folder)
            folder.write_text("in the way")

    with pytest.warns(RuntimeWarning, match="Not a directory"):
        result = go(8, None, hooks=[replace, saver], every=2)
    assert result.steps == 8
    assert folder.read_text() == "in the way"


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (dict(checkpoint="/proc/nowhere"), "cannot write checkpoints into '/proc/nowhere'"),
        (dict(checkpoint=3), "checkpoint must be a folder"),
        (dict(checkpoint=""), "checkpoint must be a folder"),
        (dict(checkpoint="a\0b"), "checkpoint must be a folder"),
        (dict(checkpoint=__file__), "is a file: pass a folder"),
        (dict(save_every=0), "save_every must be a whole number of at least 1"),
        (dict(save_every=1.5), "save_every must be a whole number"),
        (dict(save_every=timedelta(0)), "save_every must be a positive time"),
        (dict(checkpoint=None, save_every=3), "says how often to save, but not where"),
        (dict(checkpoint=None, resume="auto"), "pass checkpoint=folder too"),
        (dict(resume="nowhere"), "has no checkpoint in it"),
        (
            dict(resume=7),
            'resume must be the result of an earlier run, not int: .* a folder of checkpoints, or "auto"',
        ),
        (dict(hooks=[bl.hooks.Checkpoint("elsewhere")]), "saves into one folder"),
    ],
)
def test_bad_input(tmp_path, as_users_see_it, bad, match):
    with pytest.raises((ValueError, TypeError), match=match):
        bl.run(AID, X0, Y0, **with_options({"steps": 3, "checkpoint": tmp_path / "new"} | bad))


def test_a_hook_of_ours_in_the_wrong_place(tmp_path):
    hook = bl.hooks.Checkpoint(tmp_path)
    with pytest.raises((TypeError, ValueError), match="Checkpoint"):
        bl.sweep([AID], X0, Y0, steps=2, hooks=[hook])
    event = bl.hooks.Event(0, 2, bl.start(AID, X0, Y0), None, {}, 0.0, "aid")
    with pytest.raises(RuntimeError, match=r"belongs into hooks= of bl\.run"):
        hook.begin(event)


@pytest.mark.slow
def test_the_hook_is_the_same_as_the_option(tmp_path, whole):
    go(7, None, hooks=[bl.hooks.Checkpoint(tmp_path, save_every=3, keep=1)])
    assert len(numbers(tmp_path)) == 1
    same(go(12, None, hooks=[bl.hooks.Checkpoint(tmp_path)]), whole)


def test_without_orbax_the_message_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    for use in (lambda: go(3, tmp_path), lambda: bl.load(tmp_path), lambda: bl.hooks.Checkpoint(tmp_path)):
        with pytest.raises(ImportError, match=r'pip install "bilevel\[checkpoint\]"'):
            use()


def test_what_a_killed_writer_left_is_removed(folder, whole):
    (folder / "5.unfinished" / "arrays").mkdir(parents=True)
    same(go(12, folder), whole)
    assert not list(folder.glob("*.unfinished"))
