"""What every solver must do on every problem of the table, whatever its mathematics."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import bilevel as bl
from zoo import PROBLEMS, ROWS

STEPS = 6

every_pair = pytest.mark.parametrize(
    ("row", "problem"), [(row, problem) for row in ROWS for problem in row.problems], ids=str
)


def build(row, problem, dtype=jnp.float64):
    case = PROBLEMS[problem](dtype)
    return case, row.make(case.problem, case.L)


def assert_trees_equal(a, b, **tolerance):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(left, right, **tolerance)


def moved(a, b) -> bool:
    return any(not np.array_equal(p, q) for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@every_pair
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=["float32", "float64"])
def test_a_step_keeps_the_state_s_type(row, problem, dtype):
    case, solver = build(row, problem, dtype)
    state = solver.init(case.x0, case.y0, case.data)
    describe = lambda tree: jax.tree.map(
        lambda a: (a.shape, a.dtype, a.weak_type), jax.eval_shape(lambda: tree)
    )
    after, info = jax.eval_shape(solver.step, state, case.data)
    assert jax.tree.map(lambda a: (a.shape, a.dtype, a.weak_type), after) == describe(state)
    assert {leaf.dtype for leaf in jax.tree.leaves((after.x, after.y))} == {jnp.dtype(dtype)}
    assert jax.tree.structure(info.hypergradient) == jax.tree.structure(case.x0)
    assert info.outer_value.shape == ()
    assert info.outer_value.dtype == dtype
    assert all(metric.shape == () for metric in info.metrics.values())
    assert all(hasattr(state, name) for name in solver.variables)


@every_pair
def test_jit_changes_nothing(row, problem):
    case, solver = build(row, problem)
    state = solver.init(case.x0, case.y0, case.data)
    plain, _ = solver.step(state, case.data)
    jitted, _ = jax.jit(solver.step)(state, case.data)
    assert_trees_equal(jitted, plain, rtol=1e-9, atol=1e-12)


@every_pair
def test_vmap_over_starts_equals_one_by_one(row, problem):
    case, solver = build(row, problem)
    shifts = jnp.array([0.0, 0.1, -0.2])

    def last(shift):
        x0, y0 = (jax.tree.map(lambda a: a + shift, tree) for tree in (case.x0, case.y0))
        state, trace = bl.scan(solver, solver.init(x0, y0, case.data), case.data, steps=STEPS)
        return state.x, state.y, trace["outer_value"]

    together = jax.jit(jax.vmap(last))(shifts)
    alone = jax.jit(last)
    for i, shift in enumerate(shifts):
        assert_trees_equal(jax.tree.map(lambda a, i=i: a[i], together), alone(shift), rtol=1e-8, atol=1e-11)
    assert moved(*(jax.tree.map(lambda a, i=i: a[i], together[0]) for i in (0, 1)))


@every_pair
def test_one_trace_however_many_chunks(row, problem):
    case, solver = build(row, problem)
    traces = []

    def step(state, batch):
        traces.append(1)
        return solver.step(state, batch)

    counting = replace(solver, step=step)
    result = bl.run(counting, case.x0, case.y0, data=case.data, steps=10, every=3, probe=lambda s, i: {})
    assert result.steps == 10
    assert len(traces) == 1


@every_pair
def test_split_and_resumed_is_bitwise_equal(row, problem):
    case, solver = build(row, problem)
    whole = bl.run(solver, case.x0, case.y0, data=case.data, steps=6)
    half = bl.run(solver, case.x0, case.y0, data=case.data, steps=3)
    rest = bl.run(solver, data=case.data, steps=3, resume=half)
    for a, b in zip(jax.tree.leaves(whole.state), jax.tree.leaves(rest.state), strict=True):
        np.testing.assert_array_equal(a, b)
    assert whole.steps == rest.steps == 6
    for name, values in whole.trace.items():
        np.testing.assert_array_equal(values, rest.trace[name])
    assert moved(half.x, rest.x)


@every_pair
def test_sharded_over_eight_devices_equals_unsharded(row, problem):
    case, solver = build(row, problem)
    devices = jax.devices()
    assert len(devices) == 8
    rows = NamedSharding(Mesh(np.array(devices), ("rows",)), PartitionSpec("rows"))

    def last(shift, data):
        x0 = jax.tree.map(lambda a: a + shift, case.x0)
        return bl.scan(solver, solver.init(x0, case.y0, data), data, steps=STEPS)[0].x

    if case.data is None:  # no data to shard: eight starts, one per device
        starts = jnp.linspace(-0.5, 0.5, 8)
        program = jax.jit(lambda starts: jax.vmap(lambda shift: last(shift, None))(starts))
        expected, got = program(starts), program(jax.device_put(starts, rows))
    else:
        program = jax.jit(lambda data: last(jnp.zeros(()), data))
        expected, got = program(case.data), program(jax.device_put(case.data, rows))
    assert_trees_equal(got, expected, rtol=1e-8, atol=1e-11)


@pytest.mark.usefixtures("as_users_see_it")
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_bad_input_is_refused_before_any_compute(row):
    case, solver = build(row, row.problems[-1])
    assert case.data is not None

    def refused(error, words, x0=case.x0, y0=case.y0, data=case.data, solver=solver):
        with pytest.raises(error, match=words):
            bl.run(solver, x0, y0, data=data, steps=2)

    spoiled = jax.tree.map(lambda a: a.at[(0,) * a.ndim].set(jnp.nan), case.x0)
    refused(ValueError, "x0.* contains NaN", x0=spoiled)
    refused(TypeError, "y0.* has dtype int", y0=jax.tree.map(lambda a: a.astype(jnp.int32), case.y0))
    refused(ValueError, "no arrays in it", x0={})
    refused(ValueError, "data", data=None)
    vector = bl.Problem(
        lambda x, y, batch: jnp.stack([case.problem.outer(x, y, batch)] * 2), case.problem.inner
    )
    refused(ValueError, "must return a scalar", solver=row.make(vector, case.L))
