"""optimistix: `minimise` is differentiable, implicitly unless you choose another adjoint."""

import jax
import optimistix

from elsewhere.losses_jax import f, g
from elsewhere.problem import A_, BETA, A, b, b_, x0, y0

training_loss = lambda y, x: g(x, y, (A, b))
rule = optimistix.BFGS(rtol=1e-10, atol=1e-10)


@jax.jit
def outer(x, y):
    y = optimistix.minimise(training_loss, rule, y, args=x).value
    return f(x, y, (A_, b_)), y


def solve(steps):
    x, y = map(jax.numpy.asarray, (x0, y0))
    for _ in range(steps):
        h, y = jax.grad(outer, has_aux=True)(x, y)
        x = x - BETA * h
    return x
