"""`bl.run` of AID, SOBA, ITD and F2SA takes the same steps as the reference in plain torch."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import bilevel as bl
import bilevel.torch
from bilevel.torch.types import to_jax
from torch_front import native
from torch_front.architectures import ARCHITECTURES, EXAMPLES, plain, weighted, weights

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}  # relative to the distance moved
STEPS = 6
ALPHA, ETA, BETA, LAMBDA = 0.1, 0.05, 20.0, 4.0


class Method(NamedTuple):
    ours: Callable[[Any], Any]
    theirs: Callable[[native.Problem], Callable[..., native.State]]
    draws: int = 1  # batches of each level per step
    copies: bool = False


METHODS = {
    "aid": Method(
        lambda p: bl.aid(p, inner=ALPHA, adjoint=ETA, outer=BETA), lambda p: native.aid(p, ALPHA, ETA, BETA)
    ),
    "soba": Method(
        lambda p: bl.soba(p, inner=ALPHA, adjoint=ETA, outer=BETA), lambda p: native.soba(p, ALPHA, ETA, BETA)
    ),
    "itd": Method(lambda p: bl.itd(p, inner=ALPHA, outer=BETA), lambda p: native.itd(p, ALPHA, BETA)),
    "f2sa": Method(
        lambda p: bl.f2sa(p, inner=ALPHA, outer=BETA, penalty=LAMBDA, batches="shared"),
        lambda p: native.f2sa(p, ALPHA, BETA, LAMBDA),
        copies=True,
    ),
}
SEVERAL = {  # inner steps, with a draw for each use of a batch
    "aid": Method(
        lambda p: bl.aid(p, inner=ALPHA, adjoint=ETA, outer=BETA, inner_steps=2),
        lambda p: native.aid(p, ALPHA, ETA, BETA, steps=2),
        draws=4,
    ),
    "itd": Method(
        lambda p: bl.itd(
            p, inner=ALPHA, outer=BETA, inner_steps=3
        ),  # the statistics that f reads depend on x
        lambda p: native.itd(p, ALPHA, BETA, steps=3),
        draws=3,
    ),
    "f2sa": Method(
        lambda p: bl.f2sa(p, inner=ALPHA, outer=BETA, penalty=LAMBDA, inner_steps=2),
        lambda p: native.f2sa(p, ALPHA, BETA, LAMBDA, steps=2),
        draws=6,
        copies=True,
    ),
}


def loaders(name: str, dtype: torch.dtype, last: int) -> tuple[DataLoader, DataLoader]:
    """Return shuffled loaders of the training and the validation examples; the last inner batch has `last` rows."""
    architecture, size = ARCHITECTURES[name], 4
    inner = (*architecture.data(EXAMPLES - size + last, dtype), torch.arange(EXAMPLES - size + last))
    outer = architecture.data(2 * size, dtype, seed=3)
    made = []
    for seed, tensors in enumerate((inner, outer)):
        generator = torch.Generator().manual_seed(seed)
        made.append(DataLoader(TensorDataset(*tensors), size, shuffle=True, generator=generator))
    return tuple(made)


@cache
def front_of(name: str, dtype: torch.dtype) -> Any:
    model = ARCHITECTURES[name].model(dtype)
    return bl.torch.front(model, inner=weighted, outer=plain)


def compare(name: str, dtype: torch.dtype, method: Method, last: int = 2) -> None:
    x, front = weights(dtype), front_of(name, dtype)
    problem = native.Problem(ARCHITECTURES[name].model(dtype), weighted, plain)
    state = native.start(problem, x, method.copies)
    theirs = native.run(method.theirs(problem), state, loaders(name, dtype, last), STEPS, method.draws)

    inner, outer = loaders(name, dtype, last)
    result = bl.run(
        method.ours(front.problem), x, **front.start, data=bl.loaders(inner=inner, outer=outer), steps=STEPS
    )
    assert str(result.x.dtype) == str(dtype).removeprefix("torch.")
    ours = {"x": {"x": result.x}, "y": result.y}
    for what, before, after in (("x", {"x": x}, {"x": theirs.x}), ("y", problem.y0, theirs.y)):
        distance = np.sqrt(sum(float((after[n] - before[n]).double().square().sum()) for n in before))
        assert distance > 1e-3, what
        assert set(ours[what]) == set(after)
        for n in after:
            np.testing.assert_allclose(
                ours[what][n], to_jax(after[n]), rtol=0, atol=TOLERANCE[dtype] * distance, err_msg=n
            )
    buffers = result.model_state or {}
    assert set(buffers) == {f"model.{n}" for n in theirs.buffers}
    for n, buffer in theirs.buffers.items():
        ours_of_it = buffers[f"model.{n}"]
        assert str(ours_of_it.dtype) == str(buffer.dtype).removeprefix("torch.")
        if not buffer.is_floating_point():
            np.testing.assert_array_equal(ours_of_it, to_jax(buffer), err_msg=n)
        np.testing.assert_allclose(ours_of_it, to_jax(buffer), rtol=10 * TOLERANCE[dtype], err_msg=n)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["mlp", "cnn", "one-block gpt", "lstm"])
def test_steps_in_float64_equal_those_in_torch(name, method):
    incomplete = name == "mlp"  # each size of a batch is compiled
    compare(name, torch.float64, METHODS[method], last=2 if incomplete else 4)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_steps_in_float32_equal_those_in_torch(method):
    compare("mlp", torch.float32, METHODS[method], last=4)


@pytest.mark.slow
@pytest.mark.parametrize("method", SEVERAL)
def test_several_inner_steps_on_their_own_batches_equal_those_in_torch(method):
    compare("mlp", torch.float64, SEVERAL[method], last=4)
