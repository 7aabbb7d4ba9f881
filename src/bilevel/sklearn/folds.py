"""One bilevel problem over all folds of a cross-validation at once.

    y_k*(x) = argmin  loss of y_k on the training rows of fold k + Σ_j penalty(x_j, y_kj)      for every fold k
    Φ(x)    = mean loss of y_k*(x) on the rows held out of fold k + τ Σ_j (x_j − c)²

x are the logarithms of the penalties, one for each feature or group, shared by the folds. c is that of the best single
penalty, from which the run starts. Thousands of penalties over-fit their validation rows as thousands of coefficients
over-fit their training rows: τ is what a log-normal prior of standard deviation `spread` amounts to, and holds those
back that the validation rows say little about.

Programs are compiled for a shape, so rows, columns, outputs and folds are padded with zeros up to a few sizes. A column
of zeros has a coefficient of zero, a row or fold of weight zero has no influence: the answer is the same.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import bilevel as bl
from bilevel.sklearn.penalty_solver import spectral

# Bounds of x: beyond them a penalty of standardized features does nothing, or everything.
LOWEST, HIGHEST = -14.0, 7.0
LOWEST_L1, HIGHEST_L1 = -10.0, 0.5  # of those of |w|, where exp(0) makes all coefficients zero
EVERY, PATIENCE, LEAST = 5, 5, 1e-3  # early stopping, and the share of Φ that counts as an improvement
COARSE = 1.5  # of the grid of single penalties, in their logarithms
SETTLE = 3  # passes that bring y to y*(x), each by a factor of ten or until nothing moves


class Tuned(NamedTuple):
    x: np.ndarray  # the logarithms of the penalties, padded
    y: Any  # the coefficients of all folds at x
    curve: np.ndarray  # mean loss on the rows held out, at the start of every step
    best: int  # the entry of it that x belongs to


def room(count: int, least: int) -> int:
    """The size that `count` is padded to: a power of two, from 512 on a multiple of 256."""
    size = least
    while size < count and size < 512:
        size *= 2
    return size if count <= size else -(-count // 256) * 256


def bounded(x: Any) -> Any:
    return jnp.clip(x, LOWEST, HIGHEST)


def bounded_l1(x: Any) -> Any:
    return jnp.clip(x, LOWEST_L1, HIGHEST_L1)


def with_prior(loss: Any, x: Any, prior: Any) -> tuple[Any, dict[str, Any]]:
    """An outer objective, and the loss alone for the trace."""
    center, tau = prior
    return loss + tau * jnp.sum((x - center) ** 2), {"loss": loss}


def tune(
    problem: bl.Problem, data: bl.Batch, y0: Any, size: int, smoothness: float, strength: Any, **run: Any
) -> Tuned:
    """From the best single penalty to one for each of `size` features or groups.

    Args:
        problem: over folds; its outer data ends with the prior (c, τ).
        smoothness: L of the training losses, which the step size of proximal steps follows from.
        strength: τ, from the value Φ at the best single penalty.
        run: arguments of `bl.run`.
    """
    sparse, data = problem.prox is not None, jax.tree.map(jnp.asarray, data)
    solver = (
        spectral(problem, 1 / smoothness, bounded_l1) if sparse else bl.tuning_free(problem, project=bounded)
    )
    with_center = lambda c, tau: bl.Batch(data.inner, (*data.outer, (np.float64(c), np.float64(tau))))
    center, value, y = _single(solver, size, y0, with_center)
    data, x = with_center(center, strength(value)), np.full(size, center)
    stop = bl.hooks.EarlyStopping(patience=PATIENCE, least=LEAST * abs(value))
    result = bl.run(
        solver, x, y, data=data, hooks=[stop], record=_keep, options=bl.RunOptions(every=EVERY), **run
    ).check()
    values, curve = result.trace["outer_value"], result.trace["outer/loss"]
    xs = np.concatenate([x[None], result.trace["x"]])  # at the start of each step
    best = int(np.nanargmin(values))
    return Tuned(xs[best], result.y, curve, best)


def _keep(state: Any, info: Any) -> dict[str, Any]:
    return {"x": state.x}


def _single(solver: Any, size: int, y: Any, with_center: Any) -> tuple[float, float, Any]:
    """(c, Φ, y) of the best single penalty exp(c): a coarse grid from the strongest on, until Φ has risen twice in a
    row, and then closer around the best of it."""
    sparse = solver.problem.prox is not None
    highest, lowest = (0.0, LOWEST_L1) if sparse else (5.0, LOWEST)
    settle = solver.compiled(_settle, 1 if sparse else SETTLE)
    best, risen = (highest, np.inf, y), 0

    def tried(c: float, y: Any) -> tuple[Any, ...]:
        y, value = settle(np.full(size, c), y, with_center(c, 0.0))
        return c, float(value), y

    for c in np.arange(highest, lowest, -COARSE):
        point = tried(c, y)
        y, risen = point[2], risen + 1 if point[1] > best[1] * (1 + LEAST) else 0
        best = min(best, point, key=lambda point: point[1])
        if risen == 2:
            break
    for closer in (COARSE / 2, COARSE / 4):
        around = [tried(float(np.clip(best[0] + d, lowest, highest)), best[2]) for d in (-closer, closer)]
        best = min(best, *around, key=lambda point: point[1])
    return best


def _settle(solver: Any, steps: int, x: Any, y: Any, data: bl.Batch) -> tuple[Any, Any]:
    state = bl.warm_up(solver, solver.init(x, y, data), data, steps=steps)
    return state.y, solver.problem.f(x, state.y, data)
