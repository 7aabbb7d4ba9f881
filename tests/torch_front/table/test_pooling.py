import pytest
import torch
import torch.nn.functional as F

from torch_front.layers import check_layer
from torch_front.operations import check, tensor

MAXIMA = {  # count of axes, shape, then kernel, stride, padding, dilation, ceil_mode
    "plain": (2, (2, 3, 6, 4), [2, 2]),
    "overlap": (2, (1, 2, 9, 7), [3, 3], [2, 2], [1, 1]),
    "uneven, unbatched": (2, (2, 8, 9), [3, 2], [1, 3], [1, 0], [2, 1]),
    "ceil": (2, (1, 2, 8, 7), [3, 2], [2, 2], [0, 1], [1, 1], True),
    "ceil, last window left out": (2, (1, 1, 5, 4), [2, 2], [3, 3], [1, 1], [1, 1], True),
    "large": (2, (1, 1, 11, 5), [11, 5], [], [4, 0]),
    "one kernel": (2, (1, 1, 3, 4), [1, 1], [2, 1]),
    "three axes": (3, (1, 2, 5, 4, 6), [2, 2, 3], [2, 1, 2], [1, 1, 1], [1, 2, 1], True),
}


@pytest.mark.parametrize("case", MAXIMA)
def test_max_pool(case):
    count, shape, *arguments = MAXIMA[case]
    check(f"aten.max_pool{count}d_with_indices.default", tensor(*shape), *arguments)


def test_max_pool_of_other_types():
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        check("aten.max_pool2d_with_indices.default", tensor(1, 2, 5, 5, dtype=dtype), [2, 2])
    check("aten.max_pool2d_with_indices.default", tensor(0, 2, 5, 5), [2, 2])


def test_ties_go_to_the_first():
    few = tensor(1, 2, 8, 8, dtype=torch.int64, low=0, high=1).double()
    for kernel, stride, padding in ((2, 2, 0), (3, 1, 1), (5, 2, 2)):
        check("aten.max_pool2d_with_indices.default", few, [kernel] * 2, [stride] * 2, [padding] * 2)
    check("aten.adaptive_max_pool2d.default", few, [3, 5])


def test_max_pool_keeps_nan():
    a = tensor(1, 1, 6, 6)
    a[0, 0, 1, 2] = a[0, 0, 1, 3] = torch.nan
    check("aten.max_pool2d_with_indices.default", a, [3, 3], [1, 1], derivatives=0)


AVERAGES = {  # count of axes, shape, then kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
    "plain": (2, (2, 3, 6, 4), [2, 2]),
    "padding": (2, (1, 2, 5, 7), [3, 2], [2, 2], [1, 1]),
    "padding not counted, unbatched": (2, (2, 5, 7), [3, 2], [2, 1], [1, 1], False, False),
    "ceil": (2, (1, 2, 8, 7), [3, 2], [2, 2], [1, 0], True),
    "ceil, padding not counted": (2, (1, 2, 8, 6), [3, 3], [2, 4], [1, 1], True, False),
    "divisor": (2, (1, 2, 6, 6), [3, 3], [2, 2], [1, 1], True, True, 5),
    "three axes": (3, (1, 2, 4, 5, 4), [2, 3, 2], [2, 2, 1], [1, 1, 0], True, False),
    "one axis": (1, (2, 3, 7), [3], [2], [1], True),
}


@pytest.mark.parametrize("case", AVERAGES)
def test_avg_pool(case):
    count, shape, *arguments = AVERAGES[case]
    check(f"aten.avg_pool{count}d.default", tensor(*shape), *arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_avg_pool_of_other_types(dtype):
    check("aten.avg_pool2d.default", tensor(1, 2, 5, 5, dtype=dtype), [3, 3])
    check("aten._adaptive_avg_pool2d.default", tensor(1, 2, 5, 5, dtype=dtype), [2, 3])


def test_adaptive_pools():
    image, volume = tensor(2, 3, 7, 5), tensor(1, 2, 4, 5, 3)
    for out in ([3, 5], [1, 1], [9, 2]):  # more outputs than inputs, too
        check("aten._adaptive_avg_pool2d.default", image, out)
        check("aten.adaptive_max_pool2d.default", image, out)
    check("aten._adaptive_avg_pool3d.default", volume, [2, 3, 3])
    check("aten.adaptive_max_pool3d.default", volume, [3, 4, 2])
    check("aten.adaptive_avg_pool1d.default", tensor(3, 7), [3])
    check("aten.adaptive_max_pool1d.default", tensor(2, 3, 8), [3])


def test_max_unpool():
    values, indices = F.max_pool2d(tensor(2, 3, 6, 4), 2, return_indices=True)
    check("aten.max_unpool2d.default", values, indices, [6, 5])
    values, indices = F.max_pool3d(tensor(3, 4, 4, 6), 2, return_indices=True)
    check("aten.max_unpool3d.default", values, indices, [4, 4, 6], [2, 2, 2], [0, 0, 0])


MODULES = {
    "pyramid": (
        lambda a: [F.max_pool2d(a, 3, 2, 1), F.avg_pool2d(a, 2, 1), F.adaptive_avg_pool2d(a, 1)],
        (1, 2, 6, 5),
    ),
    "one axis": (
        lambda a: [F.max_pool1d(a, 7), F.avg_pool1d(a, 3, 2), F.adaptive_max_pool1d(a, 3)],
        (2, 2, 7),
    ),
    "norms": (lambda a: [F.lp_pool2d(a, 3, 2), F.lp_pool1d(a[0], 2, (3))], (1, 2, 4, 6)),
    "indices": (lambda a: F.max_unpool2d(*F.max_pool2d(a, 2, return_indices=True), 2), (1, 2, 4, 4)),
    "area": (lambda a: F.interpolate(a, scale_factor=0.6, mode="area"), (1, 2, 5, 7)),
}


@pytest.mark.parametrize("case", MODULES)
def test_modules(case):
    function, shape = MODULES[case]
    check_layer(function, tensor(*shape))
