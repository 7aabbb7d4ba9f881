"""Quadratic inner problems with noisy rows, whose constants, noise and hypergradient are known in closed form.

    g(x, y; i) = ½yᵀH_i y + xᵀB_i y + c_iᵀy        f(x, y; j) = Σ_l w_l φ(u_lᵀ(x, y) − b_l) + l_jᵀ(x, y)

over rows i and j, with φ(t) = δ²(√(1 + t²/δ²) − 1) and Σ l_j = 0. The rows' means are the problem; a batch of one row is an
unbiased draw of it. Data are arguments, so that one compiled program serves all problems, and `jax.vmap` their runs.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import bilevel as bl
from bilevel.theory import Blocks, Noise

ROWS = 16


class Outer(NamedTuple):
    U: jax.Array
    w: jax.Array
    b: jax.Array
    delta: jax.Array
    l: jax.Array


def inner(x, y, rows):
    H, B, c = (jnp.mean(a, axis=0) for a in rows)
    return 0.5 * y @ H @ y + x @ B @ y + c @ y


def smooth(x, y, U, w, b, delta):
    t = (U @ jnp.concatenate([x, y]) - b) / delta
    return delta**2 * jnp.sum(w * t * t / (jnp.sqrt(1 + t * t) + 1))


def outer(x, y, rows):
    fixed = (a[0] for a in rows[:4])  # the same in every row
    return smooth(x, y, *fixed) + jnp.mean(rows.l, axis=0) @ jnp.concatenate([x, y])


PROBLEM = bl.Problem(inner=inner, outer=outer)


class Case(NamedTuple):
    data: bl.Batch
    x0: jax.Array
    y0: jax.Array


def centred(rng, size, *shape):
    """Rows with mean zero and mean squared norm size²."""
    rows = rng.normal(size=(ROWS, *shape))
    rows -= rows.mean(0)
    axes = tuple(range(1, rows.ndim))
    return size * rows / max(np.sqrt(np.mean(np.sum(rows**2, axis=axes))), 1e-300)


def orthogonal(rng, n):
    return np.linalg.qr(rng.normal(size=(n, n)))[0]


def make(seed, mu=0.5, kappa=3.0, noise=(0.3, 0.3, 0.3), curved=0.0, n=2, L_xy=0.5, start="away"):
    """A case with its constants. `noise` are the deviations of ∇_y g, ∇_y f, ∇_x f; `curved` that of H (and of B)."""
    rng = np.random.default_rng(seed)
    L = kappa * mu
    Q = orthogonal(rng, n)
    H = Q * np.linspace(mu, L, n) @ Q.T if n > 1 else np.full((1, 1), mu)
    B = orthogonal(rng, n) * (L_xy * np.linspace(1, 0.4, n)) @ orthogonal(rng, n)
    U, w, b, delta = orthogonal(rng, 2 * n), rng.uniform(0.3, 1, 2 * n), rng.normal(size=2 * n), 1.0
    H_rows = centred(rng, curved, n, n)
    H_rows = H + (H_rows + np.swapaxes(H_rows, 1, 2)) / 2
    B_rows, c_rows = B + centred(rng, curved, n, n), rng.normal(size=n) + centred(rng, noise[0], n)
    l = np.concatenate([centred(rng, noise[2], n), centred(rng, noise[1], n)], axis=1)
    tile = lambda a: jnp.asarray(np.broadcast_to(a, (ROWS, *np.shape(a))))
    data = bl.Batch(
        inner=tuple(map(jnp.asarray, (H_rows, B_rows, c_rows))),
        outer=Outer(tile(U), tile(w), tile(b), tile(delta), jnp.asarray(l)),
    )
    x0 = jnp.asarray(rng.normal(size=n))
    y0 = inner_solution(data, x0) + (jnp.asarray(rng.normal(size=n)) if start == "away" else 0.0)
    norm = lambda a: float(np.linalg.norm(a, 2))
    f_xx, f_yy = norm(U[:, :n].T * w @ U[:, :n]), norm(U[:, n:].T * w @ U[:, n:])
    k = Blocks(mu, L, norm(B), f_xx, np.sqrt(f_xx * f_yy), f_yy, M_y=delta * float(np.linalg.norm(w)))
    gram = lambda rows, mean: np.sqrt(norm(np.mean([(a - mean) @ (a - mean).T for a in rows], axis=0)))
    by_u = lambda rows, mean: np.sqrt(norm(np.mean([(a - mean).T @ (a - mean) for a in rows], axis=0)))
    sigma = Noise(*noise, hessian=gram(H_rows, H), cross=by_u(B_rows, B))
    # |φ'''| ≤ 0.859/δ, and (x, y*(x)) moves by at most √(1 + s²) per unit of x.
    v_bend = 0.859 * max(w) / delta * (1 + k.y_slope**2) / mu
    return Case(data, x0, y0), k, sigma, float(v_bend)


def inner_solution(data, x):
    H, B, c = (jnp.mean(a, axis=0) for a in data.inner)
    return -jnp.linalg.solve(H, B.T @ x + c)


def phi(data, x):
    return smooth(x, inner_solution(data, x), *(a[0] for a in data.outer[:4]))


def adjoint_solution(data, x):
    H = jnp.mean(data.inner[0], axis=0)
    f_y = jax.grad(smooth, 1)(x, inner_solution(data, x), *(a[0] for a in data.outer[:4]))
    return jnp.linalg.solve(H, f_y)


def runs(make_solver, case, sizes, steps, seeds, start=None):
    """(x_0 … x_{K−1} of every seed, ‖∇Φ‖² there): the real solver on batches of one row drawn with replacement."""

    def one(seed):
        solver = make_solver(*sizes)
        stream = bl.iid(case.data, 1, seed=seed)
        state = solver.init(case.x0, case.y0, stream.next(stream.start(0))[1])
        _, xs = bl.scan(solver, state, stream, steps=steps, record=lambda state, info: state.x)
        xs = jnp.concatenate([case.x0[None], xs[:-1]])
        gradients = jax.vmap(jax.grad(phi, 1), (None, 0))(case.data, xs)
        return xs, jnp.sum(gradients**2, axis=-1)

    return jax.vmap(one)(seeds)


def start_errors(case):
    v = adjoint_solution(case.data, case.x0)
    y = inner_solution(case.data, case.x0)
    return float(jnp.linalg.norm(case.y0 - y)), float(jnp.linalg.norm(v))
