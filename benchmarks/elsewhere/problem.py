"""The problem that every library is given: ridge regression with a penalty exp(x_j) for every feature.

    inner   g(x, y) = ‖A y − b‖² / 2n + Σ exp(x_j) y_j² / 2         on 40 training rows of five features
    outer   f(x, y) = ‖A' y − b'‖² / 2n + 0.05 ‖x‖²                on 40 validation rows

y*(x) solves a linear system, so ∇Φ is known in closed form, and everybody's answer can be judged.
"""

import numpy as np

ALPHA, BETA = 0.4, 2.0  # step sizes of y and of x
INNER, OUTER = 50, 50  # steps on y for every step on x; steps on x

rng = np.random.default_rng(0)
A = rng.normal(size=(80, 5))
b = A @ np.array([1.0, -2.0, 0.5, 0.0, 0.0]) + rng.normal(size=80)
A, A_, b, b_ = A[:40], A[40:], b[:40], b[40:]  # to train, to validate
x0, y0 = np.zeros(5), np.zeros(5)


def solved(x):
    """y*(x)."""
    return np.linalg.solve(
        A.T @ A / 40 + np.diag(np.exp(x)), A.T @ b / 40
    )


def value(x):
    """Φ(x) = f(x, y*(x))."""
    return np.mean((A_ @ solved(x) - b_) ** 2) / 2 + 0.05 * np.sum(x**2)


def hypergradient(x):
    """∇Φ(x) = ∇_x f − ∇²_xy g · v, where ∇²_yy g · v = ∇_y f."""
    y = solved(x)
    v = np.linalg.solve(
        A.T @ A / 40 + np.diag(np.exp(x)), A_.T @ (A_ @ y - b_) / 40
    )
    return 0.1 * x - np.exp(x) * y * v


def descended(x, steps):
    """Where so many exact steps on x lead."""
    for _ in range(steps):
        x = x - BETA * hypergradient(x)
    return x
