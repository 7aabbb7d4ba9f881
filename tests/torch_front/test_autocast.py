"""Autocast and modules in half precision."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bilevel as bl

BODIES = {
    "linear": lambda model, a: model(a),
    "einsum": lambda model, a: torch.einsum("bi,oi->bo", a, model.weight),
    "tensordot": lambda model, a: torch.tensordot(a, model.weight, dims=([1], [1])),
    "softmax": lambda model, a: F.softmax(model(a), -1),
    "norm": lambda model, a: F.layer_norm(model(a) @ a.T, (4,)),
    "attention": lambda model, a: F.scaled_dot_product_attention(*(model(a)[None, None],) * 3),
}


def values(loss, model, a):
    front = bl.torch.front(model, inner=loss, outer=loss, x=torch.ones(1), example=bl.Batch(inner=a, outer=a))
    out = front.problem.g.evaluate(
        jnp.ones(1, jnp.float32), front.start["y0"], bl.Batch(inner=jnp.asarray(a.numpy()))
    )
    value, metrics = loss(torch.ones(1), model, a)
    return out, value, metrics["all"], metrics.get("half")


@pytest.mark.parametrize("name", BODIES)
def test_a_region_with_autocast(name):
    torch.manual_seed(0)
    model, a = nn.Linear(5, 5), torch.randn(4, 5)

    def loss(x, model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = BODIES[name](model, batch)
        return h.float().square().sum() * x.sum(), {
            "all": h.float().sum(),
            "half": torch.tensor(h.dtype == torch.bfloat16),
        }

    out, value, total, half = values(loss, model, a)
    assert bool(out.metrics["half"]) == bool(half)
    np.testing.assert_allclose(out.loss, value.item(), rtol=1e-2)
    np.testing.assert_allclose(out.metrics["all"], total.item(), rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_recurrent_layer_with_autocast_has_narrow_results(kind):
    torch.manual_seed(0)
    model, a = kind(5, 3, batch_first=True), torch.randn(4, 6, 5)

    def loss(x, model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h, _ = model(batch)
            narrow = h.dtype == torch.bfloat16
        return h.float().square().sum() * x.sum(), {"all": h.float().sum(), "half": torch.tensor(narrow)}

    out, value, *_ = values(loss, model, a)
    np.testing.assert_allclose(out.loss, value.item(), rtol=2e-2)


def test_a_module_in_half_precision():
    torch.manual_seed(0)
    model, a = (
        nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)).bfloat16(),
        torch.randn(4, 5),
    )

    def loss(x, model, batch):
        h = model(batch.bfloat16()).float()
        return h.square().mean() * x.sum(), {"all": h.sum()}

    front = bl.torch.front(model, inner=loss, outer=loss)
    assert {str(each.dtype) for each in front.start["y0"].values()} == {"bfloat16"}
    out, value, *_ = values(loss, model, a)
    np.testing.assert_allclose(out.loss, value.item(), rtol=1e-2)
