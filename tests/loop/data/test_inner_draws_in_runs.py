"""Runs whose inner steps each draw a batch: resumed, from loaders, in a sweep, with halving, from disk."""

import jax
import numpy as np
import pytest

import bilevel as bl
from bilevel.loop.data.loader_buffer import Loader
from run_options import with_options
from training_by_hand import ALPHA, BETA, PROBLEM, STATE0, X0, Y0, N, as_loader, batches, given

SOLVER = bl.itd(PROBLEM, inner=ALPHA, outer=BETA, inner_steps=N)
START = dict(x0=X0, y0=Y0, seed=1, model_state=STATE0)


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, (a.x, a.y, a.model_state), (b.x, b.y, b.model_state))


@pytest.fixture(scope="module")
def whole():
    return bl.run(SOLVER, data=given("epochs"), steps=6, **with_options(START))


@pytest.mark.slow
def test_a_resumed_run_is_bitwise_the_unbroken_one(whole):
    half = bl.run(SOLVER, data=given("epochs"), steps=2, **with_options(START))
    resumed = bl.run(SOLVER, data=given("epochs"), steps=4, resume=half)
    same(resumed, whole)
    np.testing.assert_array_equal(resumed.trace["outer_value"], whole.trace["outer_value"])
    assert resumed.model_state["n"] == 6 * N


@pytest.mark.slow
def test_a_resumed_run_from_disk(whole, tmp_path):
    bl.run(SOLVER, data=given("epochs"), steps=2, checkpoint=tmp_path, **with_options(START))
    same(bl.run(SOLVER, data=given("epochs"), steps=4, resume=tmp_path), whole)


@pytest.mark.slow
@pytest.mark.parametrize("prefetch", [None, 2])
def test_a_loader_gives_what_memory_gives_and_is_resumed(whole, prefetch):
    loader = as_loader(given("epochs"), 6 * N)
    half = bl.run(
        SOLVER,
        data=loader,
        steps=2,
        **with_options(START | dict(prefetch=prefetch)),
    )
    resumed = bl.run(SOLVER, data=loader, steps=4, options=bl.RunOptions(prefetch=prefetch), resume=half)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12),
        (resumed.x, resumed.y, resumed.model_state),
        (whole.x, whole.y, whole.model_state),
    )


@pytest.mark.slow
def test_an_iterable_that_ends_within_a_step_ends_the_run():
    result = bl.run(SOLVER, data=batches(given("epochs"), 2 * N + 1), steps=6, **with_options(START))
    assert (result.status.code, result.steps) == (bl.Code.EXHAUSTED, 2)


@pytest.mark.slow
def test_of_a_loader_only_the_last_outer_part_of_a_step_is_held():
    feed = Loader(as_loader(given("epochs"), 2 * N), SOLVER)
    held, last = feed.peek().data, batches(given("epochs"), N)[-1]
    assert held.stacked.outer is None
    assert held.stacked.inner[0].shape[0] == N
    jax.tree.map(np.testing.assert_array_equal, held[0].outer, last.outer)


def test_halving_without_a_halving_changes_nothing(whole):
    same(
        bl.run(
            SOLVER,
            data=given("epochs"),
            steps=6,
            **with_options(START | dict(on_divergence="halve")),
        ),
        whole,
    )


@pytest.mark.slow
def test_a_lane_of_a_sweep_is_a_run(whole):
    solvers = [bl.itd(PROBLEM, inner=ALPHA, outer=beta, inner_steps=N) for beta in (BETA, 2 * BETA)]
    found = bl.sweep(solvers, X0, Y0, data=given("epochs"), steps=6, seeds=1, model_state=STATE0)
    np.testing.assert_allclose(found[0].x, whole.x, rtol=1e-12)
    assert found[0].model_state["n"] == 6 * N


@pytest.mark.slow
def test_rows_are_read_when_an_inner_step_uses_them():
    """2,000 draws hold their row numbers, not their rows."""
    rows, width, draws = 4000, 64, 2000
    data = bl.Batch(inner=np.ones((rows, width)), outer=np.ones((rows, width)))
    loss = lambda x, y, batch: ((batch @ y - x) ** 2).mean()
    solver = bl.itd(
        bl.Problem(inner=loss, outer=loss), inner=1e-3, outer=1e-3, inner_steps=draws, checkpoint_every=50
    )
    stream = bl.epochs(data, size=100)
    begun = bl.start(solver, 1.0, np.zeros(width), stream)
    step = jax.jit(lambda run, stream: bl.scan(solver, run, stream, steps=1))
    memory = step.lower(begun, stream).compile().memory_analysis().temp_size_in_bytes
    assert memory < 0.1 * draws * 100 * width * 8
