"""Every example exactly once per epoch, whatever the batch size; and the same batches wherever a run starts."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl

ROWS = 10


def batches(stream, steps, start=0):
    _, stacked = draw(stream, stream.start(start), steps)
    return [jax.tree.map(lambda a, k=k: a[k], stacked) for k in range(steps)]


@partial(jax.jit, static_argnames="steps")
def draw(stream, cursor, steps):
    return jax.lax.scan(lambda cursor, _: stream.next(cursor), cursor, length=steps)


def data():
    return bl.Batch(inner={"row": jnp.arange(ROWS), "twice": 2 * jnp.arange(ROWS)}, outer=jnp.arange(7.0))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3, 4, 7, 9, 10])
def test_every_example_exactly_once_per_epoch(size):
    epochs = 6
    steps = epochs * ROWS // size + 1
    drawn = np.concatenate([b.inner["row"] for b in batches(bl.epochs(data(), bl.Batch(size, None)), steps)])
    for epoch in range(epochs):
        assert sorted(drawn[epoch * ROWS : (epoch + 1) * ROWS]) == list(range(ROWS))
    orders = {tuple(drawn[e * ROWS : (e + 1) * ROWS]) for e in range(epochs)}
    assert len(orders) == epochs  # reshuffled every time


@pytest.mark.slow
def test_the_arrays_of_a_level_stay_together_and_levels_are_independent():
    for batch in batches(bl.epochs(data(), bl.Batch(3, 2)), 12):
        np.testing.assert_array_equal(batch.inner["twice"], 2 * batch.inner["row"])
        assert batch.outer.shape == (2,)
    outer = np.concatenate([b.outer for b in batches(bl.epochs(data(), bl.Batch(3, 2)), 7)])
    assert sorted(outer) == sorted([*range(7), *range(7)])


@pytest.mark.slow
@pytest.mark.parametrize("make", [bl.epochs, bl.iid])
def test_a_cursor_follows_from_the_step_alone(make):
    stream = make(data(), bl.Batch(4, 3), seed=5)
    whole = batches(stream, 20)
    for start in (1, 2, 3, 7, 13):
        rest = batches(stream, 20 - start, start=start)
        for a, b in zip(whole[start:], rest, strict=True):
            np.testing.assert_array_equal(a.inner["row"], b.inner["row"])
            np.testing.assert_array_equal(a.outer, b.outer)


@pytest.mark.slow
def test_iid_draws_are_uniform_with_replacement():
    stream = bl.iid(data(), bl.Batch(10, None))
    drawn = np.ravel(draw(stream, stream.start(0), 400)[1].inner["row"])
    counts = np.bincount(drawn, minlength=ROWS)
    assert counts.sum() == 4000
    # chi-square with 9 degrees of freedom exceeds 33.7 with probability 1e-4; an epoch stream would give ~0
    chi2 = np.sum((counts - 400) ** 2 / 400)
    assert 0.5 < chi2 < 33.7


@pytest.mark.slow
def test_seeds_differ_and_repeat():
    rows = lambda seed: np.concatenate(
        [b.inner["row"] for b in batches(bl.epochs(data(), bl.Batch(5, None), seed), 4)]
    )
    np.testing.assert_array_equal(rows(0), rows(0))
    assert not np.array_equal(rows(0), rows(1))


def test_seeds_under_vmap_keep_the_reshuffle_a_branch():
    """The permutation is computed once an epoch, not at every step: a `cond`, not a `select`, in the program."""
    arrays = data()

    def after_one_step(seed):
        stream = bl.epochs(arrays, bl.Batch(3, None), seed=seed)
        return stream.next(stream.start(0))[0]

    assert "cond" in str(jax.make_jaxpr(jax.vmap(after_one_step))(jnp.arange(4)))


def regression():
    rng = np.random.default_rng(0)
    a, w = rng.normal(size=(ROWS, 2)), np.array([1.0, -2.0])
    inner = lambda x, y, rows: (
        0.5 * jnp.mean((rows["a"] @ y - rows["b"]) ** 2) + 0.5 * jnp.sum(jnp.exp(x) * y**2)
    )
    outer = lambda x, y: jnp.sum((y - w) ** 2) + 0.1 * jnp.sum(x**2)
    return bl.Problem(inner=inner, outer=outer), {"a": jnp.asarray(a), "b": jnp.asarray(a @ w)}


@pytest.mark.slow
def test_a_run_on_minibatches_is_bitwise_resumable_and_independent_of_chunks():
    problem, rows = regression()
    solver = bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.05)
    stream = bl.epochs(bl.Batch(inner=rows), 4, seed=3)
    x0, y0 = jnp.zeros(2), jnp.zeros(2)
    whole = bl.run(solver, x0, y0, data=stream, steps=11)
    chunked = bl.run(solver, x0, y0, data=stream, steps=11, options=bl.RunOptions(every=2))
    first = bl.run(solver, x0, y0, data=stream, steps=4)
    resumed = bl.run(solver, data=stream, steps=7, resume=first)
    state = solver.init(x0, y0, bl.Batch(inner=rows))
    scanned, _ = bl.scan(solver, state, stream, steps=11)
    for other in (chunked, resumed):
        np.testing.assert_array_equal(whole.x, other.x)
        np.testing.assert_array_equal(whole.trace["outer_value"], other.trace["outer_value"])
    np.testing.assert_allclose(scanned.x, whole.x, rtol=1e-13)


@pytest.mark.slow
def test_any_iterator_of_batches_even_of_changing_shape():
    problem, rows = regression()
    solver = bl.itd(problem, inner=0.1, outer=0.05)
    cut = lambda i, j: bl.Batch(inner=jax.tree.map(lambda a: np.asarray(a[i:j]), rows))
    loader = [cut(0, 4), cut(4, 8), cut(8, 10)]  # the last one is ragged
    result = bl.run(
        solver,
        jnp.zeros(2),
        jnp.zeros(2),
        data=itertools.cycle(loader),
        steps=7,
        options=bl.RunOptions(every=2),
    )
    state = solver.init(jnp.zeros(2), jnp.zeros(2), loader[0])
    for batch in itertools.islice(itertools.cycle(loader), 7):
        state, _ = solver.step(state, batch)
    np.testing.assert_allclose(result.x, state.x, rtol=1e-13)
    assert result.trace["outer_value"].shape == (7,)


def test_data_are_arguments_not_constants():
    problem, rows = regression()
    solver = bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.05)
    state = solver.init(jnp.zeros(2), jnp.zeros(2), bl.Batch(inner=rows))
    program = jax.jit(lambda state, stream: bl.scan(solver, state, stream, steps=3))
    constants = jax.make_jaxpr(program)(state, bl.epochs(bl.Batch(inner=rows), 4)).consts
    assert all(np.size(constant) < ROWS for constant in constants)
