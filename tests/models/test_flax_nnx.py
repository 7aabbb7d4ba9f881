"""Flax nnx: a model is split into structure, parameters and statistics, and merged within the objectives."""

import jax
import jax.numpy as jnp
import pytest
from model_contract import WIDTH, Contract, Model

nnx = pytest.importorskip("flax.nnx")


@pytest.fixture(scope="module")
def model():
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first, self.last = nnx.Linear(8, WIDTH, rngs=rngs), nnx.Linear(WIDTH, 2, rngs=rngs)
            self.norm, self.dropout = nnx.BatchNorm(WIDTH, momentum=0.9, rngs=rngs), nnx.Dropout(0.3)

        def __call__(self, inputs, rngs=None):
            return self.last(self.dropout(nnx.tanh(self.norm(self.first(inputs))), rngs=rngs))

    graph, parameters, statistics = nnx.split(Net(nnx.Rngs(1)), nnx.Param, nnx.BatchStat)

    def forward(y, state, inputs, key):
        net = nnx.merge(graph, y, state)
        net.train()
        return net(inputs, nnx.Rngs(dropout=key)), nnx.state(net, nnx.BatchStat)

    def predict(y, state, inputs):
        net = nnx.merge(graph, y, state)
        net.eval()
        return net(inputs)

    return Model(
        y0=parameters,
        state0=statistics,
        forward=forward,
        predict=predict,
        dropped=lambda key: nnx.Dropout(0.3, deterministic=False)(
            jnp.ones(WIDTH), rngs=nnx.Rngs(dropout=key)
        ),
        first_layer=lambda y: (y["first"]["kernel"][...], y["first"]["bias"][...]),
        statistics=lambda state: (state["norm"]["mean"][...], state["norm"]["var"][...]),
    )


class TestNNX(Contract):
    @pytest.mark.slow
    def test_what_comes_back_is_a_model(self, model, run):
        result = run(steps=3)
        assert isinstance(result.y, nnx.State)
        assert isinstance(result.model_state, nnx.State)
        assert jax.tree.structure(result.y) == jax.tree.structure(model.y0)
        assert model.predict(result.y, result.model_state, jnp.zeros((5, 8))).shape == (5, 2)
