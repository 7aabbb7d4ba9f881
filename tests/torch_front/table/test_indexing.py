"""Indexing, scattering, sorting and embedding, compared with torch."""

import itertools

import pytest
import torch

from torch_front.operations import check, tensor

a, cube, empty, number = tensor(4, 6), tensor(4, 3, 5), tensor(0, 3), tensor()
L = torch.tensor
rows, twice, nothing = L([2, 0, -1]), L([2, 0, 2]), torch.zeros(0, dtype=torch.int64)
sources = L([[2, 0], [1, 2], [2, 2]])
wide = L([[0, 1, 3, 0, 1, 1], [2, 0, 3, 0, 1, 2]])
ties = L([[2.0, 1.0, 2.0], [0.0, 3.0, -1.0]], dtype=torch.float64)
bags = (tensor(7, 3), L([1, 2, 4, 5, 4, 3, 2, 6]), L([0, 3, 3, 5]))

CASES = {
    "index.Tensor": [
        (a, [rows]),
        (a, [None, rows]),
        (cube, [rows, twice]),
        (cube, [rows, None, twice]),
        (cube, [None, sources, L([1])]),
        (cube, [sources, None, rows[:2]]),
        (a, [L(-1)]),
        (a, [nothing]),
        (empty, [None, rows[:2]]),
        (a, [rows.int()]),
    ],
    "_unsafe_index.Tensor": [(a, [None, twice])],
    "index_put.default": [
        (a, [rows], tensor(3, 6)),
        (a, [rows], number),
        (a, [None, rows], tensor(3)),
        (a, [None, twice], tensor(4, 3), True),
        (cube, [rows, None, twice], tensor(3, 3)),
        (cube, [rows, None, twice], tensor(3, 1), True),
        (a, [nothing], tensor(0, 6)),
        (a, [a > 0], number),
        (a, [a > 0], tensor(1), True),
        (a, [L([True, False, True, False])], tensor(6)),
        (cube, [None, cube[0] > 0], tensor(4, 1)),
        (cube, [None, L([True, False, True])], tensor(5)),
    ],
    "_unsafe_index_put.default": [(a, [rows], tensor(3, 6), True)],
    "index_select.default": [
        (a, 0, twice),
        (a, -1, twice),
        (a, 1, L(2)),
        (number, 0, L([0])),
        (a, 0, nothing),
    ],
    "index_copy.default": [
        (a, 0, rows[:2], tensor(2, 6)),
        (a, -1, L([3]), tensor(4, 1)),
        (number, 0, L([0]), number),
    ],
    "index_fill.int_Scalar": [(a, 0, twice, 1.5), (a, -1, nothing, 1), (number, 0, L([0]), 1.5)],
    "index_fill.int_Tensor": [(a, -1, twice, number), (a, 0, twice[:1], number)],
    "take.default": [(a, L([[-1, 3], [0, 3]])), (number, L([0])), (a, L(5))],
    "put.default": [(a, L([[5, 3]]), tensor(1, 2)), (a, L([5, 3, 5]), tensor(3), True)],
    "masked_fill.Scalar": [(a, a > 0, 2), (tensor(4, 1), a > 0, -float("inf")), (number, L(True), 1.5)],
    "masked_fill.Tensor": [(a, a > 0, number), (a, L(True), L(2))],
    "masked_scatter.default": [
        (a, a > 0, tensor(30)),
        (cube, cube[:, :1] > 0, tensor(8, 9)),
        (a, a > 9, tensor(0)),
    ],
    "gather.default": [
        (a, 0, wide),
        (a, -1, sources),
        (tensor(3), 0, L(1)),
        (number, 0, L(0)),
        (number, 0, L([0, 0])),
        (a, 0, torch.zeros(0, 6, dtype=torch.int64)),
    ],
    "take_along_dim.default": [(a, wide[:1] % 4, 0), (a, sources[:1], 1), (a, L([1, 5]))],
    "scatter.src": [
        (a, 0, wide[:1], tensor(1, 6)),
        (a, -1, sources[1:2], tensor(1, 2)),
        (number, 0, L(0), number),
    ],
    "scatter.value": [(a, 0, wide, 2.5), (a, 1, sources, 1), (number, 0, L([0]), 2)],
    "scatter_add.default": [
        (a, 0, wide, tensor(2, 6)),
        (a, -1, sources, tensor(3, 2)),
        (number, 0, L(0), number),
    ],
    "embedding.default": [(a, wide), (a, L(3)), (a, wide, 1), (a, wide, 0)],
    "sort.default": [(a,), (cube, 1, True), (ties,), (ties, -1, True), (number,), (empty, 0)],
    "topk.default": [
        (a, 2),
        (a, 3, 0, False),
        (cube, 3, 1),
        (number, 1),
        (empty, 0, 0),
        (ties[1:], 2, -1, False),
    ],
    "bucketize.Tensor": [(a, tensor(5).sort()[0]), (L([1, 3]), L([1, 2, 3])), (L([1, 3]), L([1.0, 3.0]))],
    "bucketize.Scalar": [(0.5, tensor(5).sort()[0])],
    "one_hot.default": [(wide, 4), (L(1), 3), (nothing, 2)],
}


@pytest.mark.parametrize("name", CASES)
def test_indexing(name):
    for arguments in CASES[name]:
        check(f"aten.{name}", *arguments)


def test_equal_places():
    """Any of the values may remain. torch gives its gradient to all of them, so there is no Hessian."""
    check("aten.index_put.default", a, [twice], tensor(3, 6), derivatives=1)
    check("aten.index_copy.default", a, 0, twice, tensor(3, 6), derivatives=1)
    check("aten.scatter.src", a, 0, wide * 0, tensor(2, 6), derivatives=1)


def test_long_sources():
    """The source may have more entries than the index: torch has no derivative then."""
    for name in ("aten.scatter.src", "aten.scatter_add.default"):
        check(name, a, 0, wide[:1], tensor(2, 6), derivatives=0)
        check(name, a, -1, sources[1:2], tensor(4, 2), derivatives=0)
    check("aten.scatter_reduce.two", a, -1, sources, tensor(4, 2), "amax", derivatives=0)


def test_index_add():
    check("aten.index_add.default", a, 0, twice, tensor(3, 6), alpha=2)
    check("aten.index_add.default", a, -1, L(1), tensor(4, 1))
    check("aten.index_add.default", number, 0, L(0), number, alpha=0.5)
    check(
        "aten.index_add.default",
        tensor(4, dtype=torch.int64),
        0,
        twice,
        tensor(3, dtype=torch.int64),
        alpha=2,
    )


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "amax", "amin"])
def test_scatter_reduce(reduce, include_self):
    name, named = "aten.scatter_reduce.two", {"include_self": include_self}
    check(name, a, 0, wide, tensor(2, 6), reduce, **named)
    check(name, a, -1, sources, tensor(3, 2), reduce, **named)
    check(name, tensor(4), 0, twice, L([1.0, 3.0, 1.0], dtype=torch.float64), reduce, **named)  # ties
    check(name, tensor(4), 0, twice[1:2], tensor(4)[:1], reduce, **named)  # equal to what is there
    check(name, number, 0, L(0), tensor(1)[0], reduce, **named)
    integers = tensor(4, 6, dtype=torch.int64, low=-9, high=9)
    check(name, integers, 0, wide, integers[1:3], reduce, **named)
    if reduce != "sum":
        check("aten.index_reduce.default", a, 1, twice, tensor(4, 3), reduce, **named)


def test_scatter_reduce_at_special_values():
    src = L([0.0, 3.0, 2.0], dtype=torch.float64)
    check(
        "aten.scatter_reduce.two", tensor(4), 0, twice, src, "prod", derivatives=1
    )  # torch has no second derivative
    check("aten.scatter_reduce.two", tensor(4), 0, twice, src.log(), "amax")


def test_scatter_with_reduce():
    """torch has no derivatives of these, but of the same as scatter_reduce."""
    names = {"add": "sum", "multiply": "prod"}
    two = torch.ops.aten.scatter_reduce.two
    by_src = lambda a, dim, index, src, reduce: two(a, dim, index, src, names[reduce])
    by_value = lambda a, dim, index, value, reduce: by_src(
        a, dim, index, torch.full_like(a, value)[:2], reduce
    )
    for reduce in names:
        check("aten.scatter.reduce", a, 0, wide, tensor(2, 6), reduce=reduce, reference=by_src)
        check("aten.scatter.value_reduce", a, 0, wide, 2.5, reduce=reduce, reference=by_value)


def test_embedding_without_second_derivative_in_torch():
    check("aten.embedding.default", a, nothing, derivatives=0)
    check(
        "aten.embedding.default", a, wide, 1, True, derivatives=1
    )  # torch's second derivative leaves the scale out


def bag_by_bag(weight, indices, offsets, scale, mode, sparse, weights=None, last=False, padding=-1):
    ends = [*offsets.tolist(), len(indices)][: len(offsets) + 1 - last]
    out = []
    for start, end in itertools.pairwise(ends):
        kept = [i for i in range(start, end) if indices[i] != padding]
        each = weight[indices[kept]] * (1 if weights is None else weights[kept, None])
        reduced = [each.sum(0), each.mean(0), each.max(0)[0] if kept else 0][mode] if kept else weight[0] * 0
        out.append(reduced)
    return torch.stack(out), None, None, None


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_embedding_bag(mode):
    ends = L([0, 3, 3, 8])
    for name in ("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default"):
        check(name, *bags, False, mode, False, derivatives=0)
    check("aten._embedding_bag.default", *bags, False, mode, False, reference=bag_by_bag)
    check(
        "aten._embedding_bag.default",
        *bags[:2],
        ends,
        False,
        mode,
        False,
        None,
        True,
        4,
        reference=bag_by_bag,
    )
    if mode == 0:
        check("aten._embedding_bag.default", *bags, False, mode, False, tensor(8), reference=bag_by_bag)


def test_searchsorted():
    line, table = tensor(6).sort()[0], tensor(4, 6).sort()[0]
    for named in ({}, {"right": True}, {"side": "right"}, {"out_int32": True}):
        check("aten.searchsorted.Tensor", line, torch.cat([line, tensor(3)]), **named)
        check("aten.searchsorted.Tensor", table, tensor(4, 3), **named)
    check("aten.searchsorted.Scalar", line, 0.5)
    check("aten.searchsorted.Tensor", a, tensor(4, 3), sorter=a.argsort())
    check("aten.searchsorted.Tensor", L([1, 2, 3]), tensor(2, 2))


def test_stable_sort():
    for dtype in (torch.float64, torch.float32, torch.int64, torch.uint8, torch.bool, torch.bfloat16):
        for descending in (False, True):
            many = (tensor(40, low=0) + 0.5).to(dtype)
            check("aten.sort.stable", many, stable=True, descending=descending)
    with_nan = L([1.0, float("nan"), -float("inf"), 3.0])
    for descending in (False, True):
        check("aten.sort.stable", with_nan, stable=True, descending=descending, derivatives=0)
        check("aten.topk.default", with_nan, 3, -1, descending, derivatives=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.bool])
def test_types(dtype):
    b, index = tensor(4, 6, dtype=dtype, low=0), rows.int() if dtype is torch.int32 else rows
    check("aten.index.Tensor", b, [index])
    check("aten.index_put.default", b, [index], tensor(3, 6, dtype=dtype, low=0))
    check("aten.index_fill.int_Scalar", b, 0, rows, 1)
    check("aten.masked_fill.Scalar", b, b > 0, 1)
    check("aten.gather.default", b, 0, wide)
    check("aten.scatter.src", b, 0, wide[:1], b[:1])
    check("aten.embedding.default", b, wide)
    if dtype is not torch.bool:
        check("aten.topk.default", torch.arange(6).to(dtype), 2, -1, False)
        check("aten.scatter_add.default", b, 0, wide, b[:2])
