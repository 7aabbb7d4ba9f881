import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from bilevel.torch.interpreter import call
from bilevel.torch.types import to_jax
from torch_front.layers import check_layer, exported
from torch_front.operations import check, tensor

NAME = "aten.scaled_dot_product_attention.default"


def attention(*arguments, **named):
    """Attend with the kernel that torch differentiates twice."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*arguments, **named)


def triple(q=(2, 3, 4, 5), k=(2, 3, 6, 5), v=(2, 3, 6, 2), dtype=torch.float64):
    return tensor(*q, dtype=dtype), tensor(*k, seed=1, dtype=dtype), tensor(*v, seed=2, dtype=dtype)


MASKED = torch.tensor([[1, 0, 1, 1, 0, 1], [0] * 6, [1] * 6, [0, 0, 0, 0, 0, 1]], dtype=torch.bool)
CASES = {
    "plain": (triple(), {}),
    "two axes": (triple((4, 3), (2, 3), (2, 5)), {}),
    "broadcast batch": (triple((1, 3, 4, 5), (2, 3, 6, 5), (2, 1, 6, 2)), {}),
    "scale": (triple(), {"scale": 0.3}),
    "causal, more keys": (triple(), {"is_causal": True}),
    "causal, more queries": (triple((1, 5, 3), (1, 2, 3), (1, 2, 3)), {"is_causal": True}),
    "float mask": ((*triple(), tensor(3, 4, 6)), {}),
    "masked row": ((*triple(), MASKED), {}),
    "float mask with a masked row": ((*triple(), torch.where(MASKED, 0.5, -torch.inf).double()), {}),
    "grouped queries": (
        triple((1, 4, 3, 2), (1, 2, 5, 2), (1, 2, 5, 3)),
        {"enable_gqa": True, "is_causal": True},
    ),
    "no keys": (triple((1, 3, 2), (1, 0, 2), (1, 0, 4)), {}),
    "float32": (triple(dtype=torch.float32), {"is_causal": True}),
    "bfloat16": (triple(dtype=torch.bfloat16), {"is_causal": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_attention(case):
    arguments, named = CASES[case]
    check(NAME, *arguments, reference=attention, **named)


def test_bfloat16_has_weights_in_float32():
    """The error is less than what rounding of scores or weights would make."""
    q, k, v = triple((1, 64, 32), (1, 64, 32), (1, 64, 32), dtype=torch.bfloat16)
    ours = call(NAME, [to_jax(each) for each in (q, k, v)], {}, [q])[0]
    exact = attention(q.float(), k.float(), v.float())
    np.testing.assert_array_equal(np.asarray(ours, np.float32), exact.bfloat16().float().numpy())


def test_dropout():
    q, k = (to_jax(each) for each in triple((50, 8, 3), (50, 6, 3))[:2])
    v = jnp.broadcast_to(jnp.eye(6), (50, 6, 6))
    attend = lambda rate, seed: call(
        NAME, (q, k, v, None, rate), {}, [torch.zeros(50, 8, 6)], jax.random.key(seed)
    )[0]
    weights, dropped = attend(0.0, 0), attend(0.25, 0)
    kept = dropped != 0
    np.testing.assert_allclose(dropped[kept], weights[kept] / 0.75, rtol=1e-6)
    assert abs(float(jnp.mean(kept)) - 0.75) < 4 * (0.25 * 0.75 / kept.size) ** 0.5
    assert bool(jnp.all(dropped == attend(0.25, 0)))
    assert not bool(jnp.all(dropped == attend(0.25, 1)))
    assert not bool(jnp.any(attend(1.0, 0)))


class Attend(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self, **named):
        super().__init__()
        self.inner, self.named = nn.MultiheadAttention(6, 2, **named), {"need_weights": False}

    def forward(self, a, **named):
        return self.inner(a, a, a, **self.named, **named)


class Averages(Attend):
    def forward(self, a):
        mask = torch.ones(a.shape[0], a.shape[0]).triu(1).bool()
        return self.inner(a, a, a, attn_mask=mask)


def encoder(**named):
    layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, **{"dropout": 0.0, **named})
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = encoder(activation="gelu")

    def forward(self, a):
        return self.inner(a, src_key_padding_mask=torch.tensor([[False, False, True], [False, False, False]]))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.TransformerDecoderLayer(6, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, a):
        return self.inner(
            a, a.flip(1), tgt_mask=nn.Transformer.generate_square_subsequent_mask(3, dtype=a.dtype)
        )


LAYERS = {
    "attention": lambda: Attend(batch_first=True, add_bias_kv=True, add_zero_attn=True),
    "attention with weights": Averages,
    "attention, other widths": lambda: Attend(kdim=6, vdim=6, bias=False),
    "encoder": encoder,
    "encoder, norm first, in evaluation": lambda: encoder(norm_first=True, dropout=0.3).eval(),
    "encoder with padding, in evaluation": lambda: Padded().eval(),
    "decoder": Decoder,
}


@pytest.mark.parametrize("case", LAYERS)
def test_layers(case):
    torch.manual_seed(0)
    check_layer(LAYERS[case]().double(), tensor(2, 3, 6))


def test_frozen_encoder_in_evaluation():
    """Without gradients torch has a faster path, which exports leave out."""
    torch.manual_seed(0)
    check_layer(encoder().double().eval().requires_grad_(False), tensor(2, 3, 6))


def test_only_dropout_needs_a_key():
    for layer, is_random in (
        (encoder(dropout=0.1), True),
        (encoder(dropout=0.1).eval(), False),
        (encoder(), False),
    ):
        assert exported(layer, tensor(2, 3, 6).float())[0].random is is_random
    rate = lambda p: lambda a: F.scaled_dot_product_attention(a, a, a, dropout_p=p)
    for p in (0.0, 0.5):
        module = nn.Module()
        module.forward = rate(p)
        assert exported(module, tensor(2, 3, 6).float())[0].random is (p > 0)
