"""Floating-point operations of a step, by XLA's own count: numbers that do not depend on the machine's mood."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import bilevel as bl
from bilevel.data import Examples
from bilevel.problems.reweighting import MLP, PROBLEM

TRAIN, VALID = 2000, 500
README = (Path(__file__).parents[2] / "README.md").read_text()

SOLVERS = {
    "itd": (lambda problem: bl.itd(problem, inner=5e-2, outer=1e-3), 1.8),
    "aid": (lambda problem: bl.aid(problem, inner=5e-2, adjoint=5e-2, outer=1e-3), 3.3),
    "soba": (lambda problem: bl.soba(problem, inner=5e-2, adjoint=5e-2, outer=1e-3), 2.3),
}


@pytest.fixture(scope="module")
def task():
    """One weight per training image, an MLP 784-256-10; shapes only, nothing is computed."""
    real = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    rows = lambda n: Examples(real(n, 784), jax.ShapeDtypeStruct((n,), jnp.int32))
    y = MLP(real(784, 256), real(256), real(256, 10), real(10))
    return PROBLEM, real(TRAIN), y, bl.Batch(inner=rows(TRAIN), outer=rows(VALID))


def operations(function, *shapes) -> float:
    return jax.jit(function).lower(*shapes).compile().cost_analysis()["flops"]


@pytest.fixture(scope="module")
def gradient_step(task) -> float:
    problem, x, y, data = task
    step = lambda x, y, data: jax.tree.map(lambda a, g: a - 0.05 * g, y, jax.grad(problem.g, 1)(x, y, data))
    return operations(step, x, y, data)


@pytest.mark.parametrize("name", SOLVERS)
def test_a_step_costs_a_small_multiple_of_a_gradient_step(task, gradient_step, name):
    problem, x, y, data = task
    make, limit = SOLVERS[name]
    solver = make(problem)
    state = jax.eval_shape(solver.init, x, y, data)
    ratio = operations(solver.step, state, data) / gradient_step
    assert 1.0 < ratio <= limit
    told = float(re.search(rf"`bl\.{name}`[^|]*\| (\d\.\d\d) ×", README)[1])
    assert ratio == pytest.approx(told, abs=0.01)
