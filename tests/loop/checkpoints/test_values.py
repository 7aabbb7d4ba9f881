"""What hooks and probes bring along is saved as it is, or costs nothing but itself; what is not ours is left alone."""

import collections

import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.locks import Lock
from bilevel.loop.checkpoints.folder import Folder
from loop.checkpoints.tiny import go, inner


@pytest.mark.slow
def test_what_probes_return_comes_back_as_it_was(tmp_path):
    probe = lambda state, info: {"dict": {"k": 1}, "bytes": b"\xff", "array": np.arange(3)}
    go(tmp_path, 4, every=2, probe=probe)
    probes = go(tmp_path, 8, every=2, probe=probe).probes
    assert [type(each) for each in probes["dict"]] == [dict] * 4
    assert [bytes(each) for each in probes["bytes"]] == [b"\xff"] * 4
    np.testing.assert_array_equal(probes["array"], np.tile(np.arange(3), (4, 1)))


class Remembers(bl.hooks.Hook):
    def __init__(self, state=None):
        self.state = state

    def __call__(self, event): ...

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.given = state


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "state",
    [object(), cycle(), {1.5j: 0}, {"d": {frozenset(): 1}}],
    ids=["object", "cycle", "complex", "key"],
)
def test_a_hook_that_cannot_be_saved_costs_nothing_but_itself(tmp_path, state):
    with pytest.warns(
        RuntimeWarning, match=r"the memory of Remembers cannot be saved .*: the rest .* is saved"
    ):
        go(tmp_path, hooks=[Remembers(state)])
    assert go(tmp_path, 5).steps == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "value", [np.datetime64("2020-01-01"), np.longdouble(1), np.ma.array([1.0], mask=[True])], ids=str
)
def test_a_probe_of_odd_numbers_costs_no_checkpoint(tmp_path, value):
    result = go(tmp_path, probe=lambda state, info: {"odd": value})
    assert "could not be saved" not in result.status.message
    assert bl.load(tmp_path).steps == 4


@pytest.mark.slow
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
    solver = bl.aid(bl.Problem(inner=inner, outer=inner), inner=0.1, adjoint=0.1, outer=0.1)
    with pytest.raises(ValueError, match="pass the folder it was read from"):
        bl.run(solver, steps=2, resume=bl.load(tmp_path))


@pytest.mark.slow
def test_a_folder_that_was_taken_meanwhile_is_not_written_into(tmp_path):
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
