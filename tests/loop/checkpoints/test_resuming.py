"""A run that goes on from disk does what an unbroken one does, to the last bit."""

import os
import signal
from datetime import timedelta

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import bilevel as bl
from run_options import with_options

ROWS = 40


def inner(x, y, batch, *, rows, key):
    fit = batch @ y["w"] - y["b"]
    noise = 0.01 * jax.random.normal(key, y["w"].shape, y["w"].dtype)
    return jnp.mean(jax.nn.sigmoid(x["weight"][rows]) * fit**2) + 0.1 * jnp.sum((y["w"] + noise) ** 2)


def outer(x, y, batch):
    return jnp.mean((batch @ y["w"] - 1.0) ** 2), {"size": jnp.sum(y["w"] ** 2)}


PROBLEM = bl.Problem(inner=inner, outer=outer)
SOLVER = bl.aid(PROBLEM, inner=optax.adam(0.05), adjoint=0.1, outer=optax.adam(0.1))
X0 = {"weight": jnp.zeros(ROWS)}
Y0 = {"w": jnp.ones(3), "b": jnp.zeros(())}
ARRAYS = jnp.asarray(np.random.default_rng(0).normal(size=(2 * ROWS, 3)))
DATA = bl.epochs(bl.Batch(inner=ARRAYS[:ROWS], outer=ARRAYS[ROWS:]), size=8, seed=2)


def go(steps, folder=None, solver=SOLVER, **more):
    saved = {"checkpoint": folder, "resume": "auto"} if folder is not None else {}
    return bl.run(
        solver, X0, Y0, **with_options({"data": DATA, "seed": 5, "warmup": 4, "steps": steps} | saved | more)
    )


def same(a, b):
    assert jax.tree.structure(a.run) == jax.tree.structure(b.run)
    jax.tree.map(np.testing.assert_array_equal, (a.run, a.trace), (b.run, b.trace))
    assert a.steps == b.steps


class Crash(Exception):
    pass


def crash_at(step):
    def hook(event):
        if event.step >= step:
            raise Crash

    return hook


@pytest.mark.slow
@pytest.mark.parametrize("thin", [None, 3])
def test_the_same_call_made_again_ends_as_if_nothing_had_happened(tmp_path, thin):
    probe = lambda state, info: {"value": info.outer_value, "word": "a word"}
    ask = dict(every=2, probe=probe, thin=thin)
    for step in (5, 9, 14):
        with pytest.raises(bl.RunError):
            go(20, tmp_path, save_every=2, hooks=[crash_at(step)], **ask)
    again, unbroken = go(20, tmp_path, **ask), go(20, **ask)
    same(again, unbroken)
    for name, column in unbroken.probes.items():
        np.testing.assert_array_equal(again.probes[name], column)
    assert again.status.code is bl.Code.COMPLETED


@pytest.mark.slow
def test_what_hooks_remember_is_saved_too(tmp_path):
    def hooks(name):
        best, stop = bl.hooks.Best(), bl.hooks.EarlyStopping("outer/size", patience=7, mode="max")
        return (
            best,
            stop,
            bl.hooks.CSV(tmp_path / f"{name}.csv"),
            bl.hooks.JSONLines(tmp_path / f"{name}.json"),
        )

    unbroken = go(60, every=2, hooks=(whole := hooks("whole")))
    assert unbroken.status.code is bl.Code.STOPPED
    with pytest.raises(
        bl.RunError
    ):  # between two checkpoints: what the files hold of later steps is taken back
        go(60, tmp_path / "run", every=2, save_every=4, hooks=[*hooks("parts"), crash_at(unbroken.steps - 5)])
    resumed = go(60, tmp_path / "run", every=2, save_every=4, hooks=(parts := hooks("parts")))
    same(resumed, unbroken)
    assert resumed.status.message == unbroken.status.message
    assert (parts[0].step, parts[0].value) == (whole[0].step, whole[0].value)
    jax.tree.map(np.testing.assert_array_equal, parts[0].state, whole[0].state)
    for kind in ("csv", "json"):
        assert (tmp_path / f"parts.{kind}").read_text() == (tmp_path / f"whole.{kind}").read_text()


@pytest.mark.slow
def test_a_run_that_has_ended_is_read_and_not_run_again(tmp_path):
    first = go(6, tmp_path)
    calls = []
    again = go(6, tmp_path, hooks=[calls.append])
    same(again, first)
    assert again.status == first.status
    assert not calls
    same(go(9, tmp_path), go(9))  # more is asked for
    with pytest.raises(ValueError, match=r"has taken 9 steps already, .*steps=8 is how many to take in all"):
        go(8, tmp_path)


@pytest.mark.slow
def test_a_folder_goes_on_like_the_result_that_it_holds(tmp_path):
    half = go(5, tmp_path)
    rest = bl.run(SOLVER, data=DATA, steps=4, resume=tmp_path)
    same(rest, bl.run(SOLVER, data=DATA, steps=4, resume=half))
    slower = bl.aid(PROBLEM, inner=optax.adam(0.01), adjoint=0.1, outer=optax.adam(0.1))
    other = bl.run(slower, data=DATA, steps=4, resume=tmp_path, checkpoint=tmp_path / "other")
    same(other, bl.run(slower, data=DATA, steps=4, resume=half))
    same(
        bl.run(slower, data=DATA, steps=1, resume=tmp_path / "other"),
        bl.run(slower, data=DATA, steps=1, resume=other),
    )


@pytest.mark.slow
def test_steps_and_times_say_when(tmp_path):
    saved = []
    watch = lambda event: saved.append(
        (event.step, *sorted(p.name for p in tmp_path.iterdir() if p.name.isdecimal()))
    )
    go(11, tmp_path, save_every=4, hooks=[watch])
    assert [step for step, *_ in saved] == [4, 8, 11]  # chunks end where something is to be saved
    assert bl.load(tmp_path).steps == 11
    go(11, tmp_path / "often", save_every=timedelta(microseconds=1), every=1)
    assert sorted(int(p.name) for p in (tmp_path / "often").iterdir() if p.name.isdecimal()) == [9, 10, 11]


class Net(eqx.Module):
    w: jax.Array
    b: jax.Array
    name: str = eqx.field(static=True)


@pytest.mark.slow
def test_types_that_are_not_python_s_own(tmp_path):
    problem = bl.Problem(
        inner=lambda x, y: jnp.sum((y.w - x["a"][0]) ** 2) + y.b**2,
        outer=lambda x, y: jnp.sum((y.w - 1.0) ** 2),
    )
    solver = bl.soba(problem, inner=0.1, adjoint=0.1, outer=0.1)
    x0, y0 = {"a": (jnp.ones(2), [jnp.zeros((0, 2))])}, Net(jnp.zeros(2), jnp.zeros(()), "net")
    unbroken = bl.run(solver, x0, y0, steps=8)
    bl.run(solver, x0, y0, steps=5, checkpoint=tmp_path)
    same(bl.run(solver, x0, y0, steps=3, resume=tmp_path), unbroken)
    loaded = bl.load(tmp_path)
    np.testing.assert_array_equal(loaded.y.w, bl.run(solver, x0, y0, steps=5).y.w)
    assert type(loaded.x["a"]) is tuple
    assert loaded.x["a"][1][0].shape == (0, 2)
    assert loaded.state.v.b.shape == ()
    with pytest.raises(ValueError, match=r"has a Net in it, .*pass x0= and y0="):
        bl.run(solver, steps=3, resume=tmp_path)
    with pytest.raises(AttributeError, match="has no part 'c': it has w, b"):
        _ = loaded.y.c


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_every_dtype_comes_back(tmp_path, dtype):
    problem = bl.Problem(inner=lambda x, y: jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum(y**2))
    solver, start = bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.1), jnp.ones(3, dtype)
    bl.run(solver, start, start, steps=4, checkpoint=tmp_path)
    same(bl.run(solver, steps=3, resume=tmp_path), bl.run(solver, start, start, steps=7))
    assert bl.load(tmp_path).x.dtype == dtype


class Positioned:
    """Batches of random numbers from a place that can be asked for and set."""

    def __init__(self):
        self.rng = np.random.default_rng(1)

    def __iter__(self):
        return self

    def __next__(self):
        part = self.rng.normal(size=(8, 3))
        return bl.Batch(inner=part, outer=part, rows=bl.Levels(inner=np.arange(8), outer=None))

    def get_state(self):
        return {"rng": self.rng.bit_generator.state["state"], "bytes": b"\0\xff", "array": np.arange(3)}

    def set_state(self, state):
        assert state["bytes"] == b"\0\xff"
        assert state["array"].tolist() == [0, 1, 2]
        self.rng.bit_generator.state = self.rng.bit_generator.state | {"state": state["rng"]}


@pytest.mark.slow
def test_a_loader_is_moved_to_where_it_stood(tmp_path):
    ask = dict(every=2, save_every=2)
    with pytest.raises(bl.RunError):
        go(12, tmp_path, data=Positioned(), hooks=[crash_at(5)], **ask)
    same(go(12, tmp_path, data=Positioned(), **ask), go(12, data=Positioned()))


@pytest.mark.slow
def test_a_loader_that_cannot_be_moved_is_said_so_at_once(tmp_path):
    forgetful = lambda: iter([next(iter(Positioned())) for _ in range(12)])
    with pytest.warns(RuntimeWarning, match="can be loaded with bl.load but not resumed: give it"):
        go(3, tmp_path, data=forgetful())
    assert bl.load(tmp_path).steps == 3
    with pytest.raises(ValueError, match="cannot say where it stands"):
        go(6, tmp_path, data=forgetful())


@pytest.mark.slow
def test_another_number_of_devices(tmp_path):
    problem = bl.Problem(inner=lambda x, y: jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum((y - 1.0) ** 2))
    solver = bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.1)
    start = jnp.arange(16.0)
    on = lambda n: jax.device_put(
        start, NamedSharding(Mesh(np.array(jax.devices()[:n]), ("i",)), PartitionSpec("i"))
    )
    unbroken = bl.run(solver, start, start, steps=9)
    bl.run(solver, on(8), on(8), steps=5, checkpoint=tmp_path)
    for n in (1, 2, 8):
        result = bl.run(solver, on(n), on(n), steps=4, resume=tmp_path)
        assert len(result.y.sharding.device_set) == n
        np.testing.assert_allclose(result.x, unbroken.x, rtol=1e-12)
    assert len(bl.run(solver, steps=4, resume=tmp_path).y.sharding.device_set) == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_save_and_leave_with_the_documented_status(tmp_path, capsys, number):
    ask = dict(every=2, save_every=1000)
    once = iter([number])

    def signaled(event):
        if event.step >= 4:
            for each in once:
                os.kill(os.getpid(), each)

    if number == signal.SIGTERM:
        with pytest.raises(SystemExit) as left:
            go(12, tmp_path, hooks=[signaled], **ask)
        assert left.value.code == 143
        assert "ended by SIGTERM after 4 steps, saved in" in capsys.readouterr().err
        assert signal.getsignal(number) is signal.SIG_DFL
    else:
        assert go(12, tmp_path, hooks=[signaled], **ask).status.code.exit_status == 130
    assert bl.load(tmp_path).steps == 4
    same(go(12, tmp_path, **ask), go(12))


@pytest.mark.slow
def test_an_interrupted_warm_up_begins_again(tmp_path):
    def stop(event):
        raise Crash

    class AtOnce(bl.hooks.Hook):
        def begin(self, event):
            raise Crash

        def __call__(self, event):
            pass

    with pytest.raises(bl.RunError):
        go(6, tmp_path, hooks=[AtOnce()])
    same(go(6, tmp_path), go(6))


@pytest.mark.slow
def test_halved_steps_are_kept_across_processes(tmp_path):
    """A run that halved its steps goes on with them, and ends as the unbroken one."""
    problem = bl.Problem(inner=lambda x, y: jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum(y**2))
    solver, start = bl.aid(problem, inner=0.4, adjoint=0.4, outer=3.0), jnp.ones(2)
    ask = dict(every=5, on_divergence="halve")
    unbroken = bl.run(solver, start, start, steps=3000, **with_options(ask))
    assert unbroken.halvings
    bl.run(solver, start, start, steps=2000, checkpoint=tmp_path, **with_options(ask))
    again = bl.run(solver, start, start, steps=3000, checkpoint=tmp_path, resume="auto", **with_options(ask))
    assert again.halvings == unbroken.halvings
    same(again, unbroken)
