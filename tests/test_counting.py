"""The counter must see what really runs: inside loops, behind conditions, under jit and scan."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import bilevel as bl
from bilevel.counting import CountedOracles, Counts, counted
from bilevel.oracles import Oracles


@pytest.fixture
def instrumented():
    q = bl.problems.quadratic(kappa=4.0)
    problem, counts = counted(q.problem)
    return q, problem, counts


X, Y = jnp.array([1.0, -2.0]), jnp.array([0.5, 3.0])


def test_every_oracle_is_counted():
    """An oracle added later must be counted too, or a table of costs would silently miss it."""
    public = [name for name, _ in inspect.getmembers(Oracles, inspect.isfunction) if not name.startswith("_")]
    assert public
    for name in public:
        assert getattr(CountedOracles, name) is not getattr(Oracles, name), f"{name} is not counted"


def test_values_are_the_plain_problem_s(instrumented):
    q, problem, _ = instrumented
    plain, counting = q.problem.oracles, problem.oracles
    np.testing.assert_array_equal(counting.inner_gradient(X, Y), plain.inner_gradient(X, Y))
    for name in ("outer_gradients", "inner_gradients"):
        for a, b in zip(getattr(counting, name)(X, Y), getattr(plain, name)(X, Y), strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(getattr(counting, name)(X, Y).y, getattr(plain, name)(X, Y).y)
    for name in ("linearise", "linearise_outer"):
        a, b = getattr(counting, name)(X, Y), getattr(plain, name)(X, Y)
        np.testing.assert_array_equal(a.gradient, b.gradient)
        np.testing.assert_array_equal(a.hessian(X), b.hessian(X))
        np.testing.assert_array_equal(a.cross(X), b.cross(X))
    a, b = counting.linearise_jointly(X, Y), plain.linearise_jointly(X, Y)
    np.testing.assert_array_equal(a.gradient, b.gradient)
    np.testing.assert_array_equal(a.push(X, Y), b.push(X, Y))


def test_each_derivative_has_its_own_count(instrumented):
    _, problem, counts = instrumented

    @jax.jit
    def program(x, y):
        f, pair, g = (
            getattr(problem.oracles, n)(x, y) for n in ("outer_gradients", "inner_gradients", "linearise")
        )
        first = problem.oracles.inner_gradient(x, y)
        return first + f.x + f.y + pair.x + g.gradient + g.hessian(y) + g.hessian(x) + g.cross(y)

    jax.block_until_ready(program(X, Y))
    assert counts.total == Counts(gradients_f=2, gradients_g=3, hessian_products=2, cross_products=1)
    assert (counts.total.Gc, counts.total.Mv) == (5, 3)
    jax.block_until_ready(program(X, Y))  # from the cache: it is running that counts, not tracing
    assert counts.total == Counts(4, 6, 4, 2)
    counts.reset()
    assert counts.total == Counts()
    f, joint = problem.oracles.linearise_outer(X, Y), problem.oracles.linearise_jointly(X, Y)
    jax.block_until_ready((f.gradient, f.hessian(Y), f.cross(Y), joint.gradient, joint.push(X, Y)))
    assert counts.total == Counts(gradients_f=1, gradients_g=1, hessian_products=2, cross_products=2)


def test_a_linearisation_s_gradient_counts_once_and_only_if_looked_at(instrumented):
    _, problem, counts = instrumented
    jax.block_until_ready(jax.jit(lambda x, y: problem.oracles.linearise(x, y).hessian(y))(X, Y))
    assert counts.total == Counts(hessian_products=1)

    def twice(x, y):
        g = problem.oracles.linearise(x, y)
        return g.gradient + g.gradient

    jax.block_until_ready(jax.jit(twice)(X, Y))
    assert counts.total == Counts(hessian_products=1, gradients_g=1)


def test_gradients_carried_through_a_loop_are_counted_whole(instrumented):
    _, problem, counts = instrumented

    def body(carry, _):
        f = problem.oracles.outer_gradients(X, carry.y)
        return f, f.value

    start = problem.oracles.outer_gradients(X, Y)
    assert counts.total == Counts()
    jax.block_until_ready(jax.jit(lambda s: lax.scan(body, s, length=3))(start))
    assert counts.total == Counts(gradients_f=2 + 3 * 2)


def test_loops_count_the_turns_they_take(instrumented):
    _, problem, counts = instrumented

    @jax.jit
    def program(turns, y):
        step = lambda carry: (carry[0] - 1, carry[1] - problem.oracles.inner_gradient(X, carry[1]))
        return lax.while_loop(lambda carry: carry[0] > 0, step, (turns, y))

    for turns in (0, 3, 7):
        counts.reset()
        jax.block_until_ready(program(turns, Y))
        assert counts.total == Counts(gradients_g=turns)


def test_vmap_counts_every_element(instrumented):
    _, problem, counts = instrumented
    directions = jnp.eye(2)
    dense = jax.jit(lambda x, y: jax.vmap(problem.oracles.linearise(x, y).hessian)(directions))(X, Y)
    np.testing.assert_array_equal(dense, jnp.diag(problem.oracles.linearise(X, Y).hessian(jnp.ones(2))))
    assert counts.total == Counts(hessian_products=2 + 1)
    jax.block_until_ready(jax.jit(jax.vmap(lambda y: problem.oracles.inner_gradient(X, y)))(jnp.ones((5, 2))))
    assert counts.total == Counts(hessian_products=3, gradients_g=5)


@pytest.mark.parametrize(
    ("make", "per_step"),
    [
        # The paper: Gc = 3K and Mv = 2K for AID (proof of Theorem 1), one product for ITD.
        (lambda p, L: bl.aid(p, 1 / L, 1 / L, 0.1 / L), Counts(2, 1, 1, 1)),
        (lambda p, L: bl.itd(p, 1 / L, 0.1 / L), Counts(2, 1, 0, 1)),
    ],
    ids=["aid", "itd"],
)
def test_the_paper_s_counts(instrumented, make, per_step):
    q, problem, counts = instrumented
    solver = make(problem, q.L)
    K = 11
    result = bl.run(solver, X, Y, steps=K, every=4)
    assert result.steps == K
    assert counts.total == Counts(*(K * each for each in per_step))
    counts.reset()
    state = jax.jit(lambda: bl.scan(solver, solver.init(X, Y), steps=K)[0])()
    jax.block_until_ready(state)
    assert counts.total == Counts(*(K * each for each in per_step))
    assert counts.total.Gc == 3 * K


def test_counts_add_and_subtract():
    assert Counts(1, 2, 3, 4) + Counts(1, 1, 1, 1) - Counts(0, 1, 2, 3) == Counts(2, 2, 2, 2)
