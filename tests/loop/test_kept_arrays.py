"""Small versions of benchmarks/soak.py: what a run made goes when the run goes, and chunks hold their rows alone."""

import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import soak

import bilevel as bl

X0, Y0 = jnp.ones(2), jnp.zeros(2)


def problem() -> bl.Problem:
    return bl.Problem(inner=lambda x, y: jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum((y - 2) ** 2))


def diverging() -> tuple:
    solver = bl.aid(
        problem(), inner=3.0, adjoint=0.1, outer=0.01
    )  # whose cause is measured, by programs of its own
    return solver, bl.run(solver, X0, Y0, steps=500)


def halving() -> tuple:
    solver = bl.aid(problem(), inner=3.0, adjoint=0.1, outer=0.01)
    return solver, bl.run(solver, X0, Y0, steps=500, options=bl.RunOptions(on_divergence="halve"))


def thinned_with_hooks() -> tuple:
    solver = bl.aid(problem(), inner=0.1, adjoint=0.1, outer=0.01)
    hooks = [bl.hooks.Best(), lambda event: event.so_far()]
    record, probe = lambda state, info: {"y": state.y}, lambda state, info: {"x": state.x[0]}
    return solver, bl.run(
        solver,
        X0,
        Y0,
        steps=50,
        options=bl.RunOptions(every=10, thin=7, probe=probe),
        hooks=hooks,
        record=record,
        warmup=3,
    )


def raising() -> tuple:
    solver = bl.aid(problem(), inner=0.1, adjoint=0.1, outer=0.01)

    def breaks(event) -> None:
        raise OSError("no more")

    with pytest.raises(bl.RunError):
        bl.run(solver, X0, Y0, steps=50, options=bl.RunOptions(every=10), hooks=[breaks])
    return solver, None


@pytest.mark.slow
@pytest.mark.parametrize("kind", [diverging, halving, thinned_with_hooks, raising])
def test_nothing_of_a_run_outlives_it(kind, collector):
    before = len(jax.live_arrays())
    solver, result = kind()
    gone = weakref.ref(solver), weakref.ref(solver.problem)
    del solver, result
    collector.collect()
    assert [ref() for ref in gone] == [None, None]
    assert len(jax.live_arrays()) == before


@pytest.mark.slow
def test_runs_with_fresh_functions_leave_nothing_behind(collector):
    """Counted in objects and arrays: a few runs are too few to see in the size of the process."""
    made = lambda: (type(thing).__module__ for thing in collector.get_objects())
    count = lambda: sum(str(module).startswith("bilevel") for module in made())
    points, objects = [], []
    for point in soak.many_runs(runs=4, points=2, steps=5, before=2):
        points.append(point)
        objects.append(count())
    assert [point.count for point in points] == [0, 2, 4]
    assert len({point.arrays for point in points}) == 1
    assert len(set(objects)) == 1


@pytest.mark.slow
def test_a_million_steps_are_looked_at_on_the_way():
    points = list(soak.many_steps(steps=20_000, thin=100, points=4, every=1000))
    assert [point.count for point in points] == [0, 5_000, 10_000, 15_000, 20_000]
    assert len({point.arrays for point in points[1:]}) == 1


def test_short_chunks_hold_no_more_than_their_rows():
    """The buffer of a chunk has room for many more rows in a long run, however few of them it fills."""
    held = []
    q = bl.problems.quadratic(kappa=4.0)
    solver = bl.aid(q.problem, inner=1 / q.L, adjoint=1 / q.L, outer=0.1 / q.L)
    bl.run(
        solver,
        X0,
        Y0,
        steps=3_000,
        options=bl.RunOptions(every=10),
        hooks=[lambda event: held.append(event.trace)],
    )
    columns = [column for trace in held for column in trace.values()]
    assert all(len(column) == 10 for column in columns)
    assert all(isinstance(column, np.ndarray) and column.base is None for column in columns)
