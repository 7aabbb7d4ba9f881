import copy

import jax
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bilevel.torch.interpreter import evaluate
from bilevel.torch.types import to_jax
from torch_front.layers import check_layer, exported
from torch_front.operations import check, tensor

IMAGE = (3, 4, 2, 3)


def batch_norm(a, weight, bias, mean, var, training, momentum, eps):
    """Return the results of the functional operation, composed of those that torch differentiates twice."""
    mean, var = mean.detach().clone(), var.detach().clone()
    out = F.batch_norm(a, mean, var, weight, bias, training, momentum, eps)
    axes = [0, *range(2, a.ndim)]
    now, rate = a.detach().mean(axes), (a.detach().var(axes, correction=0) + eps).rsqrt()
    return out, now, rate, mean, var


@pytest.mark.parametrize("shape", [(5, 4), IMAGE, (2, 4, 3)])
def test_batch_norm(shape):
    a, weight, bias, mean, var = tensor(*shape), *(tensor(4, seed=i, low=0.5) for i in range(4))
    name = "aten._native_batch_norm_legit_functional.default"
    check(name, a, weight, bias, mean, var, True, 0.2, 1e-3, reference=batch_norm)
    check(name, a, None, None, mean, var, True, 1.0, 1e-5, reference=batch_norm)
    check(name, a, weight, bias, mean, var, False, 0.2, 1e-3, reference=batch_norm)
    fixed = lambda *arguments: batch_norm(*arguments[:5], False, *arguments[5:])[:3]
    check(
        "aten._native_batch_norm_legit_no_training.default",
        a,
        weight,
        bias,
        mean,
        var,
        0.2,
        1e-3,
        reference=fixed,
    )
    free = lambda *arguments: batch_norm(*arguments[:3], mean, var, *arguments[3:])[:3]
    check("aten._native_batch_norm_legit.no_stats", a, weight, bias, True, 0.1, 1e-3, reference=free)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_norm_of_other_types(dtype):
    a, weight, mean, var = (
        tensor(*IMAGE, dtype=dtype),
        *(tensor(4, seed=i, low=0.5).float() for i in range(3)),
    )
    name = "aten._native_batch_norm_legit_functional.default"
    check(name, a, weight, weight, mean, var, True, 0.1, 1e-5, derivatives=0)
    check("aten._native_batch_norm_legit.no_stats", a, weight, weight, True, 0.1, 1e-5, derivatives=0)


def test_layer_norm():
    for shape, inner in (((2, 3, 4), [4]), ((2, 3, 4), [3, 4]), ((5,), [5]), ((0, 3), [3])):
        weight, bias = tensor(*inner), tensor(*inner, seed=1)
        check("aten.native_layer_norm.default", tensor(*shape), inner, weight, bias, 1e-3)
        check("aten.layer_norm.default", tensor(*shape), inner, weight)
    for dtype in (torch.float32, torch.bfloat16):
        check(
            "aten.layer_norm.default",
            tensor(4, 3, dtype=dtype),
            [3],
            tensor(3, dtype=dtype),
            tensor(3, dtype=dtype),
        )


def test_layer_norm_of_equal_entries():
    check("aten.layer_norm.default", torch.ones(2, 3).double(), [3])


def test_group_norm():
    weight, bias = tensor(4), tensor(4, seed=1)
    check("aten.native_group_norm.default", tensor(*IMAGE), weight, bias, 3, 4, 6, 2, 1e-3)
    for groups in (1, 4):
        check("aten.group_norm.default", tensor(2, 4, 3), groups, weight, bias)
    check("aten.group_norm.default", tensor(3, 4), 2)
    check("aten.group_norm.default", tensor(2, 4, 3, dtype=torch.bfloat16), 2)


def test_rms_norm():
    check("aten.rms_norm.default", tensor(2, 3, 4), [4], tensor(4))
    check("aten.rms_norm.default", tensor(2, 3, 4, dtype=torch.float32), [3, 4], None, 1e-2)
    check("aten.rms_norm.default", tensor(2, 4, dtype=torch.bfloat16), [4], tensor(4, dtype=torch.bfloat16))
    composed = lambda a, shape, weight, eps: (
        F.rms_norm(a, shape, weight, eps),
        (a.square().mean(-1, keepdim=True) + (eps or torch.finfo(a.dtype).eps)).rsqrt(),
    )
    check("aten._fused_rms_norm.default", tensor(3, 4), [4], tensor(4), None, reference=composed)


def weight_norm(v, g, dim):
    norms = torch.linalg.vector_norm(
        v, dim=[axis for axis in range(v.ndim) if axis != dim], keepdim=True
    ).view(g.shape)
    return v * (g / norms), norms.detach()


def test_weight_norm():  # torch's own second derivative is wrong for the first and the last dim
    check("aten._weight_norm_interface.default", tensor(3, 4), tensor(3, 1), 0, reference=weight_norm)
    check("aten._weight_norm_interface.default", tensor(3, 4), tensor(1, 4), 1, derivatives=1)
    check("aten._weight_norm.default", tensor(3, 4, 2), tensor(1, 4, 1), 1)
    check("aten._weight_norm.default", tensor(3, 4), tensor(), -1)


def test_renorm():
    check("aten.renorm.default", tensor(3, 4, 2), 2, 1, 2.0)
    check("aten.renorm.default", tensor(3, 4), 1, -1, 3.0)
    check("aten.renorm.default", tensor(3, 4), float("inf"), 0, 1.0)
    check(
        "aten.renorm.default", torch.zeros(3, 4).double(), 2, 0, 1.0, derivatives=1
    )  # torch's second one is NaN


LAYERS = {
    "batch norm": (lambda: nn.BatchNorm2d(4), IMAGE),
    "batch norm without statistics": (
        lambda: nn.BatchNorm1d(4, affine=False, track_running_stats=False),
        (5, 4),
    ),
    "batch norm in evaluation": (lambda: nn.BatchNorm1d(4).eval(), (5, 4)),
    "instance norm": (lambda: nn.InstanceNorm2d(4, affine=True), IMAGE),
    "instance norm with statistics": (lambda: nn.InstanceNorm1d(4, track_running_stats=True), (2, 4, 3)),
    "layer norm": (lambda: nn.LayerNorm([2, 3]), IMAGE),
    "group norm": (lambda: nn.GroupNorm(2, 4), IMAGE),
    "root mean square": (lambda: nn.RMSNorm(3), IMAGE),
    "local response": (lambda: nn.LocalResponseNorm(3), IMAGE),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 2, 2), dim=1), (2, 4, 3)),
    "spectral norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)), (2, 4)),
}


@pytest.mark.parametrize("case", LAYERS)
def test_layers(case):
    make, shape = LAYERS[case]
    torch.manual_seed(0)
    check_layer(make().double(), tensor(*shape))


@pytest.mark.parametrize("momentum", [0.3, 0.0, None])
@pytest.mark.parametrize("shape", [(5, 4), IMAGE])
def test_statistics_after_three_steps(shape, momentum):
    make = nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d
    module = make(4, momentum=momentum)
    graph, weights = exported(module, tensor(*shape).float())
    buffers = {f"model.{name}": to_jax(each) for name, each in module.state_dict().items()}
    step = jax.jit(lambda a, buffers: evaluate(graph, [a, to_jax(weights[0])], buffers, None)[1])
    for i in range(3):
        a = tensor(*shape, seed=i).float() * (i + 1) + i
        buffers |= step(to_jax(a), buffers)
        module(a)
    for name, each in module.named_buffers():
        torch.testing.assert_close(torch.as_tensor(copy.deepcopy(buffers[f"model.{name}"].__array__())), each)
