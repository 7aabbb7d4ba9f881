"""Runs so large that every step is a call of its own: the same runs, to rounding, with all that goes with them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.loop import single_run

ROWS = 24


@pytest.fixture
def long(monkeypatch):
    """Makes every run from here on a large one."""
    return lambda: monkeypatch.setattr(single_run, "LONG_STEPS", 0)


def setting(step=0.1):
    rng = np.random.default_rng(0)
    rows = lambda n: (jnp.asarray(rng.normal(size=(n, 3))), jnp.asarray(rng.normal(size=n)))
    fit = lambda y, data: (data[0] @ y - data[1]) ** 2

    def inner(x, y, data, *, rows):
        return jnp.mean(jax.nn.sigmoid(x[rows]) * fit(y, data)) + 0.1 * jnp.sum(y**2)

    problem = bl.Problem(inner=inner, outer=lambda x, y, data: jnp.mean(fit(y, data)))
    data = bl.epochs(bl.Batch(inner=rows(ROWS), outer=rows(ROWS)), size=8, seed=1)
    return bl.aid(problem, inner=step, adjoint=step, outer=0.5), (jnp.zeros(ROWS), jnp.zeros(3)), data


@pytest.mark.slow
@pytest.mark.parametrize("replay", ["device", "host", "off"])
def test_the_same_run(long, replay):
    solver, start, data = setting()
    loop = bl.run(solver, *start, data=data, steps=30, warmup=3)
    long()
    told = []
    hook = lambda event: told.append((event.step, float(event.info.outer_value)))
    run = bl.run(
        solver,
        *start,
        data=data,
        steps=30,
        warmup=3,
        options=bl.RunOptions(every=7, snapshots=replay),
        hooks=[hook],
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11),
        (run.x, run.y, run.trace),
        (loop.x, loop.y, loop.trace),
    )
    assert [step for step, _ in told] == [7, 14, 21, 28, 30]
    np.testing.assert_array_equal([value for _, value in told], run.trace["outer_value"][[6, 13, 20, 27, 29]])
    program = solver.problem.memory.values("programs")[-1]
    assert program.donating.chunk._cache_size() == 0  # small runs are not donated
    assert (program.donating if replay != "device" else program.keeping).one._cache_size() == 1


@pytest.mark.slow
def test_resumed_bit_for_bit(long, tmp_path):
    long()
    solver, start, data = setting()
    whole = bl.run(solver, *start, data=data, steps=12)
    half = bl.run(solver, *start, data=data, steps=5)
    rest = bl.run(solver, data=data, steps=7, resume=half)
    jax.tree.map(np.testing.assert_array_equal, (rest.run, rest.trace), (whole.run, whole.trace))
    bl.run(solver, *start, data=data, steps=5, checkpoint=tmp_path)
    saved = bl.run(solver, *start, data=data, steps=12, checkpoint=tmp_path, resume="auto")
    jax.tree.map(np.testing.assert_array_equal, (saved.run, saved.trace), (whole.run, whole.trace))


@pytest.mark.slow
@pytest.mark.parametrize("replay", ["device", "host"])
def test_it_goes_back_when_it_breaks(long, replay):
    solver, start, data = setting(step=50.0)
    loop = bl.run(solver, *start, data=data, steps=400)
    long()
    run = bl.run(solver, *start, data=data, steps=400, options=bl.RunOptions(snapshots=replay))
    assert loop.status.code is run.status.code is bl.Code.DIVERGED
    assert abs(run.steps - loop.steps) <= 1  # rounding may tip the last one
    assert len(run.trace["outer_value"]) == run.steps
    again = bl.run(solver, *start, data=data, steps=run.steps)
    jax.tree.map(np.testing.assert_array_equal, run.run, again.run)
