"""Views, permutations, joins and splits, compared with torch."""

import pytest
import torch

from torch_front.operations import check, tensor

a, cube, empty, number = tensor(4, 6), tensor(2, 3, 4), tensor(0, 3), tensor()
CASES = {
    "view.default": [(a, [3, -1]), (a, [2, 1, 12]), (empty, [3, 0]), (number, [1, 1]), (tensor(1), [])],
    "_unsafe_view.default": [(a, [24])],
    "view.dtype": [(tensor(3, dtype=torch.float32), torch.int32)],
    "alias.default": [(a,)],
    "permute.default": [(cube, [2, -3, 1]), (number, [])],
    "transpose.int": [(cube, 0, -1), (number, 0, -1)],
    "t.default": [(a,), (tensor(3),), (number,)],
    "unsqueeze.default": [(a, 0), (a, -1), (number, 0), (empty, 1)],
    "squeeze.default": [(tensor(1, 3, 1),), (number,), (a,)],
    "squeeze.dim": [(tensor(1, 3, 1), -1), (tensor(1, 3, 1), 1), (number, 0)],
    "squeeze.dims": [(tensor(1, 3, 1), [0, -1]), (tensor(1, 3, 1), [1, 2]), (number, [0])],
    "expand.default": [(tensor(3, 1), [2, -1, 4]), (number, [2, 3]), (tensor(1, 3), [0, 3])],
    "cat.default": [
        ([a, tensor(2, 6, seed=1)],),
        ([cube, cube], -1),
        ([tensor(0), cube],),  # an empty vector is ignored
        ([tensor(0), tensor(2)],),
        ([a, tensor(1, 6, dtype=torch.int64), tensor(1, 6, dtype=torch.float32)],),
    ],
    "stack.default": [([a, 2 * a],), ([a, 2 * a], -1), ([number, number],), ([empty, empty], 1)],
    "slice.Tensor": [
        (a, 0, 1, 3),
        (a, 1, -5, 2**63 - 1, 2),
        (a, -1, None, -1),
        (a, 0, 3, 1),
        (a, 0, 7, 9),
        (empty, 0, 0, 5),
    ],
    "select.int": [(a, 1, -2), (a, -1, 0), (tensor(3), 0, 1)],
    "split_with_sizes.default": [(a, [1, 0, 3]), (a, [5, 1], -1)],
    "unsafe_split_with_sizes.default": [(a, [1, 3])],
    "split.Tensor": [(a, 4, 1), (a, 2), (a, 10), (empty, 0), (empty, 2)],
    "unsafe_split.Tensor": [(a, 3)],
    "unbind.int": [(cube, -2), (tensor(3),)],
    "unfold.default": [(a, 1, 3, 2), (cube, -2, 2, 1), (number, 0, 1, 1), (a, 0, 5 - 1, 7)],
    "flip.default": [(cube, [0, -1]), (a, []), (empty, [0])],
    "roll.default": [(a, [1, -2], [0, 1]), (a, [5], []), (a, [-9], [1]), (empty, [1], [0])],
    "rot90.default": [(a,), (a, 2), (cube, -1, [1, -1])],
    "repeat.default": [(a, [2, 1]), (tensor(3), [2, 1, 2]), (number, [3]), (a, [0, 1])],
    "tile.default": [(a, [2]), (a, [2, 1, 2]), (number, [])],
    "repeat_interleave.self_int": [(a, 2, 1), (a, 3), (number, 2), (a, 0, 0)],
    "diagonal.default": [(a,), (a, 2), (a, -1), (cube, 1, -1, 0), (a, 6), (empty,)],
    "diag.default": [(a,), (a, -2), (tensor(3), 1), (tensor(3), -2)],
    "diag_embed.default": [(a,), (cube, 1), (cube, -2, 0, 2), (cube, 1, 2, 0), (tensor(0),)],
    "tril.default": [(a,), (cube, 1), (cube, -1), (tensor(3, 3, dtype=torch.bool), 0)],
    "triu.default": [(a,), (cube, 1), (cube, -1), (tensor(2, 0), 0)],
    "select_scatter.default": [(a, tensor(6), 0, -1), (a, tensor(4, dtype=torch.float32), -1, 2)],
    "slice_scatter.default": [
        (a, tensor(2, 6), 0, 1, 3),
        (a, tensor(4, 3), -1, None, None, 2),
        (a, tensor(4, 2), 1, -3, -1),
        (a, tensor(0, 6), 0, 4, 9),
    ],
    "diagonal_scatter.default": [(a, tensor(4)), (a, tensor(3), -1), (cube, tensor(3, 1), 1, -1, 0)],
    "as_strided.default": [(a, [2, 3], [1, 5]), (a, [3, 2, 2], [0, 2, 1], 4), (a, [], [], 7), (a, [0], [1])],
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_shapes(name):
    for arguments in CASES[name]:
        check(f"aten.{name}", *arguments)


def written(a, src, *view):
    """Write to the view in place: the derivative of torch's own as_strided_scatter keeps what is overwritten."""
    out = a.clone()
    out.as_strided(*view).copy_(src)
    return out


def test_as_strided_scatter():
    check("aten.as_strided_scatter.default", a, tensor(2, 3), [2, 3], [1, 5], reference=written)
    check("aten.as_strided_scatter.default", a, tensor(3), [3], [7], 1, reference=written)


def test_with_keywords():
    check("aten.meshgrid.default", [tensor(3), tensor(2)])
    check("aten.meshgrid.indexing", [tensor(3), tensor(2), number], indexing="xy")
    check("aten.repeat_interleave.self_Tensor", a, torch.tensor([1, 0, 2, 1]), 0, output_size=4)
    check("aten.repeat_interleave.self_Tensor", a, torch.tensor(2), output_size=48)
    check("aten.repeat_interleave.self_Tensor", a, torch.tensor([2]), -1, output_size=12)
    check("aten.repeat_interleave.Tensor", torch.tensor([1, 0, 2]), output_size=3)
    for name in ("tril_indices", "triu_indices"):
        check(f"aten.{name}.default", 3, 4, 1)
        check(f"aten.{name}.default", 4, 2, -1, dtype=torch.int32)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.bool, torch.uint8]
)
def test_types(dtype):
    b = tensor(4, 6, dtype=dtype, low=0)
    for name in ("cat", "stack"):
        check(f"aten.{name}.default", [b, b])
    for name in (
        "slice.Tensor",
        "triu.default",
        "diag_embed.default",
        "squeeze.default",
        "t.default",
        "unbind.int",
    ):
        check(f"aten.{name}", b)
    check("aten.select_scatter.default", b, tensor(6, dtype=dtype), 0, 1)
    check("aten.diagonal_scatter.default", b, tensor(4, dtype=dtype))
    check("aten.unfold.default", b, 1, 2, 2)
