"""Wrong arguments that used to end in an error of JAX or Python: a sentence, or the right result."""

import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl

pytestmark = pytest.mark.usefixtures("as_users_see_it")

PROBLEM = bl.Problem(
    inner=lambda x, y, batch: jnp.sum((y - x) ** 2) * jnp.mean(batch),
    outer=lambda x, y, batch: jnp.sum(y**2) * jnp.mean(batch),
)
SOLVER = bl.aid(PROBLEM, inner=0.1, adjoint=0.1, outer=0.1)
X = jnp.ones(2)
INNER, BOTH = bl.Batch(inner=X), bl.Batch(inner=X, outer=X)


@pytest.mark.parametrize(
    "call",
    {
        "scan": lambda run: bl.scan(SOLVER, run, INNER, steps=2),
        "scan on minibatches": lambda run: bl.scan(
            SOLVER, bl.start(SOLVER, X, X, bl.epochs(BOTH, 1)), bl.epochs(INNER, 1), steps=2
        ),
        "scan of a state": lambda run: bl.scan(SOLVER, run.solver, INNER, steps=2),
        "warm-up": lambda run: bl.warm_up(SOLVER, run, INNER, steps=2),
        "step": lambda run: SOLVER.step(run.solver, INNER),
    }.items(),
    ids=lambda named: named[0],
)
def test_data_of_one_level_only(call):
    run = bl.start(SOLVER, X, X, BOTH)
    with pytest.raises(ValueError, match=r"no outer data were given: pass data=bl\.Batch\(outer="):
        call[1](run)


def test_a_strength_may_be_any_whole_number():
    z, step = jnp.array([3.0, -1.0]), 0.1
    np.testing.assert_array_equal(bl.prox.l1(10**30)(X, z, step), 0 * z)
    np.testing.assert_array_equal(bl.prox.l1(lambda x: 10**30)(X, z, step), 0 * z)
    shrunk = bl.prox.elastic_net(0.1, 10**30)(X, z, step)
    np.testing.assert_allclose(shrunk, (np.abs(z) - 0.01) * np.sign(z) / (1 + 1e29), rtol=1e-5)
    with pytest.raises(ValueError, match="finite and not negative"):
        bl.prox.l1(10**400)


@pytest.mark.parametrize(
    "make",
    [
        lambda problem, project: bl.solvers.iaptt(
            problem, inner=0.1, outer=0.1, inner_steps=2, project=project
        ),
        lambda problem, project: bl.tuning_free(problem, project=project),
        lambda problem, project: bl.aid(problem, inner=0.1, adjoint=0.1, outer=bl.projected(0.1, project)),
    ],
    ids=["iaptt", "tuning_free", "projected"],
)
def test_a_projection_that_is_none(make):
    with pytest.raises(TypeError, match=r"project cannot be called with float64\[2\], .*: pass a function"):
        bl.run(make(PROBLEM, int), X, X, data=BOTH, steps=2)
    with pytest.raises(TypeError, match=r"project returned .*, not a tree like its argument"):
        bl.run(make(PROBLEM, lambda x: 3.0), X, X, data=BOTH, steps=2)


@pytest.mark.parametrize(
    "make", [bl.theory.aid, bl.theory.itd, bl.theory.tight.aid], ids=["aid", "itd", "tight"]
)
def test_certificates_name_what_is_no_number(make):
    made = make(bl.theory.Constants(mu=0.5, L=1.0, M=1.0, rho=0.1))
    with pytest.raises(
        TypeError, match="y_error must be a real number or an array of them, got <class 'object'>"
    ):
        made.errors(y_error=object, v_error=None)
    with pytest.raises(TypeError, match="v_error must be a real number"):
        made.errors(0.1, "much")


@pytest.mark.parametrize("make", [bl.theory.aid, bl.theory.itd], ids=["aid", "itd"])
def test_certificates_want_two_errors(make):
    made = make(bl.theory.Constants(mu=0.5, L=1.0, M=1.0, rho=0.1))
    with pytest.raises(TypeError, match=r"errors must be a pair of numbers, .* got 0\.1: pass e\.g\."):
        made.at_beta(steps=10, gap=1.0, errors=0.1)
    assert np.isfinite(made.at_beta(steps=10, gap=1.0, errors=(0.1, 0.1)))
