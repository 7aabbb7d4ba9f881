"""What a first call costs, in what is traced and compiled and not by a clock."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from zoo import PROBLEMS, QUICK


def counted(instance, calls):
    """The problem, with a note of every evaluation of an objective in Python, that is at every trace."""

    def noting(letter, function):
        def noted(x, y, *batch):
            calls.append(letter)
            return function(x, y, *batch)

        return noted

    return bl.Problem(inner=noting("g", instance.problem.inner), outer=noting("f", instance.problem.outer))


@pytest.mark.slow
@pytest.mark.parametrize("row", QUICK, ids=str)
def test_every_line_of_a_method_is_traced_once(row):
    """Beside that, each objective is tried once; the peek at the first step, its loop and its replay add nothing."""
    instance, calls = PROBLEMS[row.problems[-1]](jnp.float64), []
    solver = row.make(counted(instance, calls), instance.L)
    start = instance.x0, instance.y0
    bl.run(solver, *start, data=instance.data, steps=1)
    taken, calls[:] = list(calls), []
    bl.run(solver, *start, data=instance.data, steps=3)
    assert calls == []

    again = row.make(counted(instance, calls), instance.L)
    state = jax.eval_shape(lambda: again.init(*start, instance.data))
    jax.eval_shape(again.step, state, instance.data)
    for letter in "fg":
        assert 0 < taken.count(letter) <= calls.count(letter) + 1


COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, fun_name="", **__: COMPILED.append(fun_name) if "backend_compile" in event else None
)


def test_two_programs_are_compiled_beside_those_of_one_operation():
    """The start, and the loop. Whether the numbers given are finite is seen without one."""
    a = np.random.default_rng(0).normal(size=(40, 300))
    g = lambda x, y: jnp.sum((a @ y - 1) ** 2) + jnp.sum(jnp.exp(x) * y**2)
    f = lambda x, y: jnp.sum((a @ y - 2) ** 2)
    solver = bl.aid(
        bl.Problem(inner=g, outer=f), inner=1e-3, adjoint=1e-3, outer=optax.sgd(1e-3, momentum=0.9)
    )
    COMPILED.clear()
    bl.run(solver, jnp.zeros(300), jnp.zeros(300), steps=1)
    one_operation = {f"jit({name})" for name in dir(jax.lax)}
    assert [name for name in COMPILED if name not in one_operation] == ["jit(begin)", "jit(chunk)"]
