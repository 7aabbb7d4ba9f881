import pytest
import torch
from torch_front.operations import check, tensor


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int32])
def test_add(dtype):
    check("aten.add.Tensor", tensor(3, 1, dtype=dtype), tensor(4, dtype=dtype), alpha=2)


def test_tanh():
    check("aten.tanh.default", tensor(3, 4))
    check("aten.tanh.default", tensor(3, dtype=torch.int64))
    check("aten.tanh.default", tensor())
    check("aten.tanh.default", tensor(0, 2))


def test_linear():
    check("aten.linear.default", tensor(5, 3), tensor(4, 3), tensor(4))
    check("aten.linear.default", tensor(3), tensor(4, 3))


def test_mul():
    check("aten.mul.Tensor", tensor(3, 1, dtype=torch.float32), tensor(dtype=torch.float64))
    check("aten.mul.Tensor", tensor(3, 1, dtype=torch.int64), 2.5)
