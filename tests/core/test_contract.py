"""What every solver must do on every problem of the table, whatever its mathematics."""

import gc
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import bilevel as bl
from zoo import PROBLEMS, ROWS

STEPS = 6

every_pair = pytest.mark.parametrize(
    ("row", "problem"), [(row, problem) for row in ROWS for problem in row.problems], ids=str
)
every_row = pytest.mark.parametrize("row", ROWS, ids=str)


def build(row, problem, dtype=jnp.float64):
    case = PROBLEMS[problem](dtype)
    return case, row.make(case.problem, case.L)


def assert_trees_equal(a, b, **tolerance):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(left, right, **tolerance)


def assert_bitwise_equal(a, b):
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(left, right)


def moved(a, b) -> bool:
    return any(not np.array_equal(p, q) for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def described(tree):
    return jax.tree.map(lambda a: (a.shape, a.dtype, a.weak_type), tree)


@every_pair
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=["float32", "float64"])
def test_a_step_keeps_the_state_s_type(row, problem, dtype):
    case, solver = build(row, problem, dtype)
    state = jax.eval_shape(solver.init, case.x0, case.y0, case.data)
    after, info = jax.eval_shape(solver.step, state, case.data)
    assert described(after) == described(state)
    assert {leaf.dtype for leaf in jax.tree.leaves((after.x, after.y))} == {jnp.dtype(dtype)}
    assert jax.tree.structure(info.hypergradient) == jax.tree.structure(case.x0)
    assert info.outer_value.shape == ()
    assert info.outer_value.dtype == dtype
    assert all(metric.shape == () for metric in info.metrics.values())
    assert all(hasattr(state, name) for name in solver.variables)


@every_row
def test_vmap_over_starts_equals_one_by_one(row):
    case, solver = build(row, row.problems[0])
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


@every_row
def test_split_hooked_and_resumed_is_bitwise_equal_with_one_trace(row, monkeypatch):
    case, solver = build(row, row.problems[-1])
    traces, step = [], type(solver).step

    def counting(self, state, batch=None):
        traces.append(1)
        return step(self, state, batch)

    monkeypatch.setattr(type(solver), "step", counting)
    whole = bl.run(solver, case.x0, case.y0, data=case.data, steps=6)
    assert len(traces) == 1
    seen = []
    watched = bl.run(
        solver,
        case.x0,
        case.y0,
        data=case.data,
        steps=6,
        every=2,
        hooks=[seen.append, bl.hooks.Best(), bl.hooks.EarlyStopping(patience=100)],
        probe=lambda state, info: {"value": info.outer_value},
        tol=1e-300,
        progress=True,
    )
    half = bl.run(solver, case.x0, case.y0, data=case.data, steps=3)
    rest = bl.run(solver, data=case.data, steps=3, resume=half)
    larger = jax.tree.map(lambda leaf: leaf if isinstance(leaf, int) else 1.01 * leaf, solver)
    bl.run(larger, case.x0, case.y0, data=case.data, steps=2)  # other numbers: the same program
    assert len(traces) == 1
    assert [event.step for event in seen] == [2, 4, 6]
    for other in (watched, rest):
        assert_bitwise_equal(whole.run, other.run)
        assert whole.steps == other.steps == 6
        for name, values in whole.trace.items():
            np.testing.assert_array_equal(values, other.trace[name])
    assert moved(half.x, rest.x)


@every_row
def test_a_sweep_equals_runs_one_by_one_and_compiles_once(row):
    case, solver = build(row, row.problems[0])
    if not jax.tree.leaves(solver):
        return  # nothing to sweep: test_every_solver_but_those_with_optax_rules_has_numbers says which
    scaled = [
        jax.tree.map(lambda leaf, c=c: leaf if isinstance(leaf, int) else c * leaf, solver)
        for c in (1.0, 0.5)
    ]
    swept = bl.sweep(scaled, case.x0, case.y0, data=case.data, steps=STEPS)
    for i, one in enumerate(scaled):
        alone = bl.run(one, case.x0, case.y0, data=case.data, steps=STEPS)
        assert_trees_equal(swept[i].x, alone.x, rtol=1e-8, atol=1e-11)
        np.testing.assert_allclose(swept[i].trace["outer_value"], alone.trace["outer_value"], rtol=1e-8)
    if row.name not in (
        "sama_optax",
        "tuning_free",
    ):  # whose only numbers are accuracies, and exact ones here
        assert moved(swept[0].x, swept[1].x)


def test_every_solver_but_those_with_optax_rules_has_numbers():
    without = {row.name for row in ROWS if not jax.tree.leaves(build(row, row.problems[0])[1])}
    assert without <= {"aid_optax", "itd_optax", "sama_optax", "rtho", "f2sa", "itd_truncated"}


@every_row
def test_dropped_is_freed(row):
    case, _ = build(row, row.problems[0])

    def use():
        held = jnp.ones(3)
        inner = lambda *arguments: case.problem.inner(*arguments) + 0 * held[0]
        problem = bl.Problem(inner=inner, outer=case.problem.outer)
        solver = row.make(problem, case.L)
        bl.run(solver, case.x0, case.y0, data=case.data, steps=2)
        return [weakref.ref(thing) for thing in (solver, problem, held)]

    refs = use()
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3


@every_row
def test_a_run_survives_as_arrays(row):
    """What a checkpoint will do: leaves to NumPy and back, into the structure that a fresh start has."""
    case, solver = build(row, row.problems[0])
    half = bl.run(solver, case.x0, case.y0, data=case.data, steps=3)
    stored = [np.asarray(leaf) for leaf in jax.tree.leaves(half.run)]
    shape = jax.eval_shape(lambda: bl.start(solver, case.x0, case.y0, case.data))
    assert jax.tree.structure(shape) == jax.tree.structure(half.run)
    assert [(a.shape, a.dtype) for a in stored] == [(a.shape, a.dtype) for a in jax.tree.leaves(shape)]
    restored = jax.tree.unflatten(jax.tree.structure(shape), [jnp.asarray(leaf) for leaf in stored])
    go_on = jax.jit(lambda run: bl.scan(solver, run, case.data, steps=3), donate_argnums=0)
    after, _ = go_on(restored)
    whole, _ = jax.jit(lambda run: bl.scan(solver, run, case.data, steps=3))(half.run)
    assert_bitwise_equal(after, whole)
    donated = [leaf for leaf in jax.tree.leaves(restored.solver) if leaf.size]
    assert all(leaf.is_deleted() for leaf in donated)


@every_row
def test_donating_changes_no_bit_and_keeps_no_copy(row):
    case, solver = build(row, row.problems[0])
    kept = bl.run(solver, case.x0, case.y0, data=case.data, steps=5, every=2, replay="device")
    for policy in ("host", "off"):
        donated = bl.run(solver, case.x0, case.y0, data=case.data, steps=5, every=2, replay=policy)
        assert_bitwise_equal(kept.run, donated.run)
        again = bl.run(solver, data=case.data, steps=1, resume=donated, replay=policy)
        assert not any(
            leaf.is_deleted() for leaf in jax.tree.leaves(donated.run)
        )  # the user's result stays whole
        assert again.steps == 6


@every_row
def test_sharded_over_eight_devices_equals_unsharded(row):
    case, solver = build(row, row.problems[-1])
    devices = jax.devices()
    assert len(devices) == 8
    rows = NamedSharding(Mesh(np.array(devices), ("rows",)), PartitionSpec("rows"))

    def last(shift, data):
        x0 = jax.tree.map(lambda a: a + shift, case.x0)
        return bl.scan(solver, solver.init(x0, case.y0, data), data, steps=STEPS)[0].x

    program = jax.jit(lambda data: last(jnp.zeros(()), data))
    expected, got = program(case.data), program(jax.device_put(case.data, rows))
    assert_trees_equal(got, expected, rtol=1e-8, atol=1e-11)


@pytest.mark.usefixtures("as_users_see_it")
@every_row
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
    refused(ValueError, "no (inner|outer) data were given|needs data of many tasks", data=None)
    vector = bl.Problem(
        inner=case.problem.inner, outer=lambda x, y, batch: jnp.stack([case.problem.outer(x, y, batch)] * 2)
    )
    refused(ValueError, "must return a scalar", solver=row.make(vector, case.L))


def test_a_solver_is_a_pytree_whose_leaves_are_its_numbers():
    q = bl.problems.quadratic()
    solver = bl.aid(q.problem, 0.1, 0.2, 0.3)
    assert jax.tree.leaves(solver) == [0.1, 0.2, 0.3]
    betas = jnp.array([0.01, 0.1])

    def end(beta):
        one = eqx.tree_at(lambda s: s.outer.step_size, solver, beta)
        return bl.scan(one, one.init(jnp.ones(2), jnp.zeros(2)), steps=50)[0].x

    together = jax.vmap(end)(betas)
    for i, beta in enumerate(betas):
        np.testing.assert_allclose(together[i], end(beta), rtol=1e-12)


def test_info_s_annotations_are_really_checked():
    good = dict(outer_value=jnp.ones(()), hypergradient=jnp.ones(2), inner_gradient=jnp.ones(2), metrics={})
    bl.Info(**good)
    for spoiled in (
        {"outer_value": jnp.ones(2)},
        {"outer_value": 3},
        {"metrics": {"a": 3}},
        {"metrics": {"a": jnp.ones(2)}},
    ):
        with pytest.raises(jaxtyping.TypeCheckError):
            bl.Info(**(good | spoiled))
