import pytest
import torch
import torch.nn.functional as F
from torch._decomp import decompositions

from torch_front.layers import check_layer
from torch_front.operations import check, tensor

LINES, IMAGE, VOLUME = (2, 3, 5), (1, 2, 4, 5), (1, 1, 3, 4, 2)


@pytest.mark.parametrize("kind", ["upsample_nearest", "_upsample_nearest_exact"])
def test_nearest(kind):
    for count, shape, sizes in (
        (1, LINES, [7]),
        (2, IMAGE, [8, 15]),
        (2, IMAGE, [3, 2]),
        (3, VOLUME, [4, 3, 5]),
    ):
        check(f"aten.{kind}{count}d.default", tensor(*shape), sizes)
    check(f"aten.{kind}2d.vec", tensor(*IMAGE, dtype=torch.float32), None, [2.0, 1.3])
    check(f"aten.{kind}2d.vec", tensor(*IMAGE, dtype=torch.bfloat16), [8, 5], None)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_chooses_as_torch(mode):
    for size in (3, 7, 10, 23):
        a = torch.arange(size, dtype=torch.float32)[None, None]
        name = {"nearest": "upsample_nearest1d", "nearest-exact": "_upsample_nearest_exact1d"}[mode]
        for out in (1, 4, 9, 21, 46):
            check(f"aten.{name}.vec", a, [out], None, derivatives=0)
        for factor in (0.5, 1.7, 3.0, 3.3):
            check(f"aten.{name}.vec", a, None, [factor], derivatives=0)


INTERPOLATIONS = [
    ("upsample_linear1d", LINES, [8]),
    ("upsample_bilinear2d", IMAGE, [7, 3]),
    ("upsample_bicubic2d", IMAGE, [6, 3]),
    ("upsample_trilinear3d", VOLUME, [5, 2, 4]),
    ("_upsample_bilinear2d_aa", IMAGE, [2, 7]),
    ("_upsample_bicubic2d_aa", (1, 2, 9, 7), [4, 3]),
]


@pytest.mark.parametrize(
    ("name", "shape", "sizes"), INTERPOLATIONS, ids=lambda each: each if isinstance(each, str) else ""
)
def test_interpolations(name, shape, sizes):
    for corners in (True, False):
        check(f"aten.{name}.default", tensor(*shape), sizes, corners)
        check(f"aten.{name}.default", tensor(*shape), [1] * len(sizes), corners, derivatives=0)
        check(f"aten.{name}.vec", tensor(*shape, dtype=torch.float32), sizes, corners, None, derivatives=0)
    factors = [1.7, 0.6, 2.0][: len(sizes)]
    check(f"aten.{name}.vec", tensor(*shape), None, False, factors)
    sizes = [int(size * factor) for size, factor in zip(shape[2:], factors, strict=True)]
    check(f"aten.{name}.default", tensor(*shape), sizes, True, *factors, derivatives=0)


def test_bfloat16():
    check("aten.upsample_bilinear2d.vec", tensor(*IMAGE, dtype=torch.bfloat16), [7, 8], False, None)


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("padding", [0, 1, 2], ids=["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", [0, 1, 2], ids=["linear", "nearest", "cubic"])
def test_grid_sampler(mode, padding, corners):
    a, grid = tensor(2, 2, 4, 3), tensor(2, 3, 2, 2, low=-1.8, high=1.8)
    check("aten.grid_sampler_2d.default", a, grid, mode, padding, corners, derivatives=1)
    reference = decompositions._grid_sampler_2d  # torch has no second derivative of the operation
    check("aten.grid_sampler_2d.default", a, grid, mode, padding, corners, reference=reference)


@pytest.mark.parametrize("corners", [True, False])
def test_grid_sampler_of_volumes(corners):
    a, grid = tensor(1, 2, 3, 2, 4), tensor(1, 2, 2, 2, 3, low=-1.4, high=1.4)
    for padding in (0, 1, 2):
        check("aten.grid_sampler_3d.default", a, grid, 0, padding, corners, derivatives=1)
    check("aten.grid_sampler_3d.default", a, grid, 1, 1, corners, derivatives=1)


def test_grid_sampler_at_the_border():
    grid = torch.tensor([[[[-1.0, 1.0], [1.0, 1.0], [0.0, -1.0], [3.0, -3.0]]]], dtype=torch.float64)
    for padding in (0, 1, 2):
        check("aten.grid_sampler_2d.default", tensor(1, 2, 3, 3), grid, 0, padding, True, derivatives=1)


def test_affine_grid():
    for corners in (True, False):
        check("aten.affine_grid_generator.default", tensor(2, 2, 3), [2, 1, 3, 4], corners)
        check("aten.affine_grid_generator.default", tensor(1, 3, 4), [1, 2, 2, 3, 1], corners)


def test_constant_padding():
    check("aten.constant_pad_nd.default", tensor(2, 3), [1, 2])
    check("aten.constant_pad_nd.default", tensor(2, 3, 4), [-1, 2, 0, -1], 0.5)
    check("aten.constant_pad_nd.default", tensor(2, 3, dtype=torch.int64), [1, 0], 7)
    check("aten.constant_pad_nd.default", tensor(0, 3), [0, 0, 1, 1])


@pytest.mark.parametrize("kind", ["reflection_pad", "replication_pad"])
def test_padding(kind):
    check(f"aten.{kind}1d.default", tensor(2, 5), [4, 1])
    check(f"aten.{kind}2d.default", tensor(1, 2, 4, 5), [1, -2, 3, 0])
    check(f"aten.{kind}3d.default", tensor(1, 1, 3, 2, 4), [1, 0, 1, 1, 2, 1])


def test_pad():
    check("aten.pad.default", tensor(2, 3), [1, 2], "constant", 3.0)
    check("aten.pad.default", tensor(1, 2, 3), [1, -1])
    for mode in ("reflect", "replicate", "circular"):
        check("aten.pad.default", tensor(1, 2, 3, 4), [2, 1, 0, 2], mode)
    check("aten._pad_circular.default", tensor(1, 2, 3), [3, 2])


def test_rearrangement():
    check("aten.pixel_shuffle.default", tensor(2, 12, 2, 3), 2)
    check("aten.pixel_unshuffle.default", tensor(3, 4, 6), 2)
    check("aten.channel_shuffle.default", tensor(2, 6, 2, 1), 3)


def test_columns():
    for arguments in (([2, 3], [1, 1], [0, 0], [1, 1]), ([2, 2], [2, 1], [1, 0], [2, 3])):
        check("aten.im2col.default", tensor(2, 3, 5, 6), *arguments)
        columns = F.unfold(tensor(2, 3, 5, 6), *arguments)
        check("aten.col2im.default", columns, [5, 6], *arguments)
    check("aten.im2col.default", tensor(3, 5, 6), [2, 2], [1, 1], [1, 1], [2, 2])


MODULES = {
    "sizes": lambda a: [F.interpolate(a, (3, 7), mode=mode) for mode in ("nearest", "bilinear", "bicubic")],
    "factors": lambda a: [
        F.interpolate(a, scale_factor=1.7, mode="bilinear", recompute_scale_factor=True, align_corners=True),
        F.interpolate(a, scale_factor=(2, 3), mode="nearest-exact"),
        F.interpolate(a, scale_factor=0.6, mode="bicubic", antialias=True),
    ],
    "transformer": lambda a: F.grid_sample(
        a,
        F.affine_grid(a[:, 0, :2, :3], (1, 2, 3, 2), align_corners=False),
        padding_mode="border",
        align_corners=False,
    ),
    "padding": lambda a: [
        F.pad(a, (2, 1, 0, 2), mode) for mode in ("constant", "reflect", "replicate", "circular")
    ],
    "blocks": lambda a: F.fold(F.unfold(a, 3, padding=1).sin(), (4, 5), 3, padding=1),
}


@pytest.mark.parametrize("case", MODULES)
def test_modules(case):
    check_layer(MODULES[case], tensor(*IMAGE))
