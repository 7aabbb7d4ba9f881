"""Functions of single entries agree with torch, also at their kinks."""

import math

import pytest
import torch
import torch.nn.functional as F

from torch_front.layers import check_layer
from torch_front.operations import check, tensor

INTEGERS = torch.tensor([[-2, 1, 2], [0, 1, -1]])
NOT_FINITE = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e30, -1e30])
LINE = torch.tensor([[-3, -2.5, -1, -0.5, 0], [0.5, 1, 2.5, 3, 4]], dtype=torch.float64)
INNER = torch.tensor([[-0.9, -0.5, -0.1, 0, 0.2], [0.3, 0.4, 0.6, 0.75, 0.99]], dtype=torch.float64)
POSITIVE = torch.tensor([[1e-3, 0.1, 0.5, 0.9, 1], [1.1, 2, 2.5, 5, 10]], dtype=torch.float64)
POINTS = {
    "line": LINE,
    "long": torch.tensor([[-800, -25, -6, -3, -1], [0, 3, 6, 25, 800]], dtype=torch.float64),
    "inner": INNER,
    "unit": (1 + INNER) / 2,
    "positive": POSITIVE,
    "above one": 1 + POSITIVE,
}
OF_INTEGERS_TOO = {
    "line": "neg abs sign sgn square floor ceil trunc round nan_to_num relu cos sin cosh sinh tan tanh atan asinh "
    "angle exp exp2 expm1 erf erfc sigmoid i0 special_i0e special_i1 special_i1e special_ndtr",
    "long": "hardtanh relu6",
    "positive": "log log10 log1p log2 sqrt rsqrt reciprocal sinc special_entr",
    "inner": "asin acos atanh erfinv",
    "above one": "acosh",
    "unit": "logit special_ndtri",
}
OF_FLOATS = {
    "line": "frac mish gelu special_log_ndtr",
    "long": "silu log_sigmoid softplus elu celu leaky_relu hardsigmoid hardswish hardshrink softshrink",
    "positive": "lgamma digamma",
}
NAMES = [
    (name, where, table is OF_INTEGERS_TOO)
    for table in (OF_INTEGERS_TOO, OF_FLOATS)
    for where, names in table.items()
    for name in names.split()
]
NO_DOUBLE_BACKWARD = ("hardsigmoid",)
NO_BFLOAT16 = ("special_log_ndtr", "special_ndtri")
OTHER_LIMITS = ("gelu", "digamma")  # torch: NaN at infinity, infinity at 0


@pytest.mark.parametrize(("name", "where", "of_integers"), NAMES)
def test_functions(name, where, of_integers):
    points, operation = POINTS[where], f"aten.{name}.default"
    order = 1 if name in NO_DOUBLE_BACKWARD else 2
    check(operation, points, derivatives=order)
    check(operation, points[0, 1].float(), derivatives=order)
    check(operation, points[:0], derivatives=0)
    if name not in OTHER_LIMITS:
        check(operation, NOT_FINITE, derivatives=0)
    if name not in NO_BFLOAT16:
        check(operation, points.bfloat16())
    if of_integers:
        check(operation, INTEGERS, tolerance=1e-5)


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite", "signbit", "logical_not"])
def test_questions(name):
    for values in (
        NOT_FINITE,
        NOT_FINITE.bfloat16(),
        INTEGERS,
        INTEGERS > 0,
        torch.tensor(0.0),
        torch.zeros(0, 2),
    ):
        check(f"aten.{name}.default", values, derivatives=0)


def test_bits():
    check("aten.bitwise_not.default", INTEGERS)
    check("aten.bitwise_not.default", INTEGERS.to(torch.uint8))
    check("aten.bitwise_not.default", INTEGERS > 0)


KINKS = torch.tensor([-1, 0, 0.2, 0.5, 0.8, 1, 2], dtype=torch.float64)
WITH_NUMBERS = [
    ("round.decimals", (100 * LINE / 7,), {"decimals": 1}),
    ("nan_to_num.default", (NOT_FINITE, 1.0, 2.0, -2.0), {}),
    ("elu.default", (LINE, 2.0, 1.5, 0.5), {}),
    ("celu.default", (LINE, 2.0), {}),
    ("softplus.default", (LINE, 2.0, 5.5), {}),
    ("gelu.default", (LINE,), {"approximate": "tanh"}),
    ("leaky_relu.default", (LINE, 0.3), {}),
    ("hardtanh.default", (KINKS, 0.2, 0.8), {}),
    ("hardshrink.default", (KINKS, 0.8), {}),
    ("softshrink.default", (KINKS, 0.8), {}),
    ("threshold.default", (KINKS, 0.5, -7.0), {}),
    ("_prelu_kernel.default", (LINE + 0.1, tensor(1, 5)), {}),
    ("glu.default", (tensor(3, 4),), {}),
    ("glu.default", (tensor(4, 3), 0), {}),
    ("log_sigmoid_forward.default", (LINE,), {}),
    *[("polygamma.default", (n, POINTS["positive"][:, 1:]), {}) for n in range(4)],
]


@pytest.mark.parametrize(("name", "args", "named"), WITH_NUMBERS)
def test_functions_with_numbers(name, args, named):
    reference = None
    if name == "log_sigmoid_forward.default":  # torch does not differentiate the second output
        reference = lambda a: (torch.nn.functional.logsigmoid(a), (-a.abs()).exp().detach())
    check(f"aten.{name}", *args, reference=reference, **named)


def test_logit_is_constant_outside_its_bounds():
    check("aten.logit.default", KINKS, 0.2, derivatives=1)  # torch: the second derivative is NaN


def test_prelu_at_zero():
    check(
        "aten._prelu_kernel.default", LINE, tensor(1, 5), derivatives=1
    )  # torch: another slope in its second derivative


def test_complex_numbers():
    numbers = torch.complex(tensor(3, 2), tensor(3, 2, seed=1))
    for name in ("view_as_real", "real", "imag", "abs", "angle"):
        check(f"aten.{name}.default", numbers)

    def rotated(a, angle):
        turned = torch.view_as_complex(a) * torch.polar(torch.ones_like(angle), angle)
        return torch.view_as_real(turned * torch.complex(angle, angle).conj())

    check_layer(rotated, tensor(4, 3, 2), tensor(4, 3))


def test_activations_of_a_graph():
    """Compare activations at their kinks, also those that torch decomposes, in one export."""
    names = "relu relu6 leaky_relu elu selu celu gelu silu mish softplus softshrink hardshrink hardswish hardtanh "
    functions = [getattr(F, name) for name in (names + "logsigmoid softsign tanhshrink rrelu").split()]

    def outputs(a, weight):
        others = (
            F.prelu(a + 0.1, weight),
            F.threshold(a, 0.5, 2.0),
            F.glu(a[:, :4]),
            F.softmin(a, 1),
            a.frac(),
            a.sgn(),
        )
        rounded = [each(a) for each in (torch.round, torch.floor, torch.ceil, torch.trunc, torch.nan_to_num)]
        return [each(a) for each in functions], others, rounded, a.clip(-1, 2.5), a.abs(), a.float_power(2)

    check_layer(outputs, LINE, tensor(5))
