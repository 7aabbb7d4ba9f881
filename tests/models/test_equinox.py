"""Equinox: y is the floating half of a module, and equinox.nn.State the model state as it is."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from model_contract import WIDTH, Contract, Model

import bilevel as bl


class Net(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout
    last: eqx.nn.Linear

    def __init__(self, key):
        one, two = jax.random.split(key)
        self.first, self.last = eqx.nn.Linear(8, WIDTH, key=one), eqx.nn.Linear(WIDTH, 2, key=two)
        self.norm = eqx.nn.BatchNorm(WIDTH, axis_name="batch", momentum=0.9, mode="batch")
        self.dropout = eqx.nn.Dropout(0.3)

    def __call__(self, inputs, state, key):
        h, state = self.norm(self.first(inputs), state)
        return self.last(self.dropout(jnp.tanh(h), key=key)), state


@pytest.fixture(scope="module")
def model():
    net, state = eqx.nn.make_with_state(Net)(jax.random.key(1))
    y0, rest = eqx.partition(net, eqx.is_inexact_array)

    def over_examples(net, inputs, state, key):
        return jax.vmap(net, axis_name="batch", in_axes=(0, None, None), out_axes=(0, None))(
            inputs, state, key
        )

    return Model(
        y0=y0,
        state0=state,
        forward=lambda y, state, inputs, key: over_examples(eqx.combine(y, rest), inputs, state, key),
        predict=lambda y, state, inputs: over_examples(
            eqx.nn.inference_mode(eqx.combine(y, rest)), inputs, state, None
        )[0],
        dropped=lambda key: eqx.nn.Dropout(0.3)(jnp.ones(WIDTH), key=key),
        first_layer=lambda y: (y.first.weight.T, y.first.bias),
        statistics=lambda state: state.get(net.norm.batch_state_index),
    )


class TestEquinox(Contract):
    @pytest.mark.slow
    def test_the_state_is_equinox_s_own(self, model, run):
        result = run(steps=3)
        assert isinstance(result.model_state, eqx.nn.State)
        assert model.predict(result.y, result.model_state, jnp.zeros((5, 8))).shape == (5, 2)

    def test_a_whole_module_as_y0_is_refused_with_the_way_out(self, task):
        net, state = eqx.nn.make_with_state(Net)(jax.random.key(1))
        with pytest.raises(TypeError, match=r"y0\..*equinox\.partition"):
            bl.run(task.solver, jnp.zeros(160), net, model_state=state, data=task.data, steps=1)
