"""bfloat16: objectives that compute in it on a float32 state, and states that have it themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from zoo import PROBLEMS, ROWS, SOME_SLOW


@pytest.fixture(autouse=True)
def _as_people_have_it():
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        yield


def half(tree):
    return jax.tree.map(lambda a: a.astype(jnp.bfloat16), tree)


def computing_in_half(problem):
    """The objectives on x, y and data rounded to bfloat16; the loss is float32."""
    rounded = lambda function: lambda x, y, batch: function(half(x), half(y), half(batch)).astype(jnp.float32)
    return bl.Problem(inner=rounded(problem.inner), outer=rounded(problem.outer))


@pytest.mark.parametrize("row", SOME_SLOW, ids=str)
def test_a_state_keeps_its_types_whatever_the_objectives_compute_in(row):
    case = PROBLEMS["trees" if "trees" in row.problems else row.problems[0]](jnp.float32)
    solver = row.make(computing_in_half(case.problem), case.L)
    types = lambda tree: jax.tree.map(lambda a: (a.shape, a.dtype), tree)
    for start in ((case.x0, case.y0), (half(case.x0), half(case.y0))):
        state = jax.eval_shape(solver.init, *start, case.data)
        after, info = jax.eval_shape(solver.step, state, case.data)
        assert types(after) == types(state)
        assert types(after.x) == types(info.hypergradient) == types(start[0])
        kinds = [
            {leaf.dtype for leaf in jax.tree.leaves(t)} for t in (after.y, info.inner_gradient, start[1])
        ]
        assert kinds[0] == kinds[1] == kinds[2]
        assert info.outer_value.dtype == jnp.float32


@pytest.mark.slow
@pytest.mark.parametrize("name", ["aid", "itd", "soba"])
def test_values_agree_to_the_accuracy_of_half(name):
    row = next(row for row in ROWS if row.name == name)
    case = PROBLEMS["trees"](jnp.float32)
    exact, rounded = (
        bl.run(row.make(problem, case.L), case.x0, case.y0, data=case.data, steps=30)
        for problem in (case.problem, computing_in_half(case.problem))
    )
    assert {leaf.dtype for leaf in jax.tree.leaves((rounded.x, rounded.y))} == {jnp.dtype(jnp.float32)}
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=0.03)  # a few units of 2⁻⁸
    jax.tree.map(close, (exact.x, exact.y), (rounded.x, rounded.y))
    np.testing.assert_allclose(rounded.trace["outer_value"], exact.trace["outer_value"], rtol=0.03)


def test_the_norm_of_a_half_hypergradient_is_not_lost():
    """A sum of 10,000 equal squares in bfloat16 stays at 256 of them, and the root of it at 16."""
    n = 10_000
    inner = lambda x, y: 0.5 * jnp.sum((y.astype(jnp.float32) - 1) ** 2)
    outer = lambda x, y: jnp.sum(x.astype(jnp.float32)) + jnp.sum(y.astype(jnp.float32))
    solver = bl.itd(bl.Problem(inner=inner, outer=outer), inner=0.1, outer=1e-3)
    result = bl.run(solver, jnp.zeros(n, jnp.bfloat16), jnp.zeros(2, jnp.bfloat16), steps=2)
    assert result.x.dtype == result.y.dtype == jnp.bfloat16
    assert result.trace["hypergradient_norm"].dtype == np.float32
    np.testing.assert_allclose(result.trace["hypergradient_norm"], n**0.5, rtol=1e-6)
