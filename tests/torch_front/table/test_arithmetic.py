"""Arithmetic, comparisons, bits and choices agree with torch: types, broadcasting, ties and derivatives."""

import math

import pytest
import torch

from torch_front.operations import check, tensor

NUMBERS = torch.tensor([[2, -2.5, 0.5], [0, 1, -0.25]], dtype=torch.float64)
OTHERS = torch.tensor([2, 0.75, -0.5], dtype=torch.float64)
INTEGERS, OTHER_INTEGERS = torch.tensor([[7, -7, 0], [5, -1, 3]]), torch.tensor([3, -2, 4])
NOT_FINITE = torch.tensor([[math.nan], [math.inf], [-math.inf], [1.0]])

WITH_NUMBERS = ["add", "sub", "mul", "div", "remainder", "fmod", "copysign", "rsub"]
DIFFERENTIABLE = [*WITH_NUMBERS, "maximum", "minimum", "fmax", "fmin", "atan2", "hypot"]
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]
LOGICAL = ["logical_and", "logical_or", "logical_xor"]
BITS = ["bitwise_and", "bitwise_or", "bitwise_xor"]
NOT_OF_BOOLEANS = ("sub", "rsub", "remainder", "fmod", "hypot")


def named(name):
    return f"aten.{name}.{'Tensor' if name in WITH_NUMBERS + COMPARISONS else 'default'}"


def order(name):
    return 1 if name == "copysign" else 2  # torch: NaN in second derivatives at 0


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_pairs(name):
    check(named(name), NUMBERS, OTHERS, derivatives=order(name))
    check(named(name), tensor(2, 1, 2, dtype=torch.float32), tensor(3, 1, dtype=torch.float32, seed=1))
    check(named(name), tensor(), tensor(seed=1))


@pytest.mark.parametrize("name", DIFFERENTIABLE + COMPARISONS + LOGICAL)
def test_types(name):
    operation = named(name)
    check(operation, tensor(0, 2), tensor(2), derivatives=0)
    check(operation, NOT_FINITE[name == "hypot" :], NOT_FINITE.T[:, 1:], derivatives=0)
    check(operation, NUMBERS.bfloat16(), OTHERS.bfloat16())
    check(operation, NUMBERS.float(), torch.tensor(2.5, dtype=torch.float64), derivatives=0)  # float32
    check(operation, NUMBERS.bfloat16(), OTHERS.float(), derivatives=0)
    if name != "hypot":
        check(operation, INTEGERS, OTHER_INTEGERS, tolerance=1e-6)
        check(operation, INTEGERS.to(torch.uint8), torch.tensor([2, 3, 4], dtype=torch.int32), tolerance=1e-6)
    if name not in NOT_OF_BOOLEANS:
        check(operation, INTEGERS > 0, OTHER_INTEGERS > 0, tolerance=1e-6)


@pytest.mark.parametrize("name", WITH_NUMBERS + COMPARISONS)
def test_numbers(name):
    for number in (2, -1.5):
        check(f"aten.{name}.Scalar", NUMBERS, number, derivatives=order(name))
        check(f"aten.{name}.Scalar", INTEGERS, number, tolerance=1e-6)


@pytest.mark.parametrize("name", ["add", "sub", "rsub"])
def test_factor(name):
    check(f"aten.{name}.Tensor", NUMBERS, OTHERS, alpha=2.5)
    check(f"aten.{name}.Tensor", INTEGERS, OTHER_INTEGERS, alpha=2)
    check(f"aten.{name}.Tensor", NUMBERS.bfloat16(), OTHERS.bfloat16(), alpha=2.5)


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_division_with_rounding(mode):
    check("aten.div.Tensor_mode", 2.3 * NUMBERS, OTHERS, rounding_mode=mode)
    check("aten.div.Tensor_mode", INTEGERS, OTHER_INTEGERS, rounding_mode=mode)
    check("aten.div.Tensor_mode", NUMBERS.bfloat16(), OTHERS.bfloat16(), rounding_mode=mode)
    check(
        "aten.div.Tensor_mode", NOT_FINITE, torch.tensor([1.0, -2.0, 0.0]), rounding_mode=mode, derivatives=0
    )
    check("aten.div.Scalar_mode", INTEGERS, -2, rounding_mode=mode)
    check("aten.div.Scalar_mode", INTEGERS, 0.5, rounding_mode=mode)


def test_floor_divide():
    tenth = torch.tensor([0.1, 0.7, -0.3], dtype=torch.float64)  # the quotient rounds up to a whole number
    check("aten.floor_divide.default", tenth * 10, tenth, derivatives=0)
    check("aten.floor_divide.default", INTEGERS, OTHER_INTEGERS)
    check("aten.floor_divide.Scalar", INTEGERS, -2)


POSITIVE = torch.tensor([0, 1, 4], dtype=torch.float64)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, 0.5, 1.5, 2.0, 2.5, -2.0, 12])
def test_powers(exponent):
    check(
        "aten.pow.Tensor_Scalar",
        POSITIVE,
        exponent,
        derivatives=2 if exponent in (0, 1, 2, 3, 2.5, 12) else 0,
    )
    check("aten.pow.Tensor_Scalar", POSITIVE[1:], exponent)
    check("aten.pow.Tensor_Scalar", POSITIVE.float()[:, None], exponent, derivatives=0)


def test_powers_of_pairs():
    check(
        "aten.pow.Tensor_Tensor",
        POSITIVE[:, None],
        torch.tensor([0, 1, 2, 0.5], dtype=torch.float64),
        derivatives=1,
    )
    check("aten.pow.Tensor_Tensor", POSITIVE[1:, None], torch.tensor([-1, 2, 0.5], dtype=torch.float64))
    check("aten.pow.Tensor_Tensor", INTEGERS, OTHER_INTEGERS.abs())
    check("aten.pow.Tensor_Tensor", NUMBERS, torch.tensor([2, 3, 1]))
    check("aten.pow.Tensor_Tensor", POSITIVE.bfloat16(), tensor(3, dtype=torch.bfloat16, low=0))
    check("aten.pow.Tensor_Scalar", INTEGERS, 2)
    check("aten.pow.Tensor_Scalar", INTEGERS > 0, 2)
    check("aten.pow.Tensor_Scalar", INTEGERS, 2.5, tolerance=1e-6)
    check("aten.pow.Scalar", 2, NUMBERS)
    check("aten.pow.Scalar", 0, POSITIVE, derivatives=1)
    check("aten.pow.Scalar", 2, INTEGERS.abs())
    check("aten.pow.Scalar", 2.5, INTEGERS, tolerance=1e-6)


def test_derivatives_at_zero():
    zero, one = torch.zeros(2, dtype=torch.float64), torch.tensor([0, 1], dtype=torch.float64)
    check("aten.atan2.default", zero, one, derivatives=1)
    check("aten.hypot.default", one, zero, derivatives=1)
    check("aten.xlogy.Tensor", zero, 1 + one)
    check("aten.xlogy.Tensor", one, 1 + zero)
    check("aten.special_xlog1py.default", zero, one)


@pytest.mark.parametrize(
    "name", ["xlogy.Tensor", "special_xlog1py.default", "logaddexp.default", "logaddexp2.default"]
)
def test_logarithms(name):
    positive = torch.tensor([0.5, 1, 3], dtype=torch.float64)
    check(f"aten.{name}", NUMBERS, positive)
    check(f"aten.{name}", NUMBERS.bfloat16(), positive.bfloat16())
    check(f"aten.{name}", torch.zeros(1), torch.tensor([0.0, -1.0, math.nan]), derivatives=0)
    if name.startswith("log"):
        check(f"aten.{name}", positive, positive)
        check(f"aten.{name}", NOT_FINITE, NOT_FINITE.T, derivatives=0)
    else:
        check(f"aten.{name}", INTEGERS, OTHER_INTEGERS, tolerance=1e-6)


def test_numbers_with_logarithms():
    check("aten.xlogy.Scalar_Other", NUMBERS, 2.5)
    check("aten.xlogy.Scalar_Self", 2.5, NUMBERS.abs() + 1)
    check("aten.special_xlog1py.other_scalar", NUMBERS, 2.5)
    check("aten.special_xlog1py.self_scalar", 2.5, NUMBERS.abs())
    check("aten.remainder.Scalar_Tensor", 2.5, OTHERS, derivatives=0)


@pytest.mark.parametrize("name", ["igamma", "igammac", "special_zeta"])
def test_special_pairs(name):
    positive = torch.tensor([1.5, 2, 3], dtype=torch.float64)
    check(f"aten.{name}.default", positive, positive[:, None] / 2, derivatives=0)


@pytest.mark.parametrize("name", BITS)
def test_bits(name):
    for a, b in (
        (INTEGERS, OTHER_INTEGERS),
        (INTEGERS > 0, OTHER_INTEGERS > 0),
        (INTEGERS > 0, OTHER_INTEGERS),
    ):
        check(f"aten.{name}.Tensor", a, b)
    check(f"aten.{name}.Scalar", INTEGERS, 6)
    check(f"aten.{name}.Scalar_Tensor", 6, INTEGERS.to(torch.uint8))


def test_shifts_and_divisors():
    shift = torch.tensor([1, 0, 3])
    for name in ("bitwise_left_shift", "bitwise_right_shift"):
        check(f"aten.{name}.Tensor", INTEGERS, shift)
        check(f"aten.{name}.Tensor_Scalar", INTEGERS, 2)
        check(f"aten.{name}.Scalar_Tensor", 9, shift)
    for name in ("__lshift__", "__rshift__"):
        check(f"aten.{name}.Tensor", INTEGERS, shift)
        check(f"aten.{name}.Scalar", INTEGERS.int(), 2)
    for name in ("gcd", "lcm"):
        check(f"aten.{name}.default", INTEGERS, OTHER_INTEGERS)
    check("aten.ldexp.Tensor", NUMBERS, OTHERS)
    check("aten.ldexp.Tensor", NUMBERS, OTHER_INTEGERS, derivatives=0)  # torch: 0 for negative exponents


def test_where():
    condition = torch.tensor([True, False, True])
    check("aten.where.self", condition, NUMBERS, OTHERS)
    check("aten.where.self", condition[:, None], tensor(), tensor(1, dtype=torch.float32))
    check("aten.where.self", condition, INTEGERS, OTHERS)
    check("aten.where.self", condition.to(torch.uint8), INTEGERS, OTHER_INTEGERS)
    check("aten.where.self", condition[:0], NUMBERS[:, :0], OTHERS[:0])


LOW = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1], dtype=torch.float64)
HIGH = torch.tensor([1, 1, 1, 1, 1, 1, 0, 0], dtype=torch.float64)
AT_BOUNDS = torch.tensor([0, 1, 0.5, 3, 0, -1, 1, 2], dtype=torch.float64)


def test_clamp():
    for low, high in ((0, 1), (0.25, None), (None, 0.5), (1, 0)):
        check("aten.clamp.default", AT_BOUNDS, low, high)
        check("aten.clamp.default", INTEGERS, low, high, tolerance=1e-6)
    check("aten.clamp.Tensor", AT_BOUNDS, LOW, HIGH)
    check("aten.clamp.Tensor", AT_BOUNDS, LOW)
    check("aten.clamp.Tensor", AT_BOUNDS, None, HIGH[:, None])
    check("aten.clamp.Tensor", NOT_FINITE, tensor(dtype=torch.float32), NOT_FINITE.T, derivatives=0)
    check("aten.clamp.Tensor", INTEGERS, OTHER_INTEGERS, OTHER_INTEGERS + 1)
    for name, bound in (("min", LOW), ("max", HIGH)):
        check(f"aten.clamp_{name}.default", AT_BOUNDS.bfloat16(), 0.5)
        check(f"aten.clamp_{name}.Tensor", AT_BOUNDS, bound)


def test_fused():
    a, b, c = tensor(3, 1), tensor(4, seed=1), tensor(3, 4, seed=2, low=0.5)
    check("aten.addcmul.default", a, b, c, value=-0.7)
    check("aten.addcmul.default", INTEGERS, OTHER_INTEGERS, OTHER_INTEGERS, value=2)
    check("aten.addcdiv.default", a, b, c, value=-0.7)
    check("aten.addcdiv.default", *[each.bfloat16() for each in (a, b, c)])
    for weight in (0.2, 0.5, 1.3):
        check("aten.lerp.Scalar", a, b, weight)
    check("aten.lerp.Tensor", a, b, c)
