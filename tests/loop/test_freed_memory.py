"""A result's arrays go with the result. Held in a circle, they would stay until the garbage collector comes."""

import gc
import io

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rich.console import Console

import bilevel as bl
from run_options import with_options

SIZE = 1003  # of x and y, and of no other array
PROBLEM = bl.Problem(
    inner=lambda x, y, data: jnp.sum((y - x) ** 2) + 0 * jnp.sum(data), outer=lambda x, y, data: jnp.sum(y**2)
)
SOLVER = bl.soba(PROBLEM, inner=1e-2, adjoint=1e-2, outer=optax.adam(1e-2))
ROWS = np.ones((6, 3))
DATA = bl.Batch(inner=ROWS, outer=ROWS)


class KeepsItsEvent:
    def __call__(self, event):
        self.event = event


def run(solver=SOLVER, data=DATA, **options):
    options = {"steps": 4, "x0": jnp.ones(SIZE), "y0": jnp.ones(SIZE)} | options
    return bl.run(solver, data=data, **with_options(options))


def loader():
    while True:
        yield DATA


def failing():
    def refuses(event):
        raise ValueError("no")

    with pytest.raises(bl.RunError):
        run(hooks=[refuses])


def failing_objective():
    def outer(x, y, data):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run(bl.soba(bl.Problem(inner=PROBLEM.inner, outer=outer), inner=1e-2, adjoint=1e-2, outer=1e-2))


def gone_on(folder):
    run(checkpoint=folder)
    return run(checkpoint=folder, resume="auto", steps=8)


WAYS = {
    "plain": lambda _: run(),
    "a stream": lambda _: run(data=bl.epochs(DATA, size=2)),
    "a loader": lambda _: run(data=loader()),
    "a warm-up": lambda _: run(warmup=2),
    "no replay": lambda _: run(snapshots="off"),
    "halving": lambda _: run(on_divergence="halve"),
    "divergence": lambda _: run(bl.soba(PROBLEM, inner=1e5, adjoint=1e5, outer=1e5), steps=30),
    "a probe": lambda _: run(probe=lambda state, info: {"a": 1.0}),
    "a tolerance": lambda _: run(tol=1e-9, progress=True),
    "a live view": lambda _: run(
        hooks=[bl.hooks.Live(console=Console(file=io.StringIO(), force_terminal=True))]
    ),
    "the best": lambda _: run(hooks=[bl.hooks.Best("outer_value")]),
    "a hook that keeps an event": lambda _: run(hooks=[KeepsItsEvent()]),
    "a checkpoint": lambda folder: run(checkpoint=folder),
    "going on, from a folder": gone_on,
    "going on, from a result": lambda _: run(resume=run(), x0=None, y0=None),
    "offload": lambda _: run(offload="outer"),
    "a hook that raises": lambda _: failing(),
    "an objective that raises": lambda _: failing_objective(),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_held(way, tmp_path):
    alive = lambda: sum(SIZE in array.shape for array in jax.live_arrays())
    gc.disable()  # what earlier tests left in circles counts before and after
    before = alive()
    try:
        with jax.numpy_dtype_promotion("standard"):  # optax's adam needs it
            result = WAYS[way](tmp_path)
        held = alive()
        del result
        assert alive() == before
        assert held > before or "raises" in way
    finally:
        gc.enable()
