import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from bilevel.torch._table import TABLE
from bilevel.torch._table.randomness import native_dropout
from bilevel.torch.interpreter import evaluate
from bilevel.torch.types import to_jax
from torch_front.layers import check_layer, exported
from torch_front.operations import check, quick_jit, tensor

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
TIME, BATCH, INPUTS, WIDTH = 4, 2, 3, 2


def arguments(name, layers=1, biases=True, ways=1, batch_first=False, project=0, dtype=torch.float64):
    """Return the arguments of a recurrent operation: input, states, parameters and the rest."""
    width, params = project or WIDTH, []
    for layer in range(layers):
        for _ in range(ways):
            rows, columns = GATES[name] * WIDTH, INPUTS if layer == 0 else width * ways
            shapes = [
                (rows, columns),
                (rows, width),
                *[(rows,)] * (2 * biases),
                *[(project, WIDTH)] * bool(project),
            ]
            params += [
                tensor(*shape, seed=len(params) + i, dtype=dtype, high=1.0) for i, shape in enumerate(shapes)
            ]
    states = [
        tensor(layers * ways, BATCH, each, seed=i, dtype=dtype) for i, each in enumerate((width, WIDTH))
    ]
    a = tensor(BATCH, TIME, INPUTS, dtype=dtype) if batch_first else tensor(TIME, BATCH, INPUTS, dtype=dtype)
    return (
        a,
        states if name == "lstm" else states[0],
        params,
        biases,
        layers,
        0.0,
        True,
        ways == 2,
        batch_first,
    )


@pytest.mark.parametrize("name", GATES)
def test_layers(name):
    check(f"aten.{name}.input", *arguments(name))
    check(f"aten.{name}.input", *arguments(name, layers=2, ways=2, biases=False, batch_first=True))


def test_projection():
    check("aten.lstm.input", *arguments("lstm", layers=2, ways=2, project=1))
    check("aten.lstm.input", *arguments("lstm", biases=False, project=3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_types(dtype):
    for name in ("lstm", "gru"):
        check(f"aten.{name}.input", *arguments(name, dtype=dtype), derivatives=0)


@pytest.mark.parametrize("name", GATES)
def test_cells(name):
    a, states, (weight, inner, bias, inner_bias), *_ = arguments(name)
    states = [each[0] for each in states] if name == "lstm" else states[0]
    check(f"aten.{name}_cell.default", a[0], states, weight, inner, bias, inner_bias)
    check(f"aten.{name}_cell.default", a[0], states, weight, inner)


class ByCells(nn.Module):
    """A layer as a loop over cells, which torch differentiates twice also in float32."""

    def __init__(self, layer, cell):
        super().__init__()
        self.cell = cell(layer.input_size, layer.hidden_size, dtype=layer.weight_ih_l0.dtype)
        self.cell.load_state_dict(
            {name.removesuffix("_l0"): each for name, each in layer.state_dict().items()}
        )

    def forward(self, a):
        state, outs = None, []
        for each in a:
            state = self.cell(each, state)
            outs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outs)


def run(name, key, *given):
    """Return the results of a translated layer."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return TABLE[f"aten.{name}.input"].function(key, *given)


@pytest.mark.parametrize(
    ("name", "layer", "cell"), [("lstm", nn.LSTM, nn.LSTMCell), ("gru", nn.GRU, nn.GRUCell)]
)
def test_layers_are_loops_over_cells(name, layer, cell):
    torch.manual_seed(0)
    layer, a = layer(INPUTS, WIDTH), tensor(TIME, BATCH, INPUTS).float()
    parameters, zeros = [to_jax(p) for p in layer.parameters()], jnp.zeros((1, BATCH, WIDTH), jnp.float32)
    states = [zeros, zeros] if name == "lstm" else zeros

    def loss(parameters):
        return jnp.sum(
            run(name, None, to_jax(a), states, parameters, True, 1, 0.0, True, False, False)[0] ** 2
        )

    cells = ByCells(layer, cell)
    moving = list(cells.parameters())
    first = torch.autograd.grad(cells(a).square().sum(), moving, create_graph=True)
    second = torch.autograd.grad(sum(each.sum() for each in first), moving)
    ones = jax.tree.map(jnp.ones_like, parameters)
    gradient, product = quick_jit(lambda *both: jax.jvp(jax.grad(loss), *both))((parameters,), (ones,))
    for mine, their in zip(gradient + product, first + second, strict=True):
        np.testing.assert_allclose(mine, their.detach().numpy(), atol=1e-5)


def test_dropout():
    a, states, params, *_ = [jax.tree.map(to_jax, each) for each in arguments("gru", layers=2)[:3]]
    key = jax.random.key(3)
    out, last = run("gru", key, a, states, params, True, 2, 0.5, True, False, False)
    first, _ = run("gru", None, a, states[:1], params[:4], True, 1, 0.0, True, False, False)
    kept, _ = native_dropout(jax.random.fold_in(key, 1), first, 0.5, True)
    expected, end = run("gru", None, kept, states[1:], params[4:], True, 1, 0.0, True, False, False)
    np.testing.assert_allclose(out, expected, rtol=1e-12)
    np.testing.assert_allclose(last[1:], end, rtol=1e-12)
    given, rest = (
        arguments("lstm", layers=2)[:3],
        (True, 2, 1.0, True, False, False),
    )  # every entry is left out
    expected = torch.ops.aten.lstm.input(*given, *rest)
    mine = run("lstm", key, *jax.tree.map(to_jax, given), *rest)
    for ours, theirs in zip(mine, expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-12)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_length_of_the_program_does_not_depend_on_time(layer):
    torch.manual_seed(0)
    counts = []
    for time in (5, 500):
        module = layer(INPUTS, WIDTH, num_layers=2, bidirectional=True)
        a = tensor(time, BATCH, INPUTS).float()
        graph, weights = exported(module, a)
        tensors = {f"model.{name}": to_jax(each) for name, each in module.state_dict().items()}
        loss = lambda a, graph=graph, w=weights, t=tensors: evaluate(graph, [a, *map(to_jax, w)], t, None)[0][
            0
        ]
        counts.append((len(graph.nodes), equations(jax.make_jaxpr(jax.grad(loss))(to_jax(a)).jaxpr)))
    assert counts[0] == counts[1]


def equations(jaxpr):
    """Return the number of equations, also of the programs inside."""
    inner = [each for equation in jaxpr.eqns for each in jax.tree.leaves(list(equation.params.values()))]
    return len(jaxpr.eqns) + sum(equations(each.jaxpr) for each in inner if hasattr(each, "jaxpr"))


class States(nn.Module):
    """A recurrent layer with given initial states, as a function of one input."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, a):
        state = a.mean((0, 2)).expand(2, 3, a.shape[1]).transpose(1, 2).contiguous()
        return self.inner(a, (state, -state) if isinstance(self.inner, nn.LSTM) else state)


MODULES = {
    "lstm": lambda: nn.LSTM(INPUTS, WIDTH, 2, bidirectional=True, batch_first=True, dropout=0.0),
    "lstm with projection": lambda: nn.LSTM(INPUTS, 3, proj_size=2, bias=False),
    "gru in evaluation": lambda: nn.GRU(INPUTS, WIDTH, 2, dropout=0.5).eval(),
    "network": lambda: nn.RNN(INPUTS, WIDTH, nonlinearity="relu"),
    "states of lstm": lambda: States(nn.LSTM(INPUTS, 3, 2)),
    "states of gru": lambda: States(nn.GRU(INPUTS, 3, bidirectional=True)),
}


@pytest.mark.parametrize("case", MODULES)
def test_modules(case):
    torch.manual_seed(0)
    check_layer(MODULES[case]().double(), tensor(TIME, BATCH, INPUTS))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.LSTMCell])
def test_unbatched(layer):
    torch.manual_seed(0)
    check_layer(
        layer(INPUTS, WIDTH).double(), tensor(INPUTS) if layer is nn.LSTMCell else tensor(TIME, INPUTS)
    )


def test_only_dropout_needs_a_key():
    for layers, rate, is_random in ((2, 0.5, True), (2, 0.0, False)):
        module = nn.LSTM(INPUTS, WIDTH, layers, dropout=rate)
        assert exported(module, tensor(TIME, BATCH, INPUTS).float())[0].random is is_random
        assert exported(module.eval(), tensor(TIME, BATCH, INPUTS).float())[0].random is False
