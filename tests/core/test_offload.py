"""x in the host's memory between two steps: the same run, to the last bit."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel.loop import offload

N = 50


def works() -> bool:
    try:
        return offload.check_offload("x")
    except ValueError:  # says to upgrade JAX
        return False


pytestmark = pytest.mark.skipif(not works(), reason="this JAX leaves everything on the device")


@pytest.fixture(autouse=True)
def _as_people_have_it():
    with jax.numpy_dtype_promotion("standard"):
        yield


def setting(step=0.1):
    rng = np.random.default_rng(0)
    rows = lambda n: (jnp.asarray(rng.normal(size=(n, 3))), jnp.asarray(rng.normal(size=n)))
    fit = lambda y, data: (data[0] @ y - data[1]) ** 2
    inner = lambda x, y, data: jnp.mean(jax.nn.sigmoid(x) * fit(y, data)) + 0.1 * jnp.sum(y**2)
    outer = lambda x, y, data: jnp.mean(fit(y, data))
    solver = bl.aid(bl.Problem(inner=inner, outer=outer), step, step, optax.adam(0.1))
    return solver, (jnp.zeros(N), jnp.zeros(3)), bl.Batch(inner=rows(N), outer=rows(20))


def kinds(tree):
    return {leaf.sharding.memory_kind for leaf in jax.tree.leaves(tree) if leaf.ndim}


@pytest.mark.parametrize("replay", ["device", "host", "off"])
@pytest.mark.parametrize("loader", [False, True])
def test_the_same_run(replay, loader):
    solver, start, data = setting()
    resting = []
    look = lambda event: resting.append((kinds((event.run.x, event.state.outer)), kinds(event.run.y)))
    given = lambda: [data] * 11 if loader else data
    plain = bl.run(solver, *start, data=given(), steps=9, warmup=2)
    aside = bl.run(
        solver, *start, data=given(), steps=9, warmup=2, offload="x", every=4, hooks=[look], replay=replay
    )
    jax.tree.map(np.testing.assert_array_equal, (aside.run, aside.trace), (plain.run, plain.trace))
    assert resting == [({"pinned_host"}, {"device"})] * 3
    assert kinds(aside.run) == {"device"}


def test_resumed_with_and_without():
    solver, start, data = setting()
    whole = bl.run(solver, *start, data=data, steps=9)
    half = bl.run(solver, *start, data=data, steps=4, offload="x", replay="host")
    for option in (None, "x"):
        rest = bl.run(solver, data=data, steps=5, resume=half, offload=option, replay="host")
        jax.tree.map(np.testing.assert_array_equal, rest.run, whole.run)


@pytest.mark.parametrize(
    ("before", "after", "resume"), [("x", "x", "auto"), (None, "x", "folder"), ("x", None, "auto")]
)
def test_checkpoints_with_and_without(tmp_path, before, after, resume):
    solver, start, data = setting()
    whole = bl.run(solver, *start, data=data, steps=9)
    saving = bl.hooks.Checkpoint(tmp_path, save_every=2)
    bl.run(solver, *start, data=data, steps=5, offload=before, hooks=[saving])
    if resume == "auto":
        again = lambda: bl.run(
            solver, *start, data=data, steps=9, offload=after, checkpoint=tmp_path, resume="auto"
        )
        rest = [again(), again()]  # the second has nothing left to do
    else:
        rest = [bl.run(solver, *start, data=data, steps=4, offload=after, resume=tmp_path)]
    for each in rest:
        jax.tree.map(np.testing.assert_array_equal, (each.run, each.trace), (whole.run, whole.trace))
        assert kinds(each.run) == {"device"}


@pytest.mark.parametrize("replay", ["device", "host"])
def test_a_run_that_diverges_goes_back_all_the_same(replay):
    solver, start, data = setting(step=50.0)
    plain = bl.run(solver, *start, data=data, steps=60, every=60)
    aside = bl.run(solver, *start, data=data, steps=60, every=60, offload="x", replay=replay)
    assert aside.status == plain.status
    assert aside.status.code is bl.Code.DIVERGED
    jax.tree.map(np.testing.assert_array_equal, aside.run, plain.run)


def test_a_backend_without_such_memory_is_said(monkeypatch):
    solver, start, data = setting()
    with pytest.raises(ValueError, match='offload must be "x" or None, not'):
        bl.run(solver, *start, data=data, steps=2, offload="y")
    monkeypatch.setattr(offload, "KIND", "far_away")
    with pytest.raises(ValueError, match=r"of the kind far_away, but .* has .*pinned_host"):
        bl.run(solver, *start, data=data, steps=2, offload="x")
