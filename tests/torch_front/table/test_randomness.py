"""Random operations have torch's shapes, types and distributions, and no derivative in their arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bilevel.torch.export import export
from bilevel.torch.interpreter import call, evaluate

KEY, SIZE = jax.random.key(3), (40, 50)
FLAT = jnp.zeros(SIZE, jnp.float32)
HALF = jnp.full(SIZE, 0.5)


def draw(name, *args, shape=SIZE, like=torch.float32, key=KEY, **named):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        (found,) = call(f"aten.{name}", args, named, [torch.zeros(shape, dtype=like)], key)
    return found


MOMENTS = [  # name, arguments, type, mean, standard deviation
    ("rand.default", (SIZE,), torch.float32, 1 / 2, 12**-0.5),
    ("rand_like.default", (FLAT,), torch.float32, 1 / 2, 12**-0.5),
    ("randn.default", (SIZE,), torch.float32, 0, 1),
    ("randn_like.default", (FLAT,), torch.float32, 0, 1),
    ("randint.default", (7, SIZE), torch.int64, 3, 2),
    ("randint.low", (-3, 4, SIZE), torch.int64, 0, 2),
    ("randint_like.default", (FLAT, 7), torch.float32, 3, 2),
    ("randint_like.low_dtype", (FLAT, -3, 4), torch.float32, 0, 2),
    ("random.to", (FLAT, 7), torch.float32, 3, 2),
    ("bernoulli.default", (HALF,), torch.float32, 0.5, 0.5),
    ("bernoulli.p", (FLAT, 0.2), torch.float32, 0.2, 0.4),
    ("bernoulli.Tensor", (FLAT, jnp.asarray(0.2)), torch.float32, 0.2, 0.4),
    ("uniform.default", (FLAT, -1.0, 3.0), torch.float32, 1, 4 * 12**-0.5),
    ("normal_functional.default", (FLAT, 1.0, 2.0), torch.float32, 1, 2),
    ("normal.Tensor_Tensor", (HALF, 3 + FLAT), torch.float32, 0.5, 3),
    ("normal.Tensor_float", (HALF, 3.0), torch.float32, 0.5, 3),
    ("normal.float_Tensor", (0.5, 3 + FLAT), torch.float32, 0.5, 3),
    ("exponential.default", (FLAT, 2.0), torch.float32, 0.5, 0.5),
    ("geometric.default", (FLAT, 0.5), torch.float32, 2, 2**0.5),
    ("log_normal.default", (FLAT, 0.0, 0.5), torch.float32, 1.133, 0.604),
    ("poisson.default", (4 + FLAT,), torch.float32, 4, 2),
    ("binomial.default", (8 + FLAT, HALF), torch.float32, 4, 2**0.5),
    ("_standard_gamma.default", (4 + FLAT,), torch.float32, 4, 2),
]


@pytest.mark.parametrize(("name", "args", "dtype", "mean", "std"), MOMENTS)
def test_distributions(name, args, dtype, mean, std):
    found = draw(name, *args, like=dtype)
    assert abs(found.mean() - mean) < 5 * std / found.size**0.5
    assert abs(found.std() - std) < 0.15 * std
    np.testing.assert_array_equal(found, draw(name, *args, like=dtype))  # of the same key
    assert (found != draw(name, *args, like=dtype, key=jax.random.key(4))).any()


def test_cauchy():
    quartiles = np.quantile(draw("cauchy.default", FLAT, 1.0, 2.0), [0.25, 0.5, 0.75])
    np.testing.assert_allclose(quartiles, [-1, 1, 3], atol=0.4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_types(dtype):
    named = {"dtype": {torch.float64: jnp.float64, torch.bfloat16: jnp.bfloat16}[dtype]}
    for name, args in (
        ("rand", (SIZE,)),
        ("randn", (SIZE,)),
        ("rand_like", (FLAT,)),
        ("randn_like", (FLAT,)),
    ):
        found = draw(f"{name}.default", *args, like=dtype, **named)
        assert (found < 1).all() or "randn" in name
    assert draw("rand.default", [], shape=()).shape == ()
    assert draw("randn.default", [0, 2], shape=(0, 2)).shape == (0, 2)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_certain_events(p):
    for name, args in (("default", (FLAT + p,)), ("p", (FLAT, p)), ("Tensor", (FLAT, FLAT[0] + p))):
        np.testing.assert_array_equal(draw(f"bernoulli.{name}", *args), np.full(SIZE, p))


def test_permutation():
    found = draw("randperm.default", 30, shape=(30,), like=torch.int64)
    assert found.dtype == "int64"
    np.testing.assert_array_equal(np.sort(found), np.arange(30))
    assert (np.sort(found) != found).any()


def test_multinomial():
    weights = jnp.asarray([[1, 0, 3], [2, 2, 0]], jnp.float32)
    found = draw("multinomial.default", weights, 4000, True, shape=(2, 4000), like=torch.int64)
    rates = np.stack([(np.asarray(found) == i).mean(1) for i in range(3)], 1)
    np.testing.assert_allclose(rates, [[0.25, 0, 0.75], [0.5, 0.5, 0]], atol=0.03)
    found = draw("multinomial.default", weights, 2, shape=(2, 2), like=torch.int64)
    np.testing.assert_array_equal(np.sort(found, 1), [[0, 2], [0, 1]])  # without replacement
    firsts = jax.vmap(
        lambda key: draw("multinomial.default", weights[0], 1, shape=(1,), like=torch.int64, key=key)
    )
    assert abs((firsts(jax.random.split(KEY, 2000)) == 2).mean() - 0.75) < 0.05


def dropout(a, p, train, key=KEY):
    like = [torch.zeros(a.shape), torch.zeros(a.shape, dtype=torch.bool)]
    return call("aten.native_dropout.default", (a, p, train), {}, like, key)


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout(p):
    a = 1 + jax.random.uniform(KEY, SIZE, jnp.float32)
    found, kept = dropout(a, p, True)
    assert abs(kept.mean() - (1 - p)) < 0.05 if 0 < p < 1 else kept.mean() == 1 - p
    np.testing.assert_allclose(found, np.where(kept, a / (1 - p) if p < 1 else 0, 0), rtol=1e-6)
    slope = jax.grad(lambda a: dropout(a, p, True)[0].sum())(a)
    np.testing.assert_allclose(slope, np.where(kept, 1 / (1 - p) if p < 1 else 0, 0), rtol=1e-6)
    found, kept = dropout(a, p, False)
    np.testing.assert_array_equal(found, a)
    assert kept.all()


def test_leaky_relu_with_noise():
    a, like = jnp.linspace(-1, 1, 2000, dtype=jnp.float32), [torch.zeros(2000)] * 2
    name = "aten.rrelu_with_noise_functional.default"
    found, noise = call(name, (a, jnp.zeros_like(a), 0.2, 0.4, True), {}, like, KEY)
    np.testing.assert_allclose(found, a * noise)
    assert (noise[a > 0] == 1).all()
    slopes = noise[a < 0]
    assert slopes.min() >= 0.2
    assert slopes.max() <= 0.4
    assert abs(slopes.mean() - 0.3) < 0.01
    found, _ = call(name, (a, jnp.zeros_like(a), 0.2, 0.4), {}, like, KEY)
    np.testing.assert_allclose(
        found, torch.nn.functional.rrelu(torch.tensor(np.array(a)), 0.2, 0.4), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("normal.Tensor_Tensor", (HALF, 1 + HALF)),
        ("bernoulli.default", (HALF,)),
        ("poisson.default", (HALF,)),
        ("binomial.default", (8 + HALF, HALF)),
        ("uniform.default", (HALF,)),
    ],
)
def test_arguments_have_no_derivative(name, args):
    slopes = jax.grad(lambda args: draw(name, *args, shape=SIZE).sum())(args)
    assert not any(each.any() for each in slopes)


def test_logarithm_of_an_exponential_is_finite():
    assert jnp.isfinite(
        jnp.log(draw("exponential.default", jnp.zeros(10**6, jnp.float32), shape=(10**6,)))
    ).all()


def noisy(x, model):
    """Return layers that torch decomposes. The mean of each is 1 where x is 1."""
    deep = x[:, :, None, None]
    return x.sum(), {
        "dropout": F.dropout(x, 0.5),
        "dropout1d": F.dropout1d(x, 0.5),
        "dropout2d": F.dropout2d(deep, 0.5),
        "in place": F.dropout(x.clone(), 0.5, inplace=True),
        "alpha": F.alpha_dropout(0 * x, 0.5, training=True) + 1,
        "feature alpha": F.feature_alpha_dropout(0 * deep, 0.5, training=True) + 1,
        "gumbel": 40 * F.gumbel_softmax(0 * x, hard=True),
        "leaky": F.rrelu(-x, 0.25, 0.75, training=True) + 1.5,
        "bernoulli": torch.bernoulli(x / 2) * 2,
        "in-place bernoulli": torch.empty_like(x).bernoulli_(0.5) * 2,
        "created": 2 * torch.rand(50, 40) + 0.5 * torch.randint(0, 5, (50, 40)) - torch.randn(50, 40) - 1,
        "like": 2 * torch.rand_like(x) + 0.5 * torch.randint_like(x, 5) - torch.randn_like(x) - 1,
        "written": x.clone().uniform_(0, 2) + x.clone().normal_(0, 1) + x.clone().exponential_(2) - 0.5,
        "normal": torch.normal(x, 0.5) + torch.normal(0.0, x) + torch.normal(0 * x, x),
        "multinomial": torch.multinomial(x, 30, replacement=True) / 19.5,
        "permuted": torch.randperm(11) / 5,
    }


def test_random_layers_of_a_graph():
    x = jnp.ones((50, 40), jnp.float32)
    graph = export({"model": torch.nn.Identity()}, noisy, "inner", x, None, torch.device("cpu"))
    _, *found = jax.jit(lambda x, key: evaluate(graph, [x], {}, key)[0])(x, KEY)
    assert graph.random
    for name, each in zip(graph.metrics, found, strict=True):
        assert abs(each.mean() - 1) < 0.15, name
        assert each.std() > 0.1, name
