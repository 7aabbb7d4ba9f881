"""What a step of every method costs on a model whose layers are scanned and rematerialized, as large models are.

Inside such a loop the compiler finds nothing that two passes share, so a method costs the passes that it asks for. Each
pass is written by hand here, in plain JAX, and every method is held to the sum of the operations of its passes. Methods
of each kind are held to the memory of whole steps written by hand as well. Both are the compiler's own numbers; it
counts the body of a loop once, whatever the number of turns, on both sides.
"""

from functools import cache

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import bilevel as bl
from zoo import ROWS

LAYERS, WIDTH, ROW_COUNT, WORDS = 4, 16, 32, 32
FLOAT, STEP = jnp.float32, 0.1


def losses(y, tokens):
    @jax.checkpoint
    def layer(h, w):
        return h + jnp.tanh(h @ w["in"]) @ w["out"], None

    h, _ = lax.scan(layer, y["words"][tokens], y["layers"])
    scores = jax.nn.log_softmax(h[:, :-1] @ y["words"].T)
    return -jnp.mean(jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1), axis=(1, 2))


def g(x, y, tokens):
    return jnp.mean(jax.nn.softplus(x) * losses(y, tokens)) + FLOAT(1e-3) * jnp.sum(y["words"] ** 2)


def f(x, y, tokens):
    return jnp.mean(losses(y, tokens)) + FLOAT(1e-3) * jnp.sum(x**2)


real = lambda *shape: jax.ShapeDtypeStruct(shape, FLOAT)
X, TOKENS = real(ROW_COUNT), jax.ShapeDtypeStruct((ROW_COUNT, 64), jnp.int32)
LAYER = {"in": real(LAYERS, WIDTH, 2 * WIDTH), "out": real(LAYERS, 2 * WIDTH, WIDTH)}
Y = {"words": real(WORDS, WIDTH), "layers": LAYER}
DATA, PROBLEM = bl.Batch(inner=TOKENS, outer=TOKENS), bl.Problem(inner=g, outer=f)


def cost(function, *shapes) -> tuple[float, int]:
    """(floating-point operations, bytes of temporary memory)"""
    program = jax.jit(function).lower(*shapes).compile()
    return program.cost_analysis()["flops"], program.memory_analysis().temp_size_in_bytes


def size(tree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


g_y, g_x, g_both = (jax.grad(g, argnums) for argnums in (1, 0, (0, 1)))
f_both = jax.grad(f, (0, 1))


def tangent(gradient, x, y, v, tokens):
    return jax.jvp(lambda y: gradient(x, y, tokens), (y,), (v,))


def linearized(gradient, products):
    def function(x, y, v, tokens):
        _, product = jax.linearize(lambda y: gradient(x, y, tokens), y)
        for _ in range(products):
            v = product(v)
            v = v[1] if gradient is g_both else v
        return v

    return function


def pushes(x, y, v, tokens):
    """∇_y g with its derivative along every entry of x and a direction in y of its own."""
    gradient, push = jax.linearize(lambda x, y: g_y(x, y, tokens), x, y)
    along = jax.tree.map(lambda a: jnp.broadcast_to(a, (ROW_COUNT, *a.shape)), v)
    return gradient, jax.vmap(push)(jnp.eye(ROW_COUNT, dtype=FLOAT), along)


PASSES = {
    "G": (g_y, X, Y, TOKENS),  # ∇_y g
    "X": (g_x, X, Y, TOKENS),  # ∇_x g, or ∇_x f, or a value: forward alone
    "F": (f_both, X, Y, TOKENS),  # ∇f
    "H": (lambda *at: tangent(g_y, *at)[1], X, Y, Y, TOKENS),  # ∇²_yy g·v
    "C": (lambda *at: tangent(g_x, *at)[1], X, Y, Y, TOKENS),  # ∇²_xy g·v
    "A": (lambda *at: tangent(g_both, *at), X, Y, Y, TOKENS),  # both, and the gradient
    "L": (linearized(g_y, 1), X, Y, Y, TOKENS),  # a linearization, and one product
    "LL": (linearized(g_y, 2), X, Y, Y, TOKENS),  # two products
    "B": (linearized(g_both, 1), X, Y, Y, TOKENS),  # a linearization of both gradients
    "J": (pushes, X, Y, Y, TOKENS),
}


@pytest.fixture(scope="module")
def passes() -> dict[str, float]:
    """The operations of each."""
    found = {name: cost(*each)[0] for name, each in PASSES.items()}
    return found | {"h": found.pop("LL") - found["L"]}  # one more product of a linearization


# The passes of a step, bodies of loops once, by the formulas of each method.
METHODS = {
    "aid": "GHFC",
    "soba": "AF",
    "itd": "GFC",
    "itd_3_steps": "GGFBB",
    "itd_truncated": "GGGGGGFBB",
    "aid_steps": "GGFLC",
    "aid_neumann": "GFLC",
    "aid_cg": "GGFLhhC",
    "aid_minres": "GFLhhC",
    "aid_quasi_newton": "GFLhC",
    "aid_nystrom": "GFLhhhC",
    "aid_three_draws": "GHFXC",
    "aid_decoupled_decay": "GHFC",
    "hoag": "GGFLhhC",
    "stocbio": "GFHC",
    "darts": "GGFXX",
    "darts_first_order": "GX",
    "sama": "GFXX",
    "qnbo": "GGGFLhC",
    "forward_itd": "JF",
    "rtho": "JF",
    "bda": "GGFFFBBBB",
    "iaptt": "GXFB",
    "f2sa": "GGFXXX",
    "f3sa": "GGFXXXGGFXXX",
    "f2ba": "GGFXXX",
    "acc_f2ba": "GGFXXX",
    "f2sa_p": "GFGFGFGFGFXX",
    "meha": "GGGFX",
    "bome": "GGFX",
    "v_pbgd": "GGFX",
    "g_pbgd": "GFA",
    "pzobo": "GGXGGGG",
    "tuning_free": "AFAFAFBhXXLhLh",
    "d_tfbo": "GGFLC",
    "s_tfbo": "AF",
    "saba": "AF",
    "srba": "AFAF",
    "sustain": "GFHCGFHC",
    "mrbo": "GFHCGFHC",
    "vrbo": 5 * "GFHC",
    "fsla": "GHFXCXC",
}
LEFT_OUT = {
    row.name for row in ROWS if row.problems == ("tasks",) or row.name.endswith("_optax")
}  # as their relatives


def test_every_method_is_here():
    assert METHODS.keys() == {row.name for row in ROWS} - LEFT_OUT


def make(name: str) -> bl.Solver:
    return next(row for row in ROWS if row.name == name).make(PROBLEM, 1 / FLOAT(STEP))


@cache
def of_step(name: str) -> tuple[float, int]:
    solver = make(name)
    return cost(solver.step, jax.eval_shape(solver.init, X, Y, DATA), DATA)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_method_costs_its_passes(passes, name):
    operations, _ = of_step(name)
    assert operations <= 1.05 * sum(passes[each] for each in METHODS[name])


# Whole steps by hand: the same arguments and results as the library's, f and the hypergradient among them.


def less(a, t, b):
    return jax.tree.map(lambda a, b: a - FLOAT(t) * b, a, b)


def finish(x, y, v, value, hypergradient, gradient):
    """What a step returns besides: f, the hypergradient and ∇_y g."""
    return less(x, STEP, hypergradient), y, v, value, hypergradient, gradient


def outer(x, y, tokens):
    value, (of_x, of_y) = jax.value_and_grad(f, (0, 1))(x, y, tokens)
    return value, of_x, of_y


def aid(x, y, v, tokens, others):
    gradient = g_y(x, y, tokens)
    y = less(y, STEP, gradient)
    value, of_x, of_y = outer(x, y, others)
    v = less(v, STEP, less(tangent(g_y, x, y, v, tokens)[1], 1, of_y))
    return finish(x, y, v, value, less(of_x, 1, tangent(g_x, x, y, v, tokens)[1]), gradient)


def soba(x, y, v, tokens, others):
    (_, gradient), (cross, hessian) = tangent(g_both, x, y, v, tokens)
    value, of_x, of_y = outer(x, y, others)
    after = less(v, STEP, less(hessian, 1, of_y))
    return finish(x, less(y, STEP, gradient), after, value, less(of_x, 1, cross), gradient)


def itd(x, y, v, tokens, others):
    gradient = g_y(x, y, tokens)
    after = less(y, STEP, gradient)
    value, of_x, of_y = outer(x, after, others)
    cross = tangent(g_x, x, y, of_y, tokens)[1]
    return finish(x, after, v, value, less(of_x, STEP, cross), gradient)


def itd_3_steps(x, y, v, tokens, others):
    def step(y, _):
        gradient = g_y(x, y, tokens)
        return less(y, STEP, gradient), (y, gradient)

    last, (points, gradients) = lax.scan(step, y, length=2)
    y = less(last, STEP, g_y(x, last, tokens))
    value, of_x, of_y = outer(x, y, others)

    def back(carry, y):
        p, along_x = carry
        _, push = jax.linearize(lambda y: g_both(x, y, tokens), y)
        cross, hessian = push(p)
        return (less(p, STEP, hessian), less(along_x, STEP, cross)), None

    carry, _ = back((of_y, of_x), last)
    (_, hypergradient), _ = lax.scan(back, carry, points, reverse=True)
    return finish(x, y, v, value, hypergradient, jax.tree.map(lambda a: a[0], gradients))


def stocbio(x, y, v, tokens, others):
    gradient = g_y(x, y, tokens)
    y = less(y, STEP, gradient)
    value, of_x, of_y = outer(x, y, others)

    def add(carry, _):
        r, total = carry
        r = less(r, STEP, tangent(g_y, x, y, r, tokens)[1])
        return (r, less(total, -1, r)), None

    (_, total), _ = lax.scan(add, (of_y, of_y), length=3)
    p = less(jax.tree.map(jnp.zeros_like, total), -STEP, total)
    return finish(x, y, v, value, less(of_x, 1, tangent(g_x, x, y, p, tokens)[1]), gradient)


def aid_steps(x, y, v, tokens, others):
    step = lambda y: less(y, STEP, g_y(x, y, tokens))
    gradient = g_y(x, y, tokens)
    y, _ = lax.scan(lambda y, _: (step(y), None), less(y, STEP, gradient), length=3)
    value, of_x, of_y = outer(x, y, others)
    _, hessian = jax.linearize(lambda y: g_y(x, y, tokens), y)
    v, _ = lax.scan(lambda v, _: (less(v, STEP, less(hessian(v), 1, of_y)), None), v, length=4)
    return finish(x, y, v, value, less(of_x, 1, tangent(g_x, x, y, v, tokens)[1]), gradient)


def v_pbgd(x, y, v, tokens, others):
    """v is z, the point that follows y*(x)."""
    gradient = g_y(x, v, tokens)
    z = less(v, STEP, gradient)
    value, of_x, of_y = outer(x, y, others)
    at_y, at_z = g_both(x, y, tokens), g_x(x, z, tokens)
    hypergradient = less(of_x, -5, less(at_y[0], 1, at_z))
    return finish(x, less(y, STEP, less(at_y[1], -0.2, of_y)), z, value, hypergradient, gradient)


BY_HAND = [aid, soba, itd, itd_3_steps, aid_steps, stocbio, v_pbgd]


@pytest.mark.slow
@pytest.mark.parametrize("step", BY_HAND, ids=lambda step: step.__name__)
def test_the_memory_of_a_step_is_that_of_one_written_by_hand(step):
    operations, memory = cost(step, X, Y, Y, TOKENS, TOKENS)
    ours = of_step(step.__name__)
    assert ours[0] <= 1.05 * operations
    assert ours[1] <= 1.05 * memory
