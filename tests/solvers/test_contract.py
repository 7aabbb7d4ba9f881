"""What every solver must do on every problem of the table, whatever its mathematics."""

import gc
import weakref
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import bilevel as bl
from bilevel.loop.data.streams import as_stream
from bilevel.loop.program import program_of
from bilevel.problems import Instance
from bilevel.solvers.optax_rules import fix_numbers
from marks import slow
from zoo import PROBLEMS, ROWS, SOME_SLOW, Row

STEPS = 6


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


def shaped(tree):
    return jax.tree.map(lambda a: (a.shape, a.dtype), tree)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (slow if problem != row.problems[-1] else pytest.param)(row, problem)
        for row in ROWS
        for problem in row.problems
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [slow(jnp.float32), jnp.float64], ids=["float32", "float64"])
def test_a_step_keeps_the_state_s_type(row, problem, dtype):
    case, solver = build(row, problem, dtype)
    state = jax.eval_shape(solver.init, case.x0, case.y0, case.data)
    after, info = jax.eval_shape(solver.step, state, case.data)
    assert described(after) == described(state)
    assert {leaf.dtype for leaf in jax.tree.leaves((after.x, after.y))} == {jnp.dtype(dtype)}
    assert shaped(info.hypergradient) == shaped(state.x)
    assert shaped(jax.eval_shape(solver.sets_out, state)) == shaped(state.y) == shaped(info.inner_gradient)
    assert info.outer_value.shape == ()
    assert info.outer_value.dtype == dtype
    assert all(metric.shape == () for metric in info.metrics.values())
    assert all(hasattr(state, name) for name in solver.variables)


@contextmanager
def traces_of(solver):
    """Counts how often its step is traced."""
    traces, step = [], type(solver).step

    def counting(self, state, batch=None):
        traces.append(1)
        return step(self, state, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(solver), "step", counting)
        yield traces


class Ran(NamedTuple):
    """A solver's run of six steps on one of its row's problems."""

    row: Row
    case: Instance
    solver: bl.Solver
    held: jax.Array  # by the inner objective
    whole: bl.Result
    traces: int  # of the step


class Runs:
    """Of one row, made when first asked for: its tests follow one another and share what the first run compiled."""

    def __init__(self, row: Row):
        self.row, self.ran = row, {}

    def on(self, problem: str) -> Ran:
        if problem not in self.ran:
            self.ran[problem] = self._run(PROBLEMS[problem](jnp.float64))
        return self.ran[problem]

    def _run(self, case: Instance) -> Ran:
        plain, held = case.problem.inner, jnp.ones(3)
        holding = wraps(plain)(lambda *arguments: plain(*arguments) + 0 * held[0])
        case = replace(case, problem=replace(case.problem, inner=holding))
        solver = self.row.make(case.problem, case.L)
        with traces_of(solver) as traces:
            whole = bl.run(solver, case.x0, case.y0, data=case.data, steps=STEPS)
        return Ran(self.row, case, solver, held, whole, len(traces))


@pytest.fixture(scope="module", params=SOME_SLOW, ids=str)
def runs(request):
    gc.freeze()  # what is older need not be looked through for what the last of these tests drops
    yield Runs(request.param)
    gc.unfreeze()


@pytest.fixture
def ran(runs):
    """On the row's first problem, which compiles fastest."""
    return runs.on(runs.row.problems[0])


@pytest.fixture
def ran_on_data(runs):
    """On its last problem, which has data, and x and y that are trees."""
    return runs.on(runs.row.problems[-1])


def scaled(solver, factor):
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, int) else factor * leaf, solver)


def lane(tree, i):
    return jax.tree.map(lambda a: a[i], tree)


def test_vmap_over_starts_equals_one_by_one(ran):
    case, solver = ran.case, ran.solver
    shifts = jnp.array([0.0, 0.1, -0.2])
    start = lambda shift: (jax.tree.map(lambda a: a + shift, tree) for tree in (case.x0, case.y0))

    @jax.jit
    @jax.vmap
    def together(shift):
        run, trace = bl.scan(solver, bl.start(solver, *start(shift), case.data), case.data, steps=STEPS)
        return run.solver.x, run.solver.y, trace["outer_value"]

    ends = together(shifts)
    for i, shift in enumerate(shifts):
        alone = bl.run(solver, *start(shift), data=case.data, steps=STEPS)
        expected = alone.x, alone.y, alone.trace["outer_value"]
        assert_trees_equal(lane(ends, i), expected, rtol=1e-8, atol=1e-11)
    assert moved(lane(ends[0], 0), lane(ends[0], 1))


def test_sharded_over_eight_devices_equals_unsharded(ran_on_data):
    """The rows of the data split by `mesh=`, and every array of the state where it was put."""
    case, solver = ran_on_data.case, ran_on_data.solver
    mesh = Mesh(np.array(jax.devices()), ("rows",))
    assert mesh.size == 8
    sharded = bl.run(
        solver,
        case.x0,
        case.y0,
        data=case.data,
        steps=STEPS,
        options=bl.RunOptions(every=STEPS, mesh=mesh),
    )
    assert_trees_equal(sharded.x, ran_on_data.whole.x, rtol=1e-8, atol=1e-11)
    everywhere = NamedSharding(mesh, PartitionSpec())
    assert all(leaf.sharding.is_equivalent_to(everywhere, leaf.ndim) for leaf in jax.tree.leaves(sharded.run))


def test_split_hooked_and_resumed_is_bitwise_equal_with_one_trace(ran_on_data, tmp_path):
    case, solver, whole = ran_on_data.case, ran_on_data.solver, ran_on_data.whole
    assert ran_on_data.traces == 1
    seen = []
    with traces_of(solver) as more_traces:
        watched = bl.run(
            solver,
            case.x0,
            case.y0,
            data=case.data,
            steps=6,
            options=bl.RunOptions(every=2, probe=lambda state, info: {"value": info.outer_value}),
            hooks=[seen.append, bl.hooks.Best(), bl.hooks.EarlyStopping(patience=100)],
            tol=1e-300,
            progress=True,
        )
        half = bl.run(solver, case.x0, case.y0, data=case.data, steps=3, checkpoint=tmp_path / "run")
        rest = bl.run(solver, data=case.data, steps=3, resume=half)
        from_disk = bl.run(solver, data=case.data, steps=3, resume=tmp_path / "run")
        if not has_constants(solver):
            other_numbers = scaled(solver, 1.01)
            bl.run(other_numbers, case.x0, case.y0, data=case.data, steps=2)  # the same program
    assert not more_traces
    assert [event.step for event in seen] == [2, 4, 6]
    for other in (watched, rest, from_disk):
        assert jax.tree.structure(whole.run) == jax.tree.structure(other.run)
        assert_bitwise_equal(whole.run, other.run)
        assert whole.steps == other.steps == 6
        for name, values in whole.trace.items():
            np.testing.assert_array_equal(values, other.trace[name])
    assert moved(half.x, rest.x)


def test_a_sweep_is_a_vmap_over_the_solver_s_numbers_and_equals_runs_one_by_one(ran):
    case, solver = ran.case, ran.solver
    if not jax.tree.leaves(solver):
        return  # nothing to sweep: test_every_solver_has_numbers says which
    several = [scaled(solver, factor) for factor in (0.8, 0.9, 1.1)]
    with traces_of(solver) as traces:
        swept = bl.sweep(several, case.x0, case.y0, data=case.data, steps=STEPS)
        lanes = len(traces)
        bl.sweep([scaled(solver, 0.85), *several[1:]], case.x0, case.y0, data=case.data, steps=2)
        assert len(traces) == lanes  # other numbers: the same program
        for i, one in enumerate(several):
            alone = bl.run(one, case.x0, case.y0, data=case.data, steps=STEPS)
            assert_trees_equal((swept[i].x, swept[i].y), (alone.x, alone.y), rtol=1e-8, atol=1e-11)
            np.testing.assert_allclose(swept[i].trace["outer_value"], alone.trace["outer_value"], rtol=1e-8)
        # A single run holds the numbers of an optax rule as constants.
        assert len(traces) == lanes + (len(several) if has_constants(solver) else 0)
    exact = "sama_optax", "tuning_free"  # whose only numbers are accuracies: here they change nothing
    if ran.row.name not in exact:
        assert moved(swept[0].x, swept[2].x)


def test_every_solver_has_numbers():
    assert not [row.name for row in ROWS if not jax.tree.leaves(build(row, row.problems[0])[1])]


def has_constants(solver):
    """Whether a number in it belongs to an optax rule."""
    return jax.tree.structure(fix_numbers([solver])[0]) != jax.tree.structure(solver)


def test_a_run_survives_as_arrays(ran):
    """What a checkpoint will do: leaves to NumPy and back, into the structure that a fresh start has."""
    case, solver = ran.case, ran.solver
    half = bl.run(solver, case.x0, case.y0, data=case.data, steps=3)
    stored = [np.asarray(leaf) for leaf in jax.tree.leaves(half.run)]
    shape = jax.eval_shape(lambda: bl.start(solver, case.x0, case.y0, case.data))
    assert jax.tree.structure(shape) == jax.tree.structure(half.run)
    assert [(a.shape, a.dtype) for a in stored] == [(a.shape, a.dtype) for a in jax.tree.leaves(shape)]
    restored = jax.tree.unflatten(jax.tree.structure(shape), [jnp.asarray(leaf) for leaf in stored])
    (program, numbers), stream = program_of(solver), as_stream(case.data)
    blank = program.fit(numbers, restored, stream, 3).blank
    after, *_ = program.donating.chunk(numbers, restored, stream, blank, 3, True)  # as for all small states
    assert_bitwise_equal(after, ran.whole.run)
    donated = [leaf for leaf in jax.tree.leaves(restored.solver) if leaf.size]
    assert all(leaf.is_deleted() for leaf in donated)


def test_donating_changes_no_bit_and_keeps_no_copy(ran):
    case, solver = ran.case, ran.solver
    kept = bl.run(
        solver,
        case.x0,
        case.y0,
        data=case.data,
        steps=5,
        options=bl.RunOptions(every=2, snapshots="device"),
    )
    for policy in ("host", "off"):
        donated = bl.run(
            solver,
            case.x0,
            case.y0,
            data=case.data,
            steps=5,
            options=bl.RunOptions(every=2, snapshots=policy),
        )
        assert_bitwise_equal(kept.run, donated.run)
        again = bl.run(
            solver, data=case.data, steps=1, resume=donated, options=bl.RunOptions(snapshots=policy)
        )
        assert not any(
            leaf.is_deleted() for leaf in jax.tree.leaves(donated.run)
        )  # the user's result stays whole
        assert again.steps == 6


def test_dropped_is_freed(runs):
    """After whatever the tests above did with them."""
    runs.on(runs.row.problems[0])
    refs = [
        weakref.ref(thing) for ran in runs.ran.values() for thing in (ran.solver, ran.case.problem, ran.held)
    ]
    runs.ran.clear()
    gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)


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
    refused(ValueError, "no (inner|outer) data were given|needs data of many tasks", data=None)
    vector = bl.Problem(
        inner=case.problem.inner, outer=lambda x, y, batch: jnp.stack([case.problem.outer(x, y, batch)] * 2)
    )
    refused(ValueError, "must return a scalar", solver=row.make(vector, case.L))


def test_a_solver_is_a_pytree_whose_leaves_are_its_numbers():
    q = bl.problems.quadratic()
    solver = bl.aid(q.problem, inner=0.1, adjoint=0.2, outer=0.3)
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
