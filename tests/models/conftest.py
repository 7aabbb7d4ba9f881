"""Frameworks are tried as users have them: single precision and JAX's ordinary promotion, on which layers rely."""

import jax
import jax.numpy as jnp
import pytest
from model_contract import ROWS, make_task

import bilevel as bl
from run_options import with_options


@pytest.fixture(scope="module", autouse=True)
def as_users_have_jax():
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module")
def task(model):
    return make_task(model)


@pytest.fixture(scope="module")
def run(model, task):
    def go(**options):
        start = {} if "resume" in options else dict(x0=jnp.zeros(ROWS), y0=model.y0, model_state=model.state0)
        return bl.run(
            task.solver,
            **with_options({**start, **options}),
            data=task.data,
        )

    return go


@pytest.fixture(scope="module")
def warmed(model, task):
    """A run before its warm-up and after one, two and three steps of it."""
    start = jax.jit(
        lambda y0, state0: bl.start(task.solver, jnp.zeros(ROWS), y0, task.data, model_state=state0)
    )
    warm = jax.jit(lambda run, data: bl.warm_up(task.solver, run, data, steps=1))
    runs = [start(model.y0, model.state0)]
    for _ in range(3):
        runs.append(warm(runs[-1], task.data))
    return runs
