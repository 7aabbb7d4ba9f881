"""The one type for a problem that can be run, and the one type for its examples."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.data import Examples
from bilevel.problems import (
    Instance,
    data_reweighting,
    feature_learning,
    quadratic,
    random_quadratic,
    ridge_logistic,
)
from bilevel.problems.reweighting import initial_mlp
from bilevel.problems.two_dimensional import FAMILY, as_data


def examples(rows: int, columns: int, seed: int, whole: bool = False) -> Examples:
    inputs = np.random.default_rng(seed).normal(size=(rows, columns))
    return Examples(inputs, inputs[:, :3].argmax(axis=1) if whole else inputs.sum(axis=1))


def instances() -> dict[str, Instance]:
    x0 = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 3)))[0].T
    mlp = initial_mlp(5, 4, 3, seed=0, dtype=np.float64)
    return {
        "quadratic": quadratic(kappa=3.0).instance(),
        "ridge_logistic": ridge_logistic().instance(),
        "random_quadratic": random_quadratic(0).instance(),
        "feature_learning": feature_learning(examples(20, 3, 1), examples(15, 3, 2), 0.5, x0),
        "reweighting": data_reweighting(examples(20, 5, 1, whole=True), examples(15, 5, 2, whole=True), mlp),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", instances())
def test_every_instance_runs_and_gets_better_by_its_own_yardstick(name):
    instance = instances()[name]
    assert instance.name == name
    solver = bl.aid(instance.problem, inner=0.3 / instance.L, adjoint=0.3 / instance.L, outer=0.02)
    result = bl.run(solver, instance.x0, instance.y0, data=instance.data, steps=500)
    judge = jax.jit(instance.measure)
    assert float(judge(result.x)) < float(judge(jnp.asarray(instance.x0)))
    assert instance.label


def test_the_yardstick_of_a_quadratic_is_its_closed_form():
    q = quadratic(kappa=3.0)
    np.testing.assert_allclose(
        q.instance().measure(jnp.ones(2)), np.linalg.norm(q.hypergradient(jnp.ones(2)))
    )


@pytest.mark.slow
def test_the_yardsticks_by_newton_and_by_closed_form_agree():
    p = random_quadratic(1)
    phi = lambda x: p.problem.f(x, p.inner_solution(x), p.data)
    x = jnp.asarray([0.3, -0.2, 0.5])
    np.testing.assert_allclose(p.instance().measure(x), np.linalg.norm(jax.grad(phi)(x)), rtol=1e-10)


@pytest.mark.slow
def test_a_quadratic_given_as_data_is_the_same_problem():
    q = quadratic(kappa=4.0)
    run = lambda problem, data: bl.run(
        bl.aid(problem, inner=2.0, adjoint=2.0, outer=0.1), jnp.ones(2), jnp.zeros(2), data=data, steps=50
    )
    np.testing.assert_allclose(run(FAMILY, as_data(q)).x, run(q.problem, None).x, rtol=1e-13)


def test_examples_are_a_tree_of_their_arrays():
    whole = Examples(np.ones((4, 2), np.float32), np.arange(4), "made up")
    assert [leaf.shape for leaf in jax.tree.leaves(whole)] == [(4, 2), (4,)]
    half = jax.jit(lambda e: jax.tree.map(lambda a: a[:2], e))(whole)
    assert isinstance(half, Examples)
    assert (len(half), half.source) == (2, "made up")
    with pytest.raises(dataclasses.FrozenInstanceError):
        whole.inputs = None


@pytest.mark.slow
def test_minibatches_of_examples_find_their_weights():
    """Examples as they were read are a level of the data; a minibatch knows its rows, and so do the weights."""
    train, valid = examples(20, 5, 1, whole=True), examples(15, 5, 2, whole=True)
    instance = data_reweighting(train, valid, initial_mlp(5, 4, 3, seed=0, dtype=np.float64))
    solver = bl.itd(instance.problem, inner=0.5, outer=1.0)
    data = bl.epochs(instance.data, bl.Levels(inner=4, outer=None))
    once = bl.run(solver, instance.x0, instance.y0, data=data, steps=1)
    assert int((np.asarray(once.x) != 0).sum()) == 4
    epoch = bl.run(solver, instance.x0, instance.y0, data=data, steps=5)
    assert np.all(np.asarray(epoch.x) != 0)


def test_there_is_one_public_type_of_each_name():
    assert not hasattr(bl.problems, "Examples")
    assert bl.data.Examples is Examples
    assert type(ridge_logistic().train) is Examples
