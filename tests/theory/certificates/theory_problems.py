"""Random bilevel problems with known valid constants, and both single-loop algorithms, in plain NumPy.

Everything is batched over a leading axis of B problems. Nothing here uses the library: it is the independent side of
the tests.
"""

from dataclasses import dataclass

import numpy as np

DIM = 3


def mv(A, x):
    return np.einsum("bij,bj->bi", A, x)


def norm(x):
    return np.linalg.norm(x, axis=-1)


def orthogonal(rng, B, n=DIM):
    return np.linalg.qr(rng.standard_normal((B, n, n)))[0]


@dataclass
class Quadratics:
    """g = ½yᵀHy − xᵀCy + bᵀy, spectrum of H in [mu, L] with both ends attained, ‖C‖ ≤ L, true rho = 0;
    f = ½zᵀFz + pᵀy for z = (x, y) with 0 < F ≤ L."""

    mu: np.ndarray
    L: np.ndarray
    H: np.ndarray
    C: np.ndarray
    b: np.ndarray
    F: np.ndarray
    p: np.ndarray
    rho = 0.0

    @classmethod
    def random(cls, rng, B, kappa_max=12.0):
        mu = 10 ** rng.uniform(-1, 0.5, B)
        L = mu * rng.uniform(1.0, kappa_max, B)
        spectrum = mu[:, None] + (L - mu)[:, None] * np.column_stack([np.zeros(B), np.ones(B), rng.random(B)])
        U = orthogonal(rng, B)
        H = np.einsum("bij,bj,bkj->bik", U, spectrum, U)
        C = np.einsum("bij,bj,bkj->bik", orthogonal(rng, B), rng.random((B, DIM)), orthogonal(rng, B))
        V = orthogonal(rng, B, 2 * DIM)
        F = np.einsum("bij,bj,bkj->bik", V, rng.uniform(0.05, 1, (B, 2 * DIM)), V)
        scale = 10 ** rng.uniform(-1, 1, (B, 1))
        p = scale * rng.standard_normal((B, DIM))
        b = rng.standard_normal((B, DIM))
        return cls(mu, L, H, C * L[:, None, None], b, F * L[:, None, None], p)

    def grad_f(self, x, y):
        z = mv(self.F, np.concatenate([x, y], axis=-1))
        return z[:, :DIM], z[:, DIM:] + self.p

    def grad_y_g(self, x, y):
        return mv(self.H, y) - mv(np.swapaxes(self.C, 1, 2), x) + self.b

    def hessian(self, y):
        return self.H

    def cross(self, v):
        """∇²_xy g · v."""
        return -mv(self.C, v)

    def y_star(self, x):
        return np.linalg.solve(self.H, (mv(np.swapaxes(self.C, 1, 2), x) - self.b)[..., None])[..., 0]

    def gap(self, x):
        """Φ(x) − min Φ exactly: Φ is a strictly convex quadratic with Hessian JᵀFJ, J = dz/dx."""
        J = np.concatenate(
            [np.broadcast_to(np.eye(DIM), self.H.shape), np.linalg.solve(self.H, np.swapaxes(self.C, 1, 2))],
            axis=1,
        )
        hessian = np.einsum("bji,bjk,bkl->bil", J, self.F, J)
        slope = hypergradient(self, x)
        return 0.5 * np.sum(slope * np.linalg.solve(hessian, slope[..., None])[..., 0], axis=-1)


@dataclass
class LogCosh:
    """g = Σ ½mu·y² + (L − mu)·log cosh y − ℓxy (ℓ ≤ L) and f = ½q‖x‖² + pᵀy.

    ∇²_yy g is diagonal with Lipschitz constant (L − mu)·max|tanh''| = (L − mu)·4/(3√3).
    """

    mu: np.ndarray
    L: np.ndarray
    ell: np.ndarray
    q: np.ndarray
    p: np.ndarray

    @classmethod
    def random(cls, rng, B, kappa_max=8.0):
        mu = 10 ** rng.uniform(-1, 0.5, B)
        L = mu * rng.uniform(1.0, kappa_max, B)
        p = 10 ** rng.uniform(-1, 1, (B, 1)) * rng.standard_normal((B, DIM))
        return cls(mu, L, L * rng.uniform(0.2, 1, B), L * rng.uniform(0.2, 1, B), p)

    @property
    def rho(self):
        return (self.L - self.mu) * 4 / (3 * np.sqrt(3))

    def grad_f(self, x, y):
        return self.q[:, None] * x, np.broadcast_to(self.p, y.shape)

    def grad_y_g(self, x, y):
        return self.mu[:, None] * y + (self.L - self.mu)[:, None] * np.tanh(y) - self.ell[:, None] * x

    def hessian(self, y):
        diagonal = self.mu[:, None] + (self.L - self.mu)[:, None] / np.cosh(y) ** 2
        return diagonal[:, :, None] * np.eye(DIM)

    def cross(self, v):
        return -self.ell[:, None] * v

    def y_star(self, x):
        """Bisection on a strictly increasing scalar equation, then two Newton steps."""
        low = -self.ell[:, None] * np.abs(x) / self.mu[:, None]
        high = -low
        for _ in range(60):
            mid = 0.5 * (low + high)
            above = self.grad_y_g(x, mid) > 0
            low, high = np.where(above, low, mid), np.where(above, mid, high)
        y = 0.5 * (low + high)
        for _ in range(2):
            y = y - self.grad_y_g(x, y) / np.einsum("bii->bi", self.hessian(y))
        return y

    def gap(self, x):
        """An upper bound: Φ ≥ Σ ½q·x² − |p|ℓ|x|/mu ≥ −‖p‖²ℓ²/(2q·mu²)."""
        phi = 0.5 * self.q * np.sum(x**2, axis=-1) + np.sum(self.p * self.y_star(x), axis=-1)
        return phi + np.sum(self.p**2, axis=-1) * self.ell**2 / (2 * self.q * self.mu**2)


def hypergradient(problem, x):
    y = problem.y_star(x)
    fx, fy = problem.grad_f(x, y)
    return fx - problem.cross(np.linalg.solve(problem.hessian(y), fy[..., None])[..., 0])


@dataclass
class Run:
    """Per iteration k (axis 0): squared ‖∇Φ‖ and the error norms that the lemmas speak of."""

    G: np.ndarray
    a: np.ndarray  # ‖ŷ_k − y*_k‖
    s: np.ndarray  # ‖y_k⁰ − y*_k‖
    b: np.ndarray  # ‖v̂_k − ṽ*_k‖ (AID)
    b_star: np.ndarray  # ‖v̂_k − v*_k‖ (AID)
    e: np.ndarray  # hypergradient error
    h: np.ndarray  # norm of the estimate
    M_y: np.ndarray  # largest ‖∇_y f‖ seen, per problem
    M: np.ndarray  # largest ‖∇f‖ seen, per problem
    x: np.ndarray  # last iterate


def simulate(problem, x, y, alpha, beta, steps, eta=None):
    """Algorithm 1 if `eta` is given, Algorithm 2 otherwise, from v₀ = 0; step sizes are per problem."""
    rows = {name: [] for name in ("G", "a", "s", "b", "b_star", "e", "h")}
    M = M_y = np.zeros(len(x))
    v = np.zeros_like(y)
    alpha, beta = (np.broadcast_to(step, len(x))[:, None] for step in (alpha, beta))
    solve = lambda H, r: np.linalg.solve(H, r[..., None])[..., 0]
    for _ in range(steps):
        star = problem.y_star(x)
        rows["s"].append(norm(y - star))
        y = y - alpha * problem.grad_y_g(x, y)
        fx, fy = problem.grad_f(x, y)
        fx_star, fy_star = problem.grad_f(x, star)
        v_star = solve(problem.hessian(star), fy_star)
        if eta is None:
            v_hat = alpha * fy  # the cross derivative is constant in y for both families
        else:
            H = problem.hessian(y)
            v = v - np.broadcast_to(eta, len(x))[:, None] * (mv(H, v) - fy)
            v_hat = v
            rows["b"].append(norm(v - solve(H, fy)))
            rows["b_star"].append(norm(v - v_star))
        exact = fx_star - problem.cross(v_star)
        estimate = fx - problem.cross(v_hat)
        rows["G"].append(norm(exact) ** 2)
        rows["a"].append(norm(y - star))
        rows["e"].append(norm(estimate - exact))
        rows["h"].append(norm(estimate))
        M_y = np.maximum.reduce([M_y, norm(fy), norm(fy_star)])
        M = np.maximum.reduce([M, np.hypot(norm(fx), norm(fy)), np.hypot(norm(fx_star), norm(fy_star))])
        x = x - beta * estimate
    return Run(**{name: np.array(values) for name, values in rows.items()}, M_y=M_y, M=M, x=x)


def start(problem, rng, B, y_spread=0.3):
    """x₀ random, y₀ near y*(x₀) at a random distance."""
    x = rng.standard_normal((B, DIM))
    return x, problem.y_star(x) + y_spread * rng.random((B, 1)) * rng.standard_normal((B, DIM))


def with_valid_M(run_for, M, whole):
    """Enlarge M until the run that uses it stays within it. `run_for(M)` returns (Run, anything)."""
    for _ in range(30):
        run, result = run_for(M)
        seen = run.M if whole else run.M_y
        if np.all(seen <= M):
            return M, run, result
        M = np.where(seen <= M, M, 1.3 * seen)
    raise AssertionError("no valid M found: the runs do not stay bounded")
