"""Quadratic inner problems with noisy rows, whose constants, noise and hypergradient are known in closed form.

    g(x, y; i) = ½yᵀH_i y + xᵀB_i y + c_iᵀy        f(x, y; j) = Σ_l w_l φ(u_lᵀ(x, y) − b_l) + z_jᵀ(x, y)

over rows i and j, with φ(t) = δ²(√(1 + t²/δ²) − 1) and Σ z_j = 0. The mean over rows is the problem; one row is an
unbiased draw of it. Data are arguments, so that one compiled program serves all problems of a size.
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
    z: jax.Array


def inner(x, y, rows):
    H, B, c = (jnp.mean(a, axis=0) for a in rows)
    return 0.5 * y @ H @ y + x @ B @ y + c @ y


def smooth(x, y, U, w, b, delta):
    t = (U @ jnp.concatenate([x, y]) - b) / delta
    return delta**2 * jnp.sum(w * t * t / (jnp.sqrt(1 + t * t) + 1))


def outer(x, y, rows):
    fixed = (a[0] for a in rows[:4])  # the same in every row
    return smooth(x, y, *fixed) + jnp.mean(rows.z, axis=0) @ jnp.concatenate([x, y])


PROBLEM = bl.Problem(inner=inner, outer=outer)


class Case(NamedTuple):
    """What a run needs."""

    data: bl.Batch
    x0: jax.Array
    y0: jax.Array


class Known(NamedTuple):
    """What its certificate needs."""

    blocks: Blocks
    noise: Noise
    v_bend: float
    gap: float
    y_error: float
    v_error: float

    @property
    def start(self):
        return self.gap, self.y_error, self.v_error


def build(rng, H, B, c, U, w, b, delta, noise, curved, x0, y_off):
    """`noise` are the deviations of ∇_y g, ∇_y f and ∇_x f, `curved` that of H's and of B's entries together."""
    n = len(H)
    H_rows = centerd(rng, curved, n, n)
    H_rows = H + (H_rows + np.swapaxes(H_rows, 1, 2)) / 2
    B_rows, c_rows = B + centerd(rng, curved, n, n), c + centerd(rng, noise[0], n)
    z = np.concatenate([centerd(rng, noise[2], n), centerd(rng, noise[1], n)], axis=1)
    tile = lambda a: jnp.asarray(np.broadcast_to(a, (ROWS, *np.shape(a))))
    data = bl.Batch(
        inner=tuple(map(jnp.asarray, (H_rows, B_rows, c_rows))),
        outer=Outer(tile(U), tile(w), tile(b), tile(delta), jnp.asarray(z)),
    )
    x0 = jnp.asarray(x0)
    case = Case(data, x0, jnp.asarray(inner_solution(data, x0) + y_off))

    norm = lambda a: float(np.linalg.norm(a, 2))
    mu, L = np.linalg.eigvalsh(H)[[0, -1]]
    block = lambda columns: norm(U[:, columns].T * w @ U[:, columns])
    f_xx, f_yy = block(slice(0, n)), block(slice(n, 2 * n))
    k = Blocks(mu, L, norm(B), f_xx, np.sqrt(f_xx * f_yy), f_yy, M_y=delta * float(np.linalg.norm(w)))
    spread = lambda rows, mean: np.sqrt(norm(np.mean([(a - mean).T @ (a - mean) for a in rows], axis=0)))
    # B_i sends y to x: ∇²_xy g·u = B_i u.
    sigma = Noise(*noise, hessian=spread(H_rows, H), cross=spread(B_rows, B))
    # |φ'''| ≤ 0.859/δ, and (x, y*(x)) moves by at most √(1 + s²) per unit of x.
    v_bend = float(0.859 * max(w) / delta * (1 + k.y_slope**2) / mu)
    y_error = float(np.linalg.norm(case.y0 - inner_solution(data, x0)))
    v_error = float(np.linalg.norm(adjoint_solution(data, x0)))
    return case, Known(k, sigma, v_bend, float(phi(data, x0)), y_error, v_error)  # f ≥ 0, so gap ≤ Φ(x₀)


def random(seed, n=2, mu=0.5, kappa=3.0, level=0.3, curved=0.0, L_xy=0.5):
    """Everything at once."""
    rng = np.random.default_rng(seed)
    Q = orthogonal(rng, n)
    H = Q * np.linspace(mu, kappa * mu, n) @ Q.T
    B = orthogonal(rng, n) * (L_xy * np.linspace(1, 0.4, n)) @ orthogonal(rng, n)
    U, w, b = orthogonal(rng, 2 * n), rng.uniform(0.3, 1, 2 * n), rng.normal(size=2 * n)
    x0, c, y_off = rng.normal(size=(3, n))
    return build(rng, H, B, c, U, w, b, 1.0, (level, level, level), curved, x0, y_off)


def slope(distance, n=2):
    """Φ falls with almost constant slope 0.1 from x₀ for `distance`: the gap is spent evenly, the worst way."""
    rng = np.random.default_rng(0)
    U, w = np.eye(2 * n), np.array([1.0] + [0.0] * (2 * n - 1))
    x0 = np.eye(n)[0] * distance
    return build(
        rng, np.eye(n), 0.1 * np.eye(n), np.zeros(n), U, w, np.zeros(2 * n), 0.1, (0.01,) * 3, 0.0, x0, 0.0
    )


def followed(level=0.3, n=2):
    """y* stays where it is and f = ½‖x + y‖²: x follows the noise of y, so that ∇Φ is all of the error it makes."""
    rng = np.random.default_rng(0)
    U = np.concatenate([np.eye(n), np.eye(n)], axis=1) / np.sqrt(2)
    U = np.concatenate([U, np.concatenate([np.eye(n), -np.eye(n)], axis=1) / np.sqrt(2)])
    w, zeros = np.array([1.0] * n + [0.0] * n), np.zeros(n)
    return build(
        rng, np.eye(n), 0 * np.eye(n), zeros, U, w, np.zeros(2 * n), 100.0, (level, 0, 0), 0.0, zeros, 0.0
    )


def shaken(level=0.3, n=2):
    """Noise in the outer direction alone, y and v exact."""
    rng = np.random.default_rng(0)
    U, w, zeros = np.eye(2 * n), np.array([1.0] * n + [0.0] * n), np.zeros(n)
    return build(
        rng, np.eye(n), 0 * np.eye(n), zeros, U, w, np.zeros(2 * n), 100.0, (0, 0, level), 0.0, zeros, 0.0
    )


def centerd(rng, size, *shape):
    """Rows with mean zero and mean squared norm size²."""
    rows = rng.normal(size=(ROWS, *shape))
    rows -= rows.mean(0)
    return size * rows / np.sqrt(np.mean(np.sum(rows**2, axis=tuple(range(1, rows.ndim)))))


def orthogonal(rng, n):
    return np.linalg.qr(rng.normal(size=(n, n)))[0]


def inner_solution(data, x):
    """y*(x), for one x or many."""
    H, B, c = (np.mean(np.asarray(a), axis=0) for a in data.inner)
    return -(np.asarray(x) @ B + c) @ np.linalg.inv(H)


def outer_gradients(data, x, y):
    """∇_x f and ∇_y f."""
    U, w, b, delta = (np.asarray(a[0]) for a in data.outer[:4])
    t = (np.concatenate([x, y], axis=-1) @ U.T - b) / delta
    return np.split((w * delta * t / np.sqrt(1 + t * t)) @ U, 2, axis=-1)


def adjoint_solution(data, x):
    f_y = outer_gradients(data, x, inner_solution(data, x))[1]
    return f_y @ np.linalg.inv(np.mean(np.asarray(data.inner[0]), axis=0))


def phi(data, x):
    return smooth(x, jnp.asarray(inner_solution(data, x)), *(a[0] for a in data.outer[:4]))


def phi_gradients(data, x):
    """∇Φ at many x."""
    x = np.asarray(x)
    f_x, f_y = outer_gradients(data, x, inner_solution(data, x))
    H, B, _ = (np.mean(np.asarray(a), axis=0) for a in data.inner)
    return f_x - f_y @ np.linalg.inv(H) @ B.T


def runs(make_solver, case, sizes, steps, seeds):
    """x_0, …, x_{K−1} of every seed: the real solver, on batches of one row."""

    def one(seed):
        solver, stream = make_solver(*sizes), bl.iid(case.data, 1, seed=seed)
        state = solver.init(case.x0, case.y0, case.data)
        _, xs = bl.scan(solver, state, stream, steps=steps, record=lambda state, info: state.x)
        return jnp.concatenate([case.x0[None], xs[:-1]])

    return jax.vmap(one)(seeds)


def inner_noise(case, xs):
    """The largest deviation of ∇_y g at y*(x) over these x, where H and B have noise of their own."""
    H, B, c = (np.asarray(a) - np.mean(np.asarray(a), axis=0) for a in case.data.inner)
    xs = np.asarray(xs).reshape(-1, np.shape(xs)[-1])
    ys = inner_solution(case.data, xs)
    off = np.einsum("rij,kj->kri", H, ys) + np.einsum("rji,kj->kri", B, xs) + c
    return float(np.sqrt(np.max(np.mean(np.sum(off**2, axis=-1), axis=-1))))
