import pytest
import torch

from torch_front.layers import check_layer
from torch_front.operations import check, tensor

CASES = {  # input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
    "one axis": ((2, 3, 9), (4, 3, 3), True, [2], [1], [2], False, [0], 1),
    "without bias": ((1, 2, 5, 6), (3, 2, 2, 3), False, [1, 2], [0, 2], [1, 1], False, [0, 0], 1),
    "groups": ((2, 4, 6, 5), (6, 2, 3, 2), True, [2, 1], [1, 1], [1, 2], False, [0, 0], 2),
    "depthwise": ((1, 3, 5, 5), (6, 1, 3, 3), True, [1, 1], [1, 1], [1, 1], False, [0, 0], 3),
    "three axes": ((1, 2, 4, 5, 3), (2, 2, 2, 3, 2), True, [1, 2, 1], [1, 0, 1], [2, 1, 1], False, [0, 0, 0], 1),
    "empty batch": ((0, 2, 5), (3, 2, 2), True, [1], [0], [1], False, [0], 1),
    "transposed": ((2, 3, 5), (3, 4, 3), True, [3], [1], [1], True, [0], 1),
    "transposed, output padding": ((1, 2, 3, 4), (2, 3, 3, 2), True, [2, 3], [1, 0], [1, 1], True, [1, 2], 1),
    "transposed, groups": ((2, 4, 3, 3), (4, 3, 2, 3), False, [2, 1], [0, 1], [1, 2], True, [1, 1], 2),
    "transposed volume": ((1, 2, 2, 3, 2), (2, 2, 2, 2, 3), True, [2, 1, 2], [1, 0, 1], [1, 2, 1], True, [1, 0, 0], 1),
    "transposed, more padding than kernel": ((1, 2, 6), (2, 2, 2), True, [2], [3], [1], True, [0], 1),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_convolution(case):
    shape, kernel, has_bias, stride, padding, dilation, transposed, extra, groups = CASES[case]
    outputs = kernel[1] * groups if transposed else kernel[0]
    bias = tensor(outputs) if has_bias else None
    a, weight = tensor(*shape), tensor(*kernel, seed=1)
    check("aten.convolution.default", a, weight, bias, stride, padding, dilation, transposed, extra, groups)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_types(dtype):
    a, weight, bias = (
        tensor(2, 3, 6, 6, dtype=dtype),
        tensor(4, 3, 3, 3, dtype=dtype, seed=1),
        tensor(4, dtype=dtype),
    )
    check("aten.convolution.default", a, weight, bias, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    check(
        "aten.convolution.default", a, weight.transpose(0, 1), bias, [2, 2], [1, 1], [1, 1], True, [0, 0], 1
    )


MODULES = {
    "same": (lambda: torch.nn.Conv1d(2, 3, 3, padding="same", dilation=2), (1, 2, 8)),
    "same, even kernel": (lambda: torch.nn.Conv2d(2, 3, (4, 3), padding="same"), (1, 2, 7, 6)),
    "unbatched": (lambda: torch.nn.Conv2d(2, 3, 2, stride=2), (2, 7, 6)),
    "reflected": (lambda: torch.nn.Conv2d(2, 2, 3, padding=2, padding_mode="reflect"), (1, 2, 5, 4)),
    "circular": (lambda: torch.nn.Conv1d(2, 2, 3, padding=2, padding_mode="circular"), (1, 2, 5)),
    "replicated": (lambda: torch.nn.Conv3d(1, 2, 2, padding=1, padding_mode="replicate"), (1, 1, 3, 2, 3)),
    "transposed": (
        lambda: torch.nn.ConvTranspose2d(2, 4, 3, stride=2, output_padding=1, groups=2),
        (2, 2, 3, 4),
    ),
    "transposed, unbatched": (lambda: torch.nn.ConvTranspose1d(2, 3, 3, padding=1), (2, 5)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("case", MODULES)
def test_modules(case):
    make, shape = MODULES[case]
    torch.manual_seed(0)
    check_layer(make().double(), tensor(*shape))


def test_one_number_for_all_axes():
    """As nn.Conv2d(padding="valid") is exported."""
    check(
        "aten.convolution.default", tensor(1, 2, 5, 5), tensor(3, 2, 2, 2), None, [2], [0], [1], False, [0], 1
    )
