"""The table in docs/how-to/constraints.md: what holding AdamW's preconditioner fixed leaves out."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel.solvers.fixed_points import adjoint_system

PAGE = Path(__file__).parents[2] / "docs/how-to/constraints.md"
N, ROWS, SIZE, RATE, STEPS, EVERY = 8, 60, 10, 1e-3, 20_000, 10


def study(kind, c):
    """Relative errors of the hypergradient: with P held fixed, without the decay, with c in the place of c/P."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape))
    A, V, y_a, y_v = draw(ROWS, N), draw(40, N), draw(N), draw(N)
    b, d = A @ y_a + 0.5 * draw(ROWS), V @ y_v
    full, logistic = "full batch" in kind, "logistic" in kind
    if logistic:
        b, d = jnp.sign(b), jnp.sign(d)

    def loss(y, rows, targets):
        fit = rows @ y
        return jnp.mean(jax.nn.softplus(-targets * fit)) if logistic else 0.5 * jnp.mean((fit - targets) ** 2)

    g = lambda x, y, take: loss(y, A[take], b[take]) + 0.5 * jnp.sum(jnp.exp(x) * y * y)
    f = lambda x, y: loss(y, V, d)
    tx = optax.adamw(RATE, weight_decay=c, eps=0.1 if full else 1e-8)
    everything = jnp.arange(ROWS)
    problem = bl.Problem(inner=lambda x, y: g(x, y, everything), outer=f)

    def late(x):
        """Some (y, memory) of the second half of a run of optax's own."""

        def step(carry, i):
            y, memory = carry
            take = jax.random.randint(jax.random.fold_in(jax.random.key(0), i), (SIZE,), 0, ROWS)
            gradient = jax.grad(g, 1)(x, y, everything if full else take)
            updates, memory = tx.update(gradient, memory, y)
            return (optax.apply_updates(y, updates), memory), None

        def some(carry, i):
            carry, _ = jax.lax.scan(step, carry, i)
            return carry, carry

        start = jnp.zeros(N), tx.init(jnp.zeros(N))
        _, found = jax.lax.scan(some, start, jnp.arange(2 * STEPS).reshape(-1, EVERY))
        return jax.tree.map(lambda a: a[a.shape[0] // 2 :], found)

    x, h = jnp.full(N, -2.0), 1e-3
    near = x[None] + h * jnp.concatenate([jnp.eye(N), -jnp.eye(N), jnp.zeros((1, N))])

    @jax.jit
    @jax.vmap
    def near_x(x):
        ys, memories = late(x)
        return jnp.mean(jax.vmap(lambda y: f(x, y))(ys)), ys, memories

    values, *found = near_x(near)  # all runs at once; the last one is at x
    exact = (values[:N] - values[N : 2 * N]) / (2 * h)
    ys, memories = jax.tree.map(lambda a: a[-1], found)

    def hypergradient(rule, ridge, y, memory):
        here, slope = problem.oracles.curvature(x, y, None), problem.oracles.outer_gradients(x, y, None)
        system = adjoint_system(problem, rule, memory, x, y, here, slope.y, None)
        matrix = jax.jacobian(system.inner.hessian)(jnp.zeros(N)) + ridge * jnp.eye(N)
        return slope.x - system.inner.cross(jnp.linalg.solve(matrix, system.b))

    held, plain = bl.fixed_preconditioner(tx), bl.fixed_preconditioner(optax.sgd(1.0))
    errors = []
    for rule, ridge in ((held, 0.0), (plain, 0.0), (plain, c)):
        mean = jax.jit(
            lambda rule=rule, ridge=ridge: jnp.mean(
                jax.vmap(lambda y, m: hypergradient(rule, ridge, y, m))(ys, memories), 0
            )
        )()
        errors.append(float(jnp.linalg.norm(mean - exact) / jnp.linalg.norm(exact)))
    return c * float(jnp.max(jnp.abs(ys))), errors


def table():
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith(("| least", "| logistic"))]
    cells = lambda line: [cell.strip() for cell in line.strip("|").split("|")]
    return [(kind, float(c), float(most), *rest) for kind, c, most, *rest in map(cells, lines)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "c", "most", "held", "without", "plain"), table())
def test_the_table_of_errors(kind, c, most, held, without, plain):
    with jax.numpy_dtype_promotion("standard"):
        largest, errors = study(kind, c)
    assert abs(largest - most) <= 0.006
    for error, shown in zip(errors, (held, without, plain), strict=True):
        assert 100 * error == pytest.approx(float(shown.rstrip("%")), rel=0.15, abs=0.06), (kind, c, errors)
