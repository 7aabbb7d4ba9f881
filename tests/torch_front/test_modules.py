"""Derivatives and new buffers of whole modules agree with torch's double backward, in both modes."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bilevel as bl
import bilevel.torch
from bilevel.torch.types import to_jax
from torch_front import native
from torch_front.architectures import ARCHITECTURES, weighted, weights

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}  # relative to the largest entry
COUNT = 4  # examples of a batch


class Derivatives(NamedTuple):
    value: Any
    y: Any
    x: Any
    hessian: Any
    cross: Any
    state: Any = None


def of_torch(problem: native.Problem, level: str, x: Any, batch: Any, v: Any) -> Derivatives:
    loss = getattr(problem, level)
    y, buffers = problem.y0, problem.buffers0
    of_x, of_y, _ = native.gradients(loss, x, y, buffers, batch)
    cross, hessian = native.products(loss, x, y, buffers, batch, v)
    state = problem.next_buffers(x, y, buffers, batch) if level == "g" else None
    return Derivatives(loss(x, y, buffers, batch), of_y, of_x, hessian, cross, state)


@partial(jax.jit, static_argnums=0)
def of_jax(problem: Any, x: Any, y: Any, batch: Any, v: Any) -> tuple[Derivatives, Derivatives]:
    """Return the derivatives of g, in training mode, and of f, in evaluation mode."""
    oracles, g = problem.oracles, problem.g.evaluate(x, y, batch)
    f = oracles.outer_gradients(x, y, batch)
    inner, outer = oracles.along(x, y, v, batch), oracles.linearize_outer(x, y, batch)
    of_g = oracles.inner_gradients(x, y, batch)
    return (
        Derivatives(g.loss, inner.gradient, of_g.x, inner.hessian, inner.cross, g.state),
        Derivatives(f.value, f.y, f.x, *outer.both(v)),
    )


def close(ours: Any, theirs: Any, dtype: torch.dtype, what: str) -> None:
    """Assert that two trees of arrays agree, relative to the largest entry of the whole tree."""
    theirs = jax.tree.map(to_jax, theirs)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs), what
    scale = max((float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(theirs)), default=1.0)
    assert scale > 0, what
    for mine, their in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert mine.dtype == their.dtype, what
        np.testing.assert_allclose(mine, their, rtol=0, atol=TOLERANCE[dtype] * scale, err_msg=what)


class Compared(NamedTuple):
    """Derivatives of g in training mode and of f in evaluation mode."""

    ours: tuple[Derivatives, Derivatives]
    theirs: tuple[Derivatives, Derivatives]


def compared(name: str, dtype: torch.dtype) -> Compared:
    architecture = ARCHITECTURES[name]
    model, x = architecture.model(dtype), weights(dtype)
    rows = torch.tensor([3, 0, 7, 3])  # one example twice
    batches = [(*architecture.data(COUNT, dtype, seed), rows) for seed in (2, 3)]
    problem = native.Problem(model, weighted, weighted)
    generator = torch.Generator().manual_seed(4)
    v = {
        n: torch.randn(p.shape, generator=generator, dtype=torch.float64).to(dtype)
        for n, p in problem.y0.items()
    }
    theirs = tuple(of_torch(problem, level, x, batch, v) for level, batch in zip("gf", batches, strict=True))
    front = bl.torch.front(model, inner=weighted, outer=weighted)
    y, state = front.start["y0"], front.start["model_state"]
    batch = bl.Batch(*jax.tree.map(to_jax, batches), key=jax.random.key(0), state=state)
    ours = of_jax(front.problem, to_jax(x), y, batch, jax.tree.map(to_jax, v))
    return Compared(ours, theirs)


CASES = [(name, torch.float64) for name in ARCHITECTURES if name != "one-block gpt"]
CASES += [(name, torch.float32) for name in ("mlp", "cnn", "one-block gpt")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), CASES, ids=lambda value: str(value).removeprefix("torch."))
def test_derivatives_and_buffers_equal_those_of_torch(name, dtype):
    for mode, ours, theirs in zip(("training", "evaluation"), *compared(name, dtype), strict=True):
        state = {f"model.{name}": buffer for name, buffer in (theirs.state or {}).items()}
        close(ours.state or {}, state, dtype, f"buffers, {mode}")
        for what in ("value", "y", "x", "hessian", "cross"):
            close(getattr(ours, what), getattr(theirs, what), dtype, f"{what}, {mode}")


def test_tied_parameters_are_one_leaf_and_frozen_ones_are_not_in_y():
    tied, frozen = (
        bl.torch.front(ARCHITECTURES[n].model(), inner=weighted, outer=weighted)
        for n in ("gpt", "frozen mlp")
    )
    assert "tokens.weight" in tied.start["y0"]
    assert "head.weight" not in tied.start["y0"]
    assert tied.start["model_state"] is None
    assert set(frozen.start["y0"]) == {"1.weight", "1.bias", "4.weight", "4.bias", "6.weight", "6.bias"}
    assert {"model.0.weight", "model.0.bias", "model.1.running_mean"} < set(frozen.start["model_state"])
