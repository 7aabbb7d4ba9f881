"""Which run is the same run: what may not differ for `resume="auto"`, and what may."""

import collections
import functools
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl

START = jnp.ones(2)
LAMBDA = 0.5


def inner(x, y):
    return jnp.sum((y - x) ** 2)


def go(folder, steps=4, outer=lambda x, y: jnp.sum(y**2), prox=None, **more):
    solver = bl.aid(bl.Problem(inner=inner, outer=outer, prox=prox), 0.1, 0.1, 0.1)
    return bl.run(solver, START, START, **{"steps": steps, "checkpoint": folder, "resume": "auto"} | more)


def closes_over(thing, use=lambda thing, y: jnp.sum(y**2)):
    return lambda x, y: use(thing, y)


def power(n):
    return lambda x, y: jnp.sum(jnp.abs(y) ** n)


def calls(function):
    return lambda x, y: jnp.sum(function(y))


class Weighted:
    def __init__(self, weight):
        self.weight = weight

    def __call__(self, x, y):
        return self.weight * self.of(y)

    def of(self, y):
        return jnp.sum(y**2)

    def method(self, x, y):
        return self(x, y)


class Other(Weighted):
    def of(self, y):
        return jnp.sum(jnp.abs(y))


class Net(eqx.Module):
    w: jax.Array

    def __call__(self, x, y):
        return jnp.sum(self.w * y**2)


def scaled(x, y, *, c):
    return c * jnp.sum(y**2)


PAIRS = {
    "a whole number": (power(2), power(4)),
    "words": (closes_over("a"), closes_over("b")),
    "a function": (calls(lambda y: y**2), calls(lambda y: y**4)),
    "a library's function": (calls(jnp.cosh), calls(jnp.square)),
    "a jitted function": (jax.jit(closes_over(1.0)), jax.jit(closes_over(2.0))),
    "an object": (Weighted(1.0), Weighted(2.0)),
    "a method": (Weighted(1.0).method, Weighted(2.0).method),
    "a subclass": (Weighted(1.0), Other(1.0)),
    "a partial": (functools.partial(scaled, c=1), functools.partial(scaled, c=2)),
    "a module": (closes_over(Net(jnp.ones(2))), closes_over(Net(2 * jnp.ones(2)))),
    "a module itself": (Net(jnp.ones(2)), Net(2 * jnp.ones(2))),
    "whole numbers in another order": (closes_over(np.array([1, 2])), closes_over(np.array([2, 1]))),
    "complex": (closes_over(1j), closes_over(2j)),
    "words in an array": (closes_over(np.array(["a"])), closes_over(np.array(["b"]))),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_another_objective_is_refused_and_the_same_is_not(tmp_path, kind):
    one, other = PAIRS[kind]
    go(tmp_path, outer=one)
    assert go(tmp_path, 5, outer=one).steps == 5
    with pytest.raises(ValueError, match=r"outer objective"):
        go(tmp_path, 6, outer=other)


def test_globals_that_an_objective_reads_count_and_those_it_sets_do_not(tmp_path, monkeypatch):
    here = sys.modules[__name__]
    helper = lambda y: jnp.sum(y**2)
    monkeypatch.setattr(here, "HELPER", helper, raising=False)
    monkeypatch.setattr(here, "COUNT", 0, raising=False)
    seen = []

    def outer(x, y):
        global COUNT
        COUNT += 1
        seen.append(1)
        return LAMBDA * HELPER(y)  # noqa: F821

    go(tmp_path, outer=outer)
    assert go(tmp_path, 5, outer=outer).steps == 5
    for name, value in {"LAMBDA": 0.7, "HELPER": lambda y: jnp.sum(jnp.abs(y))}.items():
        with monkeypatch.context() as changed:
            changed.setattr(here, name, value)
            with pytest.raises(ValueError, match="the outer objective"):
                go(tmp_path, 6, outer=outer)
    assert go(tmp_path, 6, outer=outer).steps == 6


def test_functions_that_share_what_they_close_over_are_walked_once(tmp_path):
    a, b = (lambda y: jnp.sum(y**2)), (lambda y: jnp.sum(y**4))
    for _ in range(40):
        a, b = b, (lambda y, _a=a, _b=b: _b(y))
    go(tmp_path, outer=lambda x, y: b(y))


def test_prox_and_warm_up_count(tmp_path):
    go(tmp_path / "prox", prox=lambda x, z, step: z)
    with pytest.raises(ValueError, match="prox"):
        go(tmp_path / "prox", 5, prox=lambda x, z, step: jnp.maximum(z, 0))
    go(tmp_path / "warm")
    with pytest.raises(ValueError, match="its warmup was 0, here it is 5"):
        go(tmp_path / "warm", 5, warmup=5)


def test_data_in_another_order_with_other_labels_or_without_a_nan(tmp_path):
    def fit(x, y, batch):
        return jnp.mean((batch[0] @ y - batch[1]) ** 2) + jnp.sum((y - x) ** 2)

    solver = bl.aid(bl.Problem(inner=fit, outer=fit), 0.01, 0.01, 0.01)
    rows = np.random.default_rng(0).normal(size=(30, 2))
    labels = np.arange(30) % 2
    spoiled = rows.copy()
    spoiled[3, 1] = np.nan

    def run(folder, steps, rows, labels):
        data = bl.Batch(inner=(rows, labels), outer=(rows, labels))
        return bl.run(
            solver, START, START, steps=steps, data=data, checkpoint=tmp_path / folder, resume="auto"
        )

    run("a", 3, rows, labels)
    for other in ((rows[::-1], labels), (rows, 1 - labels), (rows, labels[::-1])):
        with pytest.raises(ValueError, match="its data had other values"):
            run("a", 4, *other)
    assert run("b", 3, spoiled, labels).status.code is bl.Code.DIVERGED  # at once, so that nothing is saved
    assert run("b", 4, rows, labels).status.code is bl.Code.COMPLETED


def test_a_start_in_another_order(tmp_path):
    solver = bl.aid(bl.Problem(inner=inner, outer=inner), 0.1, 0.1, 0.1)
    ask = dict(checkpoint=tmp_path, resume="auto")
    bl.run(solver, jnp.linspace(-1, 1, 9), jnp.ones(9), steps=2, **ask)
    with pytest.raises(ValueError, match="it began from another x0"):
        bl.run(solver, jnp.linspace(1, -1, 9), jnp.ones(9), steps=3, **ask)


# A run that has ended


def test_hooks_get_back_what_they_remembered_of_a_run_that_has_ended(tmp_path):
    first, second = bl.hooks.Best(), bl.hooks.Best()
    go(tmp_path / "run", 20, hooks=[first], every=5)
    go(tmp_path / "run", 20, hooks=[second, bl.hooks.CSV(tmp_path / "late.csv")], every=5)
    assert (second.step, second.value) == (first.step, first.value)
    assert jax.tree.structure(second.state) == jax.tree.structure(first.state)
    np.testing.assert_array_equal(second.x, first.x)


def test_what_ended_it_may_be_changed(tmp_path):
    assert go(tmp_path / "tol", 400, tol=1e-1).status.code is bl.Code.CONVERGED
    again = go(tmp_path / "tol", 400, tol=1e-1)
    assert again.status.code is bl.Code.CONVERGED
    further = go(tmp_path / "tol", 400, tol=1e-6)
    assert further.steps > again.steps
    stop = lambda event: bl.hooks.Stop("enough")
    assert go(tmp_path / "hook", 40, hooks=[stop], every=5).steps == 5
    assert go(tmp_path / "hook", 40, hooks=[stop], every=5).steps == 5
    assert go(tmp_path / "hook", 40).status.code is bl.Code.COMPLETED


def test_a_run_that_diverged_is_gone_on_with_if_its_steps_may_be_halved(tmp_path):
    solver = bl.aid(bl.Problem(inner=inner, outer=lambda x, y: jnp.sum(y**2)), 3.0, 0.1, 0.01)
    run = lambda **more: bl.run(
        solver, START, START, steps=3000, checkpoint=tmp_path, resume="auto", every=50, **more
    )
    assert run().status.code is run().status.code is bl.Code.DIVERGED
    assert run(on_divergence="halve").steps == 3000


def test_an_ended_run_is_compared_too(tmp_path):
    go(tmp_path)
    with pytest.raises(ValueError, match="thin"):
        go(tmp_path, thin=2)
    with pytest.raises(ValueError, match="columns"):
        go(tmp_path, record=lambda state, info: {"y": state.y})


def test_while_it_blows_up_a_run_that_would_be_halved_saves_nothing(tmp_path):
    """So that going on from disk goes back to where the unbroken run goes back to."""
    solver = bl.aid(
        bl.Problem(
            inner=lambda x, y: 1.5 * jnp.sum(y**2) - jnp.sum(x * y),
            outer=lambda x, y: 0.5 * jnp.sum((y - 1) ** 2) + 0.05 * jnp.sum(x**2),
        ),
        0.8,  # beyond 2/3: it takes hundreds of steps to overflow
        0.2,
        0.05,
    )
    ask = dict(steps=6000, every=50, on_divergence="halve")
    unbroken = bl.run(solver, START, START, **ask)
    assert unbroken.halvings

    def stop(event):
        if event.step == 350:
            raise KeyboardInterrupt

    bl.run(solver, START, START, checkpoint=tmp_path, save_every=50, hooks=[stop], **ask)
    again = bl.run(solver, START, START, checkpoint=tmp_path, save_every=50, resume="auto", **ask)
    assert again.halvings == unbroken.halvings
    jax.tree.map(np.testing.assert_array_equal, (again.run, again.trace), (unbroken.run, unbroken.trace))


# What is saved


def test_what_probes_return_comes_back_as_it_was(tmp_path):
    probe = lambda state, info: {"dict": {"k": 1}, "bytes": b"\xff", "array": np.arange(3)}
    go(tmp_path, 4, every=2, probe=probe)
    probes = go(tmp_path, 8, every=2, probe=probe).probes
    assert [type(each) for each in probes["dict"]] == [dict] * 4
    assert [bytes(each) for each in probes["bytes"]] == [b"\xff"] * 4
    np.testing.assert_array_equal(probes["array"], np.tile(np.arange(3), (4, 1)))


class Remembers:
    def __init__(self, state=None):
        self.state = state

    def __call__(self, event): ...

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.given = state


def test_containers_of_a_hook_come_back(tmp_path):
    Pair = collections.namedtuple("Pair", "a b")
    state = {
        "ordered": collections.OrderedDict(b=1, a=2),
        "keys": {(1, 2): "x", np.int64(3): "y", "z": None},
        "pair": Pair(1, jnp.ones(2)),
        "scalar": np.float32(0.5),
        "words": b"\0",
    }
    go(tmp_path, hooks=[Remembers(state)])
    hook = Remembers()
    go(tmp_path, 5, hooks=[hook])
    assert hook.given["ordered"] == {"b": 1, "a": 2}
    assert hook.given["keys"] == {(1, 2): "x", 3: "y", "z": None}
    assert (hook.given["pair"].a, hook.given["pair"][0]) == (1, 1)
    assert float(hook.given["scalar"]) == 0.5


def cycle():
    ring = []
    ring.append(ring)
    return ring


@pytest.mark.parametrize(
    "state",
    [object(), cycle(), {1.5j: 0}, {"d": {frozenset(): 1}}],
    ids=["object", "cycle", "complex", "key"],
)
def test_a_hook_that_cannot_be_saved_costs_nothing_but_itself(tmp_path, state):
    with pytest.warns(
        RuntimeWarning, match=r"what Remembers remembers cannot be saved .*: the rest .* is saved"
    ):
        go(tmp_path, hooks=[Remembers(state)])
    assert go(tmp_path, 5).steps == 5


@pytest.mark.parametrize(
    "value", [np.datetime64("2020-01-01"), np.longdouble(1), np.ma.array([1.0], mask=[True])], ids=str
)
def test_a_probe_of_odd_numbers_costs_no_checkpoint(tmp_path, value):
    result = go(tmp_path, probe=lambda state, info: {"odd": value})
    assert "could not be saved" not in result.status.message
    assert bl.load(tmp_path).steps == 4


# Folders


def test_what_is_not_ours_is_left_alone(tmp_path):
    for name in ("notes.unfinished", "0", "007", "٣"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("mine")
    go(tmp_path, 12, save_every=2)
    assert len(list(tmp_path.glob("*/thesis.txt"))) == 4
    assert bl.load(tmp_path).steps == 12


@pytest.mark.parametrize(
    ("folder", "match"),
    [
        ("~no-such-user/x", "cannot be a folder"),
        ("a" * 300, "File name too long"),
        ("\udcff", "cannot be a folder|must be"),
    ],
    ids=["user", "long", "surrogate"],
)
def test_names_that_no_folder_can_have(folder, match, as_users_see_it):
    with pytest.raises((ValueError, TypeError), match=match):
        go(folder)


def test_a_loaded_result_is_not_gone_on_from(tmp_path):
    go(tmp_path)
    solver = bl.aid(bl.Problem(inner=inner, outer=inner), 0.1, 0.1, 0.1)
    with pytest.raises(ValueError, match="pass the folder it was read from"):
        bl.run(solver, steps=2, resume=bl.load(tmp_path))


def test_a_folder_that_was_taken_meanwhile_is_not_written_into(tmp_path):
    from bilevel.locks import Lock

    folder, saver = tmp_path / "run", bl.hooks.Checkpoint(tmp_path / "run", save_every=2)
    held = []

    def steal(event):
        if event.step == 4:
            saver._settle()
            folder.rename(tmp_path / "gone")
            folder.mkdir()
            held.append(Lock(folder))

    with pytest.warns(RuntimeWarning, match="another run has taken the folder"):
        go(None, 8, hooks=[steal, saver], every=2)
    held[0].close()


def test_warnings_that_are_errors_do_not_end_a_run(tmp_path, monkeypatch):
    from bilevel.loop.checkpoints.folder import Folder

    monkeypatch.setattr(
        Folder, "_write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    result = go(tmp_path, 8, save_every=2)  # pytest makes errors of warnings
    assert result.steps == 8
    assert "No space left on device" in result.status.message


@pytest.mark.parametrize("stride", [-2, 0, 2.5, "a"])
def test_a_hook_s_stride_is_a_number_of_steps(tmp_path, stride, as_users_see_it):
    hook = Remembers()
    hook.stride = stride
    with pytest.raises(ValueError, match="the stride of Remembers must be a whole number of at least 1"):
        go(tmp_path, hooks=[hook])
