"""Cubic f and g of vectors x and y, and plain NumPy runs of AID, ITD and SOBA on them, many at once.

Hessians do not commute along a run and third derivatives are there everywhere. The constants are those of the run
itself, measured on all that the proofs look at: segments from iterates to y* (whose ends suffice, as the Hessians are
linear) and the curve (x, y*(x)) between two x. So no certificate could ask for less.
"""

from itertools import permutations
from typing import NamedTuple

import numpy as np

from bilevel.theory import Blocks

CURVE = np.linspace(0, 1, 5)[1:]
solve = lambda A, b: np.linalg.solve(A, b[..., None])[..., 0]
times = lambda A, b: np.einsum("bij,bj->bi", A, b)


class Cubic(NamedTuple):
    """pᵀz + ½zᵀQz + T(z, z, z)/6 with z = (x, y), for many problems."""

    p: np.ndarray
    Q: np.ndarray
    T: np.ndarray

    def value(self, z):
        third = np.einsum("bijk,bi,bj,bk->b", self.T, z, z, z) / 6
        return np.sum(self.p * z, axis=1) + 0.5 * np.sum(z * times(self.Q, z), axis=1) + third

    def gradient(self, z):
        return self.p + times(self.Q, z) + 0.5 * np.einsum("bijk,bj,bk->bi", self.T, z, z)

    def hessian(self, z):
        return self.Q + np.einsum("bijk,bk->bij", self.T, z)


class Problems(NamedTuple):
    f: Cubic
    g: Cubic
    y_off: np.ndarray
    v_off: np.ndarray
    nx: int

    def at(self, x, y):
        """(∇f, ∇²g) at (x, y), in blocks."""
        z, n = np.concatenate([x, y], axis=1), self.nx
        slope, H = self.f.gradient(z), self.g.hessian(z)
        return slope[:, :n], slope[:, n:], H[:, :n, n:], H[:, n:, n:]

    def inner_gradient(self, x, y):
        return self.g.gradient(np.concatenate([x, y], axis=1))[:, self.nx :]

    def solution(self, x, y):
        """(y*, v*) by Newton's method from y."""
        for _ in range(8):
            y = y - solve(self.at(x, y)[3], self.inner_gradient(x, y))
        _, f_y, _, H = self.at(x, y)
        return y, solve(H, f_y)


class Runs(NamedTuple):
    squares: np.ndarray  # ‖∇Φ(x_k)‖², steps first
    phi: np.ndarray  # Φ(x_0), …, Φ(x_K)
    y_error: np.ndarray
    v_error: np.ndarray
    blocks: Blocks


def draw(rng, count, nx, ny, reach, itd=False):
    """Problems and 2/(L_yy + μ) at 0. κ is from 1 to 30, v* and derivatives have many sizes.

    The first step and the errors of the start are about `reach`, so that g stays convex: ∇Φ(0) is, or for ITD what it
    takes for ∇Φ(0) with that step size.
    """
    n = nx + ny
    size = lambda low, high, *shape: 10 ** rng.uniform(low, high, (count, *(1,) * len(shape)))
    symmetric = lambda A: (A + np.swapaxes(A, 1, 2)) / 2
    cubic = lambda: (
        sum(
            np.transpose(T, (0, *order))
            for T in [rng.normal(size=(count, n, n, n))]
            for order in permutations((1, 2, 3))
        )
        / 6
    )
    some = lambda: rng.integers(0, 2, (count, 1, 1, 1))
    turn = np.linalg.qr(rng.normal(size=(count, ny, ny)))[0]
    kappa = size(0, 1.5)[:, None]
    spectrum = kappa ** -np.linspace(0, 1, ny)
    g_Q = symmetric(rng.normal(size=(count, n, n))) * size(-2, 0.5, 1, 1)
    g_Q[:, nx:, nx:] = np.einsum("bij,bj,bkj->bik", turn, spectrum, turn)
    block = np.concatenate([np.repeat(size(-1.5, 0.5, 1), m, axis=1) for m in (nx, ny)], axis=1)
    f_Q = symmetric(rng.normal(size=(count, n, n))) * block[:, :, None] * block[:, None, :]
    f_l = rng.normal(size=(count, n))
    f_l[:, nx:] *= size(-1, 0.5, 1) / kappa
    longest = 2 / (spectrum[:, 0] + spectrum[:, -1])
    v = longest[:, None] * f_l[:, nx:] if itd else solve(g_Q[:, nx:, nx:], f_l[:, nx:])
    f_l[:, :nx] = times(g_Q[:, :nx, nx:], v) + reach * rng.normal(size=(count, nx))
    off = lambda: rng.normal(size=(count, ny)) * reach * size(-1, 1, 1) * rng.integers(0, 2, (count, 1))
    f = Cubic(f_l, f_Q, cubic() * size(-3, 0, 1, 1, 1) * some())
    g = Cubic(np.zeros((count, n)), g_Q, cubic() * size(-2, 1, 1, 1, 1) * some())
    return Problems(f, g, off(), off(), nx), longest


def run(p, method, alpha, eta, beta, steps, N=1, Q=1):
    alpha, eta, beta = (np.asarray(step)[:, None] for step in (alpha, eta, beta))
    x = np.zeros((len(alpha), p.nx))
    y, v = p.solution(x, np.zeros_like(p.y_off))
    y, v, y_star, visited, solutions, squares, phi = y + p.y_off, v + p.v_off, y, [], [], [], []
    for k in range(steps + 1):
        y_star, v_star = p.solution(x, y_star)
        f_x, _, C, _ = p.at(x, y_star)
        phi.append(p.f.value(np.concatenate([x, y_star], axis=1)))
        solutions.append((x, y_star))
        if k == steps:
            break
        squares.append(np.sum((f_x - times(C, v_star)) ** 2, axis=1))
        visited.append((x, y))
        if method == "AID":
            for _ in range(N):
                y = y - alpha * p.inner_gradient(x, y)
                visited.append((x, y))
            f_x, f_y, C, H = p.at(x, y)
            for _ in range(Q):
                v = v - eta * (times(H, v) - f_y)
            h = f_x - times(C, v)
        elif method == "SOBA":
            f_x, f_y, C, H = p.at(x, y)
            h = f_x - times(C, v)
            y, v = y - alpha * p.inner_gradient(x, y), v - eta * (times(H, v) - f_y)
        else:
            C = p.at(x, y)[2]
            y = y - alpha * p.inner_gradient(x, y)
            visited.append((x, y))
            f_x, f_y, _, _ = p.at(x, y)
            h = f_x - alpha * times(C, f_y)
        for share in CURVE:
            between = x - share * beta * h
            solutions.append((between, p.solution(between, y_star)[0]))
        x = x - beta * h
    errors = np.linalg.norm(p.y_off, axis=1), np.linalg.norm(p.v_off, axis=1)
    return Runs(np.array(squares), np.array(phi), *errors, measured(p, visited, solutions))


def measured(p, visited, solutions, margin=1e-6):
    """The smallest blocks with which all of it is covered."""
    n, norm = p.nx, lambda A: np.linalg.norm(A, 2, axis=(-2, -1))
    points = [np.concatenate(point, axis=1) for point in visited + solutions]
    G, F = (np.array([part.hessian(z) for z in points]) for part in (p.g, p.f))
    spectrum = np.linalg.eigvalsh(G[:, :, n:, n:])
    M_y = [np.linalg.norm(p.at(x, y)[1], axis=1) for x, y in solutions]
    T = p.g.T
    largest = lambda parts: (1 + margin) * np.max(parts, axis=0)
    return Blocks(
        mu=(1 - margin) * spectrum[..., 0].min(axis=0),
        L_yy=largest(spectrum[..., -1]),
        L_xy=largest(norm(G[:, :, :n, n:])),
        f_xx=largest(norm(F[:, :, :n, :n])),
        f_xy=largest(norm(F[:, :, :n, n:])),
        f_yy=largest(norm(F[:, :, n:, n:])),
        M_y=largest(M_y),
        rho_xxy=np.maximum(slope(T[:, :n, n:, :n]), slope(T[:, :n, :n, n:])),
        rho_xyy=np.maximum(slope(T[:, :n, n:, n:]), slope(T[:, n:, n:, :n])),
        rho_yyy=slope(T[:, n:, n:, n:]),
    )


def slope(T):
    """sup over ‖u‖ = 1 of ‖T(·, ·, u)‖, from a grid of directions in the plane and what it can miss."""
    if T.shape[3] == 1:
        return np.linalg.norm(T[..., 0], 2, axis=(1, 2))
    angle = np.linspace(0, np.pi, 64, endpoint=False)
    u = np.stack([np.cos(angle), np.sin(angle)])
    found = np.linalg.norm(np.einsum("bijk,ku->buij", T, u), 2, axis=(2, 3)).max(axis=1)
    return found / np.cos(np.pi / 128)  # the nearest direction of the grid is at most half a cell away
