"""Flax linen: parameters and batch statistics are collections of their own."""

import jax
import jax.numpy as jnp
import pytest
from model_contract import WIDTH, Contract, Model

nn = pytest.importorskip("flax.linen")


@pytest.fixture(scope="module")
def model():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, inputs, train):
            h = nn.BatchNorm(use_running_average=not train, momentum=0.9)(nn.Dense(WIDTH)(inputs))
            h = nn.Dropout(0.3, deterministic=not train)(nn.tanh(h))
            return nn.Dense(2)(h)

    net = Net()
    variables = net.init(jax.random.key(1), jnp.zeros((1, 8)), train=False)

    def forward(y, state, inputs, key):
        given = {"params": y, "batch_stats": state}
        logits, new = net.apply(given, inputs, train=True, rngs={"dropout": key}, mutable=["batch_stats"])
        return logits, new["batch_stats"]

    return Model(
        y0=variables["params"],
        state0=variables["batch_stats"],
        forward=forward,
        predict=lambda y, state, inputs: net.apply({"params": y, "batch_stats": state}, inputs, train=False),
        dropped=lambda key: nn.Dropout(0.3, deterministic=False).apply(
            {}, jnp.ones(WIDTH), rngs={"dropout": key}
        ),
        first_layer=lambda y: (y["Dense_0"]["kernel"], y["Dense_0"]["bias"]),
        statistics=lambda state: (state["BatchNorm_0"]["mean"], state["BatchNorm_0"]["var"]),
    )


class TestLinen(Contract):
    pass
