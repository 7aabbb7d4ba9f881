"""Cross-entropy: the problem over folds, and the coefficients of given penalties on all rows.

    g = Σ_k mean_i ℓ(w_kᵀa_i + b_k, class_i) + ½ Σ_kjc exp(x_j) w_kjc²          or Σ_kjc exp(x_j)|w_kjc|
    f = mean over the rows held out of ℓ

All folds share the rows. A fold has two weights for each row, for training and for validation. With two
classes the first has the score 0, as usual. With more, each has a column. One more fold trains on all rows
and validates on none: the refit starts from its coefficients, and x does not depend on it.
"""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

import bilevel as bl
from bilevel.row_weights.models import padded
from bilevel.sklearn.folds import room, terms, with_prior

ABSENT = -1e30  # the score of padding classes


def _mean(y, rows):
    """Return Σ_ki weight_ki ℓ_ki."""
    w, b = y
    a, hot, weights, classes = rows
    free, _, absent, _ = classes
    scores = jnp.einsum("np,kpc->knc", a, w * free[None, None, :])
    scores = scores + (b * free[None, :] + absent[None, :])[:, None, :]
    right = jnp.einsum("knc,nc->kn", scores, hot)
    return jnp.sum(weights * (jax.nn.logsumexp(scores, axis=2) - right))


def _unseen(b, classes):
    """Penalize parts without effect on scores: padding intercepts, and the sum of softmax intercepts."""
    _, intercept, _, gauge = classes
    alive, dead = b * intercept[None, :], b * (1 - intercept)[None, :]
    return 0.5 * jnp.sum(dead * dead) + 0.5 * gauge * jnp.sum(jnp.sum(alive, axis=1) ** 2)


@lru_cache(maxsize=16)
def problem(sparse: bool, groups: tuple[int, ...] | None) -> bl.Problem:
    """Return the problem, cached because a new one is compiled again."""
    penalties, ridge = terms(sparse, groups)

    def inner(x, y, rows):
        w, b = y
        seen = b * rows[3][1][None, :]
        return _mean((w, seen), rows) + ridge(x, w) + _unseen(b, rows[3])

    def outer(x, y, data):
        *rows, prior = data
        w, b = y
        return with_prior(_mean((w, b * rows[3][1][None, :]), rows), x, prior)

    strengths = lambda x: (penalties(x), 0.0)
    return bl.Problem(inner=inner, outer=outer, prox=bl.prox.l1(strengths) if sparse else None)


def data(X: np.ndarray, hot: np.ndarray, folds: list[tuple[Any, ...]], intercept: bool):
    """Return (data, y0, L) of the folds and of all rows, for which `y` has one more fold at the end."""
    (n, p), (_, c) = X.shape, hot.shape
    N, P, C = room(n, 64 if n <= 64 else 512), room(p, 16), room(c, 4)
    K = room(len(folds), 1 if len(folds) == 1 else 5) + 1
    train, valid = np.zeros((K, N)), np.zeros((K, N))
    held = sum(len(out) for _, out in folds)
    for k, (rows, out) in enumerate(folds):
        np.add.at(train[k], rows, 1 / len(rows))  # a row may occur several times
        np.add.at(valid[k], out, 1 / held)
    train[-1, :n] = 1 / n
    present = np.arange(C) < c
    free = present & ((c > 2) | (np.arange(C) > 0))
    absent, gauge = np.where(present, 0.0, ABSENT), (c > 2) / c  # a curvature of 1
    classes = free.astype(float), (free & intercept).astype(float), absent, np.float64(gauge)
    a, hot = padded(X, N, P), padded(hot, N, C)
    batch = bl.Batch((a, hot, train, classes), (a, hot, valid, classes))
    bound = 0.25 if c == 2 else 0.5  # of the Hessian of ℓ in the scores
    ones = np.hstack([X, np.ones((n, 1))]) if intercept else X
    heaviest = max(weights.max() for weights in train[: len(folds)]) * np.linalg.norm(ones, 2) ** 2
    return batch, (np.zeros((K, P, C)), np.zeros((K, C))), max(bound * heaviest, 1.0)


def _value_and_gradient(X: np.ndarray, hot: np.ndarray, w: np.ndarray, b: np.ndarray):
    """Return the mean cross-entropy of scores X w + b and its gradients. For two classes w has one column."""
    scores = X @ w + b
    full = scores if scores.shape[1] == hot.shape[1] else np.hstack([np.zeros((len(X), 1)), scores])
    # SciPy's softmax and logsumexp are not used: their checks take longer than the computation.
    top = full.max(axis=1, keepdims=True)
    powers = np.exp(full - top)
    sums = powers.sum(axis=1, keepdims=True)
    errors = (powers / sums - hot)[:, -scores.shape[1] :] / len(X)
    value = np.mean(top + np.log(sums)) - np.sum(full * hot) / len(X)
    return value, X.T @ errors, errors.sum(0)


def ridge(X, hot, penalties, w, b, intercept: bool):
    """Return argmin mean ℓ + ½ Σ_jc penalties_j w_jc² by L-BFGS from (w, b), with all penalties at 1."""
    units, size = np.sqrt(penalties)[:, None], w.size

    def value(flat):
        v, c = flat[:size].reshape(w.shape), flat[size:]
        loss, of_w, of_b = _value_and_gradient(X, hot, v / units, c)
        return loss + 0.5 * np.sum(v * v), np.concatenate([(of_w / units + v).ravel(), of_b * intercept])

    start = np.concatenate([(w * units).ravel(), b * intercept])
    options = dict(gtol=1e-7, ftol=1e-14, maxiter=10_000, maxfun=20_000, maxcor=30)
    flat = minimize(value, start, jac=True, method="L-BFGS-B", options=options).x
    return flat[:size].reshape(w.shape) / units, flat[size:]


def lasso(X, hot, penalties, w, b, intercept: bool, smoothness: float, tol: float = 1e-6, most: int = 5_000):
    """Return argmin mean ℓ + Σ_jc penalties_j |w_jc| by restarted accelerated proximal steps from (w, b)."""
    lam, step = penalties[:, None], 1 / smoothness
    soft = lambda a: a - np.clip(a, -step * lam, step * lam)
    ahead, t = (w, b), 1.0
    for _ in range(most):
        _, of_w, of_b = _value_and_gradient(X, hot, *ahead)
        new = soft(ahead[0] - step * of_w), ahead[1] - step * of_b * intercept
        back = [a - n for a, n in zip(ahead, new, strict=True)]
        if max(np.abs(part).max(initial=0.0) for part in back) <= tol * step:
            return new
        if sum(np.sum(d * (n - o)) for d, n, o in zip(back, new, (w, b), strict=True)) > 0:
            t = 1.0
        after = (1 + np.sqrt(1 + 4 * t * t)) / 2
        ahead = tuple(n + (t - 1) / after * (n - o) for n, o in zip(new, (w, b), strict=True))
        (w, b), t = new, after
    return w, b
