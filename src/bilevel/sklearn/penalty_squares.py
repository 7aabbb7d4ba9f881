"""Squared errors: the problem over folds, and the coefficients of given penalties in closed form.

    g = Σ_k ½‖A_k w_k − b_k‖² + ½ Σ_kj exp(x_j) w_kj²          or Σ_kj exp(x_j)|w_kj|
    f = mean over the rows held out of ½(a w_k − b)²

Rows are centered by the means of the training rows, instead of an intercept. If there are more rows than
columns, the triangular factor of the QR decomposition replaces them: it has the same squares.
"""

from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.linalg import cho_factor, cho_solve
from sklearn.linear_model import Lasso

import bilevel as bl
from bilevel.row_weights.models import padded
from bilevel.sklearn.folds import room, terms, with_prior


def _halves(w, rows):
    a, b = rows
    errors = jnp.einsum("krp,kpt->krt", a, w) - b
    return 0.5 * jnp.sum(errors * errors)


@lru_cache(maxsize=16)
def problem(sparse: bool, groups: tuple[int, ...] | None) -> bl.Problem:
    """Return the problem, cached because a new one is compiled again."""
    penalties, ridge = terms(sparse, groups)

    def outer(x, w, data):
        a, b, rest, prior = data
        return with_prior(_halves(w, (a, b)) + rest, x, prior)

    return bl.Problem(
        inner=lambda x, w, rows: _halves(w, rows) + ridge(x, w),
        outer=outer,
        prox=bl.prox.l1(penalties) if sparse else None,
    )


def data(X: np.ndarray, Y: np.ndarray, folds: list[tuple[Any, ...]], centered: bool):
    """Return (data, y0, L) of the folds; f is the mean over all held-out rows of all folds."""
    held = sum(len(out) for _, out in folds)
    train, valid, rest = [], [], 0.0
    for rows, out in folds:
        means = (X[rows].mean(0), Y[rows].mean(0)) if centered else (0.0, 0.0)
        center = lambda i, by, means=means: ((X[i] - means[0]) / by**0.5, (Y[i] - means[1]) / by**0.5)
        train.append(_short(*center(rows, len(rows)))[:2])
        *short, left = _short(*center(out, held))
        valid.append(short)
        rest += 0.5 * left
    K, p, t = room(len(folds), 1 if len(folds) == 1 else 5), room(X.shape[1], 16), room(Y.shape[1], 1)
    smoothness = max(np.linalg.norm(a, 2) ** 2 for a, _ in train)
    batch = bl.Batch((_stack(train, K, p, t)), (*_stack(valid, K, p, t), np.float64(rest)))
    return batch, np.zeros((K, p, t)), max(smoothness, 1e-12)


def _short(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return at most as many rows as columns, and the constant part of ‖a w − b‖²."""
    rows, columns = a.shape
    if rows <= columns:
        return a, b, 0.0
    r: Any = np.linalg.qr(np.hstack([a, b]), mode="r")
    return r[:columns, :columns], r[:columns, columns:], float(np.sum(r[columns:, columns:] ** 2))


def _stack(parts: list[Any], folds: int, columns: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    rows = room(max(len(a) for a, _ in parts), min(16, columns))
    empty = [(np.zeros((0, 0)), np.zeros((0, 0)))] * (folds - len(parts))
    a, b = zip(*(parts + empty), strict=True)
    stacked = lambda arrays, width: np.stack([padded(one, rows, width) for one in arrays])
    return stacked(a, columns), stacked(b, outputs)


def ridge(X: np.ndarray, Y: np.ndarray, penalties: np.ndarray) -> np.ndarray:
    """Return argmin_w ‖X w − Y‖²/n + Σ_j penalties_j w_j².

    Use Cholesky of the smaller of two systems, p or n.
    """
    n, p = X.shape
    if p <= n:
        gram = X.T @ X / n
        gram[np.diag_indices(p)] += penalties
        return cho_solve(cho_factor(gram), X.T @ Y / n)
    scaled = X / penalties  # w = P⁻¹Xᵀu
    kernel = scaled @ X.T / n
    kernel[np.diag_indices(n)] += 1.0
    return scaled.T @ cho_solve(cho_factor(kernel), Y / n)


def lasso(X: np.ndarray, Y: np.ndarray, penalties: np.ndarray) -> np.ndarray:
    """Return argmin_w ‖X w − Y‖²/(2n) + Σ_j penalties_j |w_j|, in units in which all penalties are 1."""
    units = Lasso(alpha=1.0, fit_intercept=False, tol=1e-8, max_iter=100_000)
    of_one = lambda y: units.fit(X / penalties, y).coef_ / penalties
    return np.stack([of_one(y) for y in Y.T], axis=1)
