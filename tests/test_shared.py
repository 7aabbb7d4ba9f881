"""Constants beside the data: the same with every batch, without rows and without a derivative."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl

ROWS = jnp.arange(24.0).reshape(12, 2) / 24
TABLE = {"target": jnp.array([1.0, -2.0, 0.5]), "ridge": jnp.asarray(0.3)}
X0, Y0 = jnp.zeros(2), jnp.zeros(2)


def loss(x, y, batch, constants):
    return jnp.mean((batch @ (y - x) - jnp.sum(constants["target"])) ** 2) + constants["ridge"] * jnp.sum(
        y**2
    )


PROBLEM = bl.Problem(
    inner=lambda x, y, batch, *, shared: loss(x, y, batch, shared),
    outer=lambda x, y, batch, *, shared=None: loss(0 * x, y, batch, shared) + jnp.sum(x**2),
)
BAKED = bl.Problem(
    inner=lambda x, y, batch: loss(x, y, batch, TABLE),
    outer=lambda x, y, batch: loss(0 * x, y, batch, TABLE) + jnp.sum(x**2),
)
DATA = bl.Batch(inner=ROWS, outer=ROWS[:6], shared=TABLE)


def loader(data):
    return [bl.Batch(inner=ROWS[i : i + 3], outer=ROWS[:3], shared=data.shared) for i in range(0, 12, 3)]


STREAMS = {
    "full": lambda data: data,
    "epochs": lambda data: bl.epochs(data, size=3),
    "iid": lambda data: bl.iid(data, size=3),
    "blocks": lambda data: bl.blocks(data, size=3),
    "loader": loader,
}
SOLVERS = {
    "aid": lambda problem: bl.solvers.aid(problem, inner=0.1, adjoint=0.1, outer=0.05, inner_steps=2),
    "itd": lambda problem: bl.solvers.itd(problem, inner=0.1, outer=0.05, inner_steps=2),
    "saba": lambda problem: bl.solvers.saba(problem, inner=0.1, adjoint=0.1, outer=0.05),
    "vrbo": lambda problem: bl.solvers.vrbo(problem, inner=0.1, adjoint=0.1, outer=0.05, period=2),
    "f2sa": lambda problem: bl.solvers.f2sa(problem, inner=0.1, outer=0.05, penalty=lambda k: 10.0),
}
TAKES = {"saba": ("full", "blocks"), "vrbo": ("full", "epochs", "iid", "blocks")}


@pytest.mark.slow
@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_run_is_that_with_the_constants_written_in(solver, stream):
    if stream not in TAKES.get(solver, STREAMS):
        pytest.skip("this solver goes back to earlier batches")
    plain = bl.Batch(inner=ROWS, outer=ROWS[:6])
    run = lambda problem, data: bl.run(
        SOLVERS[solver](problem), X0, Y0, data=STREAMS[stream](data), steps=2 if stream == "loader" else 5
    )
    np.testing.assert_allclose(run(PROBLEM, DATA).x, run(BAKED, plain).x, rtol=1e-12)


def test_another_constant_needs_no_new_program():
    traced = []

    def inner(x, y, batch, *, shared):
        traced.append(shared)
        return jnp.mean((batch @ y - shared) ** 2) + jnp.sum((y - x) ** 2)

    problem = bl.Problem(inner=inner, outer=lambda x, y: jnp.sum(y**2))
    solver = bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.05)
    at = lambda value: bl.epochs(bl.Batch(inner=ROWS, shared=jnp.asarray(value)), size=3)
    first = bl.run(solver, X0, Y0, data=at(1.0), steps=3)
    before = len(traced)
    second = bl.run(solver, X0, Y0, data=at(2.0), steps=3)
    assert len(traced) == before
    assert not np.allclose(first.y, second.y)


def test_every_task_of_a_meta_learner_sees_the_same_constants():
    problem = bl.Problem(
        inner=lambda x, y, batch, *, shared: jnp.sum((y - batch * shared) ** 2),
        outer=lambda x, y, batch: jnp.sum((y - batch) ** 2),
    )
    solver = bl.maml(problem, inner=0.1, outer=0.05)
    tasks = jnp.arange(6.0).reshape(3, 2)
    result = bl.run(solver, X0, X0, data=bl.Batch(inner=tasks, outer=tasks, shared=jnp.asarray(2.0)), steps=3)
    adapted = solver.adapt(result.x, bl.Batch(inner=tasks, shared=jnp.asarray(2.0)))
    np.testing.assert_allclose(adapted, result.x[None] + 0.2 * (2 * tasks - result.x[None]), rtol=1e-12)


@pytest.mark.slow
def test_they_run_on_several_devices():
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))
    given = bl.sharded(mesh, data="data")
    solver = SOLVERS["aid"](PROBLEM)
    plain = bl.run(solver, X0, Y0, data=bl.epochs(DATA, size=3), steps=3)
    meshed = bl.run(solver, X0, Y0, data=bl.epochs(DATA, size=3), steps=3, options=bl.RunOptions(mesh=given))
    np.testing.assert_allclose(meshed.x, plain.x, rtol=1e-12)


def test_constants_without_a_reader_and_readers_without_constants_are_refused():
    solver = SOLVERS["aid"]
    with pytest.raises(ValueError, match="neither objective asks for it"):
        bl.run(solver(BAKED), X0, Y0, data=DATA, steps=1)
    with pytest.raises(ValueError, match=r"asks for `shared`.*bl\.Batch\(\.\.\., shared="):
        bl.run(solver(PROBLEM), X0, Y0, data=bl.Batch(inner=ROWS, outer=ROWS), steps=1)
