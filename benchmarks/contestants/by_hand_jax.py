"""JAX without a library: one `lax.scan` for a run, products forward over reverse."""

import jax
import jax.numpy as jnp
from jax import lax

from contestants.losses_jax import (
    fetched,
    minus,
    placed,
    ridge as penalized,
    squares,
    validation as f,
    weighted as g,
)


def runs(step, task, start=lambda x, y: (x, y)):
    """`step(carry, train, valid) -> carry`; a carry begins with x and y."""
    x, y, train, valid = placed(task)

    @jax.jit
    def scanned(x, y, train, valid):
        body = lambda carry, _: (step(carry, train, valid), None)
        return lax.scan(body, start(x, y), length=task.steps)[0][:2]

    return lambda: fetched(*scanned(x, y, train, valid))


def with_adjoint(x, y):
    return x, y, jax.tree.map(jnp.zeros_like, y)


def itd(task, tolerance):
    def step(carry, train, valid):
        x, y = carry
        both = lambda y: jax.grad(g, (0, 1))(x, y, train)
        (_, g_y), products = jax.linearize(both, y)
        y = minus(y, task.alpha, g_y)
        f_x, f_y = jax.grad(f, (0, 1))(x, y, valid)
        return minus(x, task.beta, minus(f_x, task.alpha, products(f_y)[0])), y

    return runs(step, task)


def aid(task, tolerance):
    def step(carry, train, valid):
        x, y, v = carry
        y = minus(y, task.alpha, jax.grad(g, 1)(x, y, train))
        f_x, f_y = jax.grad(f, (0, 1))(x, y, valid)
        _, products = jax.linearize(lambda y: jax.grad(g, (0, 1))(x, y, train), y)
        v = minus(v, task.alpha, minus(products(v)[1], 1.0, f_y))
        return minus(x, task.beta, minus(f_x, 1.0, products(v)[0])), y, v

    return runs(step, task, with_adjoint)


def soba(task, tolerance):
    def products(x, y, v, train):
        (_, g_y), (cross, hessian) = jax.jvp(lambda y: jax.grad(g, (0, 1))(x, y, train), (y,), (v,))
        return g_y, cross, hessian

    return _soba(task, products)


def soba_reverse(task, tolerance):
    """The products reverse over reverse, as benchmark_bilevel's solver takes them."""

    def products(x, y, v, train):
        g_y, pull = jax.vjp(lambda x, y: jax.grad(g, 1)(x, y, train), x, y)
        return g_y, *pull(v)

    return _soba(task, products)


def _soba(task, products):
    def step(carry, train, valid):
        x, y, v = carry
        g_y, cross, hessian = products(x, y, v, train)
        f_x, f_y = jax.grad(f, (0, 1))(x, y, valid)
        return (
            minus(x, task.beta, minus(f_x, 1.0, cross)),
            minus(y, task.alpha, g_y),
            minus(v, task.alpha, minus(hessian, 1.0, f_y)),
        )

    return runs(step, task, with_adjoint)


def ridge(task, tolerance):
    """Both systems by warm-started conjugate gradients: whoever writes by hand knows that g is quadratic."""

    def step(carry, train, valid):
        x, y, v = carry
        g_y, products = jax.linearize(lambda y: jax.grad(penalized, (0, 1))(x, y, train), y)
        hessian = lambda p: products(p)[1]
        cg = lambda b, start: jax.scipy.sparse.linalg.cg(hessian, b, start, tol=tolerance)[0]
        y = cg(minus(hessian(y), 1.0, g_y[1]), y)
        _, cross = jax.linearize(lambda y: jax.grad(penalized)(x, y, train), y)
        f_x, f_y = jax.grad(squares, (0, 1))(x, y, valid)
        v = cg(f_y, v)
        return minus(x, task.beta, minus(f_x, 1.0, cross(v))), y, v

    return runs(step, task, with_adjoint)
