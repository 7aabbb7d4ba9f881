"""Reductions, cumulative operations, softmax and norms agree with torch, also for ties, zeros and empty tensors."""

import math

import pytest
import torch

from torch_front.layers import check_layer
from torch_front.operations import check, tensor

A, SCALAR, EMPTY = tensor(3, 2, 4), tensor(), tensor(0, 2)
INTEGERS = torch.tensor([[3, -1, 0], [2, 2, 5]])
TIES = torch.tensor([[2, 0, 2, 1], [-1, -1, -1, 3]], dtype=torch.float64)
NANS = torch.tensor([[math.nan, 1, 2, math.nan, 0], [0, 3, 1, 2, 4]])


@pytest.mark.parametrize("name", ["sum", "nansum", "mean", "amax", "amin", "any", "all"])
def test_reductions(name):
    overload = {"sum": "dim_IntList", "mean": "dim", "any": "dims", "all": "dims"}.get(name, "default")
    operation = f"aten.{name}.{overload}"
    for dims, keepdim in (([1], False), ([0, -1], True)):
        check(operation, A, dims, keepdim)
    check(operation, SCALAR, [0])
    check(operation, TIES, [1])
    check(operation, tensor(2, 0, dtype=torch.float32), [0])
    check(operation, A.bfloat16(), [1])
    if name != "mean":
        check(operation, INTEGERS, [1])
        check(operation, INTEGERS > 0, [0])
    if name in ("sum", "nansum", "any", "all"):
        check(operation, EMPTY, [0])
        check(operation, NANS, [1], derivatives=0)


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "any", "all", "max", "min", "median"])
def test_reductions_of_everything(name):
    order = 1 if name == "median" else 2
    check(f"aten.{name}.default", A, derivatives=order)
    check(f"aten.{name}.default", TIES, derivatives=order)
    check(f"aten.{name}.default", SCALAR, derivatives=order)
    check(f"aten.{name}.default", NANS, derivatives=0)
    if name != "mean":
        check(f"aten.{name}.default", INTEGERS)
    if name not in ("max", "min"):
        check(f"aten.{name}.default", EMPTY)


def test_types_of_sums():
    many = torch.full((70,), 2**30, dtype=torch.int32)
    check("aten.sum.default", many)
    check("aten.sum.dim_IntList", many, [0], dtype=torch.float32)
    check("aten.mean.default", INTEGERS, dtype=torch.float32)
    check("aten.mean.dim", INTEGERS, [1], dtype=torch.float64)
    check("aten.prod.dim_int", many[:2], 0)
    check("aten.cumsum.default", many[:4], 0)
    check("aten.sum.dim_IntList", torch.full((3000,), 1.01, dtype=torch.bfloat16), [0])


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_products_with_zeros(zeros):
    a = tensor(3, 4, low=0.5)
    a[1, :zeros] = 0
    check("aten.prod.dim_int", a, 1)
    check("aten.prod.dim_int", a, -1, True)
    check("aten.prod.default", a[1])
    check("aten.cumprod.default", a, 1)


@pytest.mark.parametrize("name", ["any", "all"])
def test_questions(name):
    for values in (A, INTEGERS, INTEGERS.to(torch.uint8), INTEGERS > 0, TIES):
        check(f"aten.{name}.dim", values, -1, True)
    check(f"aten.{name}.dim", SCALAR, 0)


@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_along_an_axis(name):
    for args in ((A, 1), (A, -1, True), (TIES, 1), (TIES, 0), (INTEGERS, 1), (INTEGERS > 0, 1), (SCALAR, 0)):
        check(f"aten.{name}.dim", *args)
    check(f"aten.{name}.dim", NANS, 1, derivatives=0)
    check(f"aten.{name}.dim", EMPTY, 1)
    for args in (
        (A,),
        (A, 1),
        (A, None, True),
        (TIES, 1, True),
        (NANS, 1),
        (SCALAR, 0),
        (SCALAR,),
        (EMPTY, 1),
    ):
        check(f"aten.arg{name}.default", *args)


def test_aminmax_and_counts():
    check("aten.aminmax.default", TIES, dim=1)
    check("aten.aminmax.default", A, dim=0, keepdim=True)
    check("aten.aminmax.default", INTEGERS)
    check("aten.aminmax.default", SCALAR, dim=0)
    check("aten.count_nonzero.default", INTEGERS)
    check("aten.count_nonzero.default", TIES, 1)
    check("aten.count_nonzero.dim_IntList", A, [0, 2])


@pytest.mark.parametrize("name", ["median", "nanmedian"])
@pytest.mark.parametrize("size", [4, 5])
def test_medians(name, size):
    a = tensor(size, 3)
    check(f"aten.{name}.dim", a, 0)
    check(f"aten.{name}.dim", a, 1, True)
    check(f"aten.{name}.default", a)
    check(f"aten.{name}.dim", SCALAR, 0)
    check(f"aten.{name}.dim", NANS[:, :size], 1, derivatives=0)
    check(f"aten.{name}.default", NANS[:, :size], derivatives=0)
    check(f"aten.{name}.default", NANS * math.nan, derivatives=0)
    check(f"aten.{name}.dim", INTEGERS, 1)


def test_kthvalue():
    check("aten.kthvalue.default", A, 2, 1)
    check("aten.kthvalue.default", A, 3, 0, True)
    check("aten.kthvalue.default", SCALAR, 1)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"])
def test_cumulative(name):
    for a, dim in ((A, 1), (A, -1), (SCALAR, 0), (EMPTY, 0), (A.bfloat16(), 0)):
        check(f"aten.{name}.default", a, dim)
    if name != "logcumsumexp":
        check(f"aten.{name}.default", TIES, 1)
        check(f"aten.{name}.default", INTEGERS, 0)
        check(f"aten.{name}.default", NANS, 1, derivatives=0)
    else:
        check(f"aten.{name}.default", torch.tensor([[-math.inf, 0, 800, 801]]), 1, derivatives=0)
    if name in ("cumsum", "cumprod"):
        check(f"aten.{name}.default", INTEGERS > 0, 1)
        check(f"aten.{name}.default", INTEGERS, 1, dtype=torch.float32)


@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_softmax(name):
    for a, dim in ((A, 1), (1000 * A, -1), (SCALAR, 0), (EMPTY, 0), (tensor(2, 0), 1), (A.bfloat16(), 2)):
        check(f"aten.{name}.default", a, dim, False)
    check(f"aten.{name}.default", torch.tensor([[-math.inf, 0, 1], [-math.inf] * 3]), 1, False, derivatives=0)


def test_softmax_of_masked_rows():
    masked = torch.tensor([[-math.inf, 0, 1], [-math.inf] * 3], dtype=torch.float64)
    check("aten._safe_softmax.default", masked, -1)
    check("aten._safe_softmax.default", A.bfloat16(), 1)


def test_logsumexp():
    for args in ((A, [1]), (A, [0, 2], True), (800 + A, [1]), (TIES, [1]), (SCALAR, [0]), (INTEGERS, [1])):
        check("aten.logsumexp.default", *args, tolerance=1e-6 if args[0] is INTEGERS else None)
    infinite = torch.tensor([[-math.inf, -math.inf], [-math.inf, 0], [math.inf, 0]])
    check("aten.logsumexp.default", infinite, [1], derivatives=0)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")
@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
def test_moments(name):
    for correction in (None, 0, 1, 2.5):
        check(f"aten.{name}.correction", A, [1, 2], correction=correction)
    check(f"aten.{name}.correction", A, None, correction=0, keepdim=True)
    check(f"aten.{name}.correction", A.bfloat16(), [0], correction=1)
    check(f"aten.{name}.correction", torch.ones(2, 3, dtype=torch.float64), [1], correction=1)  # variance 0
    check(f"aten.{name}.correction", SCALAR, None, correction=1, derivatives=0)  # NaN
    check(f"aten.{name}.correction", EMPTY, [0], correction=1, derivatives=0)


@pytest.mark.parametrize("order", [0, 0.5, 1, 1.5, 2, 3, 4.5, math.inf, -math.inf])
def test_norms(order):
    operation = "aten.linalg_vector_norm.default"
    check(operation, A, order, [1])
    check(operation, A, order, [0, -1], True)
    check(operation, A.bfloat16(), order)
    check(operation, SCALAR, order)
    zeros = torch.tensor([[0, 0, 0], [1, -1, 0], [1, 1, 0.5]], dtype=torch.float64)
    check(operation, zeros, order, [1], derivatives=1)
    if math.isfinite(order):
        check(operation, EMPTY, order, [0])
    if order not in (0.5, 1.5):  # torch: the second derivative is NaN at zeros
        check(operation, zeros[1:], order, [1])


def test_distances():
    a, b = tensor(4, 3), tensor(5, 3, seed=1)
    check("aten.dist.default", a, b[:4])
    check("aten.dist.default", a, b[:1], 3)
    check("aten.dist.default", a, a, derivatives=1)
    for p in (1.0, 2.0, 3.0, math.inf):
        distances = lambda a, b, p, mode: torch.linalg.vector_norm(
            a[..., :, None, :] - b[..., None, :, :], p, dim=-1
        )
        check("aten._cdist_forward.default", a, b, p, 2, reference=distances)
        check("aten._cdist_forward.default", a, b, p, 2, derivatives=1)
        pairs = lambda a, p: torch.linalg.vector_norm(
            a[[0, 0, 0, 1, 1, 2]] - a[[1, 2, 3, 2, 3, 3]], p, dim=-1
        )
        check("aten._pdist_forward.default", a, p, reference=pairs)
    check("aten._cdist_forward.default", a, a, 2.0, 2, derivatives=1)  # no derivative where the distance is 0


def test_reductions_of_a_graph():
    """Compare operations that torch decomposes, in one export."""

    def outputs(a, b):
        lengths = torch.nn.functional.normalize(a, dim=1), torch.nn.functional.cosine_similarity(a, b)
        spreads = a.std(), a.var(0), torch.std_mean(b, 1), a.std(0, correction=0), (a * 0).std(1)
        norms = a.norm(), b.norm(p=1, dim=0), torch.linalg.norm(a, dim=1), torch.linalg.matrix_norm(a)
        others = (
            a.softmax(0),
            torch.logsumexp(b, (0, 1)),
            b.nanmean(0),
            a.renorm(2, 0, 1.0),
        )
        return lengths, spreads, norms, others, a.quantile(0.3, dim=1), torch.trapezoid(a), a.diff()

    check_layer(outputs, tensor(4, 3), tensor(4, 3, seed=1))
