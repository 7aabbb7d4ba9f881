"""New tensors, copies and conversions of type agree with torch."""

import math

import jax
import numpy as np
import pytest
import torch

from bilevel.torch.interpreter import call
from torch_front.layers import check_layer
from torch_front.operations import check, tensor

A = tensor(2, 3)
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", TYPES)
def test_constants(dtype):
    for value in (2, 1.7, True):
        check("aten.full.default", [2, 3], value, dtype=dtype)
        check("aten.full_like.default", A.to(dtype), value)
        check("aten.new_full.default", A.to(dtype), [2], value)
    check("aten.scalar_tensor.default", 1.7, dtype=dtype)
    for name in ("zeros", "ones"):
        check(f"aten.{name}.default", [2, 0], dtype=dtype)
        check(f"aten.{name}_like.default", A, dtype=dtype)
        check(f"aten.new_{name}.default", A.to(dtype), [])
    check("aten.eye.m", 3, 2, dtype=dtype)
    check("aten.eye.default", 3, dtype=dtype)
    positive = 3 * A.abs()  # conversions of negative floats to uint8 are undefined
    check("aten._to_copy.default", positive, dtype=dtype, derivatives=2 if dtype is torch.float64 else 0)


def test_types_of_constants():
    for value in (2, 1.7, True, math.inf):
        check("aten.full.default", [2], value)
        check("aten.scalar_tensor.default", value)
    check("aten.fill.Scalar", A, 3)
    check("aten.fill.Tensor", A, tensor())
    check("aten.fill.Tensor", A.long(), torch.tensor(2.5))


@pytest.mark.parametrize(
    "args", [(5,), (2.5,), (1, 4), (0.5, 3), (0, 1, 0.1), (5, 2, -1), (0, 7, 3), (1.0, 0.0, -0.25), (3, 3, 1)]
)
def test_ranges(args):
    overload = ("default", "start", "start_step")[len(args) - 1]
    check(f"aten.arange.{overload}", *args)
    check(f"aten.arange.{overload}", *args, dtype=torch.float64)


def test_linspace():
    for args in ((0, 1, 5), (2.5, -1, 4), (1, 3, 1), (0, 1, 0)):
        check("aten.linspace.default", *args, tolerance=1e-6)
        check("aten.linspace.default", *args, dtype=torch.float64)


def test_copies():
    for name in ("clone", "contiguous", "lift_fresh", "lift_fresh_copy"):
        check(f"aten.{name}.default", A)
    copied = lambda a, b: b.to(a.dtype).expand_as(a)
    check("aten.copy.default", A, tensor(3, dtype=torch.float32), reference=copied)
    check("aten.detach.default", A)
    check("aten._to_copy.default", A, dtype=torch.float32)


def test_empty_tensors_are_zeros():
    like = torch.zeros(2, 3)
    for name, args in (
        ("empty.memory_format", ([2, 3],)),
        ("empty_like.default", (A,)),
        ("new_empty.default", (A, [2, 3])),
        ("empty_strided.default", ([2, 3], [1, 2])),
        ("empty_permuted.default", ([2, 3], [1, 0])),
    ):
        (found,) = call(f"aten.{name}", args, {}, [like])
        np.testing.assert_array_equal(found, np.zeros((2, 3), np.float32))


def test_limits_of_integers_without_x64():
    limit = torch.iinfo(torch.int64)
    with jax.enable_x64(False):
        for value, expected in ((limit.min, -(2**31)), (limit.max, 2**31 - 1), (7, 7)):
            (found,) = call("aten.full.default", ([2], value), {}, [torch.zeros(2, dtype=torch.int64)])
            assert found.dtype == "int32"
            assert found[0] == expected


def test_stopped_gradients():
    def outputs(a):
        with torch.no_grad():
            fixed = a.exp()
        mask = torch.zeros_like(a).bool() | (a > 0)
        return (
            a.detach() * a,
            fixed * a,
            a.clone().double(),
            mask.to(a.dtype) * a,
            torch.tensor([1.0, 2.0, 3.0]) * a,
        )

    check_layer(outputs, A)
