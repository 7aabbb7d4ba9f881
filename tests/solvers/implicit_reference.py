"""Dense answers, written without the library: Newton for y*, linear algebra for everything that follows."""

from collections.abc import Callable
from functools import cache, partial

import jax
import jax.numpy as jnp

import bilevel as bl


class Dense:
    """A problem on vectors with data, differentiated by dense Jacobians."""

    def __init__(self, f: Callable, g: Callable, train, valid):
        self.f, self.g, self.train, self.valid = f, g, train, valid

    @partial(jax.jit, static_argnums=0)
    def inner_solution(self, x, train=None):
        train = self.train if train is None else train

        def newton(y, _):
            H = jax.hessian(self.g, 1)(x, y, train)
            return y - jnp.linalg.solve(H, jax.grad(self.g, 1)(x, y, train)), None

        return jax.lax.scan(newton, jnp.zeros(len(x)), length=20)[0]

    @partial(jax.jit, static_argnums=0)
    def inner_gradient(self, x, y, train=None):
        return jax.grad(self.g, 1)(x, y, self.train if train is None else train)

    @partial(jax.jit, static_argnums=0)
    def hessian(self, x, y, train=None):
        return jax.hessian(self.g, 1)(x, y, self.train if train is None else train)

    @partial(jax.jit, static_argnums=0)
    def cross(self, x, y, train=None):
        return jax.jacobian(jax.grad(self.g, 0), 1)(x, y, self.train if train is None else train)

    @partial(jax.jit, static_argnums=0)
    def outer_gradients(self, x, y):
        return jax.grad(self.f, (0, 1))(x, y, self.valid)

    @partial(jax.jit, static_argnums=(0, 2))
    def estimate(self, x, adjoint: Callable, y=None):
        """∇_x f − ∇²_xy g · v at y*(x), where v = adjoint(H, ∇_y f)."""
        y = self.inner_solution(x) if y is None else y
        f_x, f_y = self.outer_gradients(x, y)
        return f_x - self.cross(x, y) @ adjoint(self.hessian(x, y), f_y)

    def hypergradient(self, x):
        return self.estimate(x, jnp.linalg.solve)


@cache
def ridge() -> tuple[bl.problems.RidgeLogistic, Dense]:
    p = bl.problems.ridge_logistic(train=64, valid=56)
    return p, Dense(p.f, p.g, p.train, p.valid)


def series(eta: float, products: int) -> Callable:
    """(H, b) ↦ η Σ_{i=0}^{Q} (I − ηH)ⁱ b."""

    def adjoint(H, b):
        eye = jnp.eye(len(b))
        return eta * sum(jnp.linalg.matrix_power(eye - eta * H, i) @ b for i in range(products + 1))

    return adjoint


def last_x(solver: bl.Solver, x0, y0, data=None, steps: int = 1000):
    program = jax.jit(lambda data: bl.scan(solver, solver.init(x0, y0, data), data, steps=steps)[0].x)
    return program(data)
