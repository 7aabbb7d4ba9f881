"""What a run needs: the compiler's own numbers for the programs that `bl.run` calls, against donated loops by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import bilevel as bl
from bilevel.loop.data.streams import Given, as_stream
from bilevel.loop.policies import OnDevice
from bilevel.loop.program import program_of, rows_of
from bilevel.loop.recovery.snapshots import snapshots_for

F32 = jnp.float32


@pytest.fixture(autouse=True)
def _as_people_have_it():
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        yield


def network(width, depth, rows, remat=False):
    """A scanned network of `depth` layers, one weight for each training row, data as arguments."""
    layer = lambda h, w: (jnp.tanh(h @ w), None)
    layer = jax.checkpoint(layer) if remat else layer

    def losses(y, data):
        residual = lax.scan(layer, data[0], y["layers"])[0] @ y["head"] - data[1]
        return jnp.sum(residual * residual, 1)

    def inner(x, y, data):
        return jnp.mean(jax.nn.sigmoid(x) * losses(y, data)) + F32(1e-3) * jnp.sum(y["layers"] ** 2)

    def outer(x, y, data):
        return jnp.mean(losses(y, data))

    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), F32)
    y0 = {"layers": draw(depth, width, width) / width**0.5, "head": draw(width, 8)}
    data = bl.Batch(
        inner=(draw(rows, width), draw(rows, 8)), outer=(draw(rows // 2, width), draw(rows // 2, 8))
    )
    return bl.Problem(inner=inner, outer=outer), jnp.zeros(rows, F32), y0, data


RULES = {"sgd": lambda: F32(1e-3), "adam": lambda: optax.adam(1e-3)}
SOLVERS = {
    "AID": lambda problem, rule: bl.aid(problem, inner=rule(), adjoint=F32(1e-2), outer=rule()),
    "SOBA": lambda problem, rule: bl.soba(problem, inner=rule(), adjoint=F32(1e-2), outer=rule()),
    "ITD": lambda problem, rule: bl.itd(problem, inner=rule(), outer=rule()),
}


def needed(lowered):
    """Bytes of arguments, results and what lies between, what shares memory counted once."""
    m = lowered.compile().memory_analysis()
    return m.argument_size_in_bytes + m.output_size_in_bytes + m.temp_size_in_bytes - m.alias_size_in_bytes


def size(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def by_hand(solver, state, data, count):
    """A loop as one writes it for one's own use: the state is donated, the last loss is printed."""

    def body(_, carry):
        after, info = solver.step(carry[0], data)
        return after, info.outer_value

    return lax.fori_loop(0, count, body, (state, jnp.zeros((), F32)))


def lowered(solver, x0, y0, data):
    """The two programs that a run of this solver would call, as `bl.run` would call them; and the shapes of a run."""
    program, leaves = program_of(solver)
    stream = as_stream(data)
    run = jax.eval_shape(program.start, leaves, x0, y0, stream, 0, None)
    fit = program.fit(leaves, run, stream, 2)
    assert fit.bytes == size(run) > 2**20
    calls = (
        program.donating if snapshots_for("auto", fit.bytes, False, OnDevice()).donates else program.keeping
    )
    one = calls.one.lower(leaves, run, Given(data), jax.eval_shape(fit.rows), 0)
    return calls.chunk.lower(leaves, run, stream, fit.blank, 2), one, run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "rule", "model"),
    [
        ("AID", "sgd", (256, 4, 64, True)),
        ("SOBA", "sgd", (384, 4, 16, True)),
        ("ITD", "adam", (192, 4, 256)),
    ],
    ids=str,
)
def test_what_run_calls_needs_what_a_donated_loop_by_hand_needs(solver, rule, model):
    problem, x0, y0, data = network(*model)
    solver = SOLVERS[solver](problem, RULES[rule])
    chunk, one, run = lowered(solver, x0, y0, data)
    loop = jax.jit(partial(by_hand, solver), donate_argnums=0)
    assert needed(chunk) <= 1.05 * needed(loop.lower(run.solver, data, 2))
    if model[0] == 384:
        assert needed(one) <= 1.05 * needed(jax.jit(solver.step, donate_argnums=0).lower(run.solver, data))


def test_rows_of_the_trace_stay_small_next_to_the_state():
    row = {name: jnp.zeros((), F32) for name in ("outer_value", "hypergradient_norm", "residual")}
    assert rows_of(row, 10**5, 2**10) == 2**16
    assert rows_of(row, 10**6, 2**10) == 2**20
    assert rows_of(row, 100, 2**10) == rows_of(row, 10**6, 2**21) == 1024
    for arguments in (2**20, 2**24, 2**30):
        assert rows_of(row, 10**6, arguments + 1) * size(row) <= max(1024 * size(row), arguments // 100)


@pytest.mark.slow
def test_between_two_chunks_there_is_one_state_on_the_device(collector):
    problem, x0, y0, data = network(256, 4, 16)
    solver, alive = SOLVERS["AID"](problem, RULES["sgd"]), []

    def on_device():
        collector.collect()
        return size([array for array in jax.live_arrays() if array.ndim])

    class Count(bl.hooks.Hook):
        reads_info = False

        def __call__(self, event):
            alive.append(on_device() - before)

    before = on_device()
    result = bl.run(
        solver, x0, y0, data=data, steps=6, options=bl.RunOptions(every=2), hooks=[Count()], warmup=2
    )
    program = solver.problem.memory.values("programs")[-1]
    assert program.donating.chunk._cache_size() == program.donating.warm_up._cache_size() == 1
    assert program.keeping.chunk._cache_size() == program.keeping.warm_up._cache_size() == 0
    assert 0.99 * size(result.run) <= max(alive) <= 1.05 * size(result.run)


@pytest.mark.slow
def test_a_hook_that_reads_the_info_has_all_of_it_and_changes_rounding_at_most():
    problem, x0, y0, data = network(256, 4, 16)
    solver, infos = SOLVERS["AID"](problem, RULES["sgd"]), []
    plain = bl.run(solver, x0, y0, data=data, steps=5)
    told = bl.run(
        solver,
        x0,
        y0,
        data=data,
        steps=5,
        options=bl.RunOptions(every=5),
        hooks=[lambda event: infos.append(event.info)],
    )

    def close(a, b):  # entries of one array are sums of terms as large as its largest
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * max(1, np.abs(b).max()))

    jax.tree.map(close, plain.run, told.run)
    norm = optax.tree.norm(infos[-1].hypergradient)
    np.testing.assert_allclose(norm, plain.trace["hypergradient_norm"][-1], rtol=1e-5)
    assert jax.tree.map(jnp.shape, infos[-1].inner_gradient) == jax.tree.map(jnp.shape, y0)
