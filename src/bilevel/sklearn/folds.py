"""Bilevel problem over all folds of a cross-validation at once.

    y_k*(x) = argmin  loss of y_k on the training rows of fold k + Σ_j penalty(x_j, y_kj)      for every fold k
    Φ(x)    = mean loss of y_k*(x) on the rows held out of fold k + τ Σ_j (x_j − c)²

x are the logarithms of the penalties, one per feature or group, shared by the folds. c is the logarithm of
the best single penalty, where the run starts. Thousands of penalties can overfit the validation rows. So τ is
the strength of a log-normal prior of standard deviation `spread`. It keeps penalties near c if the rows have
little information.

Programs are compiled for a shape, so rows, columns, outputs and folds are padded with zeros to a few sizes.
This does not change the result: a column of zeros has a coefficient of zero, and a row or fold of weight zero
has no influence.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import bilevel as bl
from bilevel.sklearn.penalty_solver import Spectral

# Bounds of x. Beyond them a penalty of standardized features has no effect, or removes the feature.
LOWEST, HIGHEST = -14.0, 7.0
LOWEST_L1, HIGHEST_L1 = -10.0, 0.5  # for L1, where exp(0) makes all coefficients zero
EVERY, PATIENCE, LEAST = 5, 5, 1e-3  # early stopping; LEAST is the smallest improvement relative to Φ
COARSE = 1.5  # step of the grid of single penalties, in logarithms
SETTLE = 3  # passes of y toward y*(x), each by a factor of ten or until y stops


class Tuned(NamedTuple):
    x: np.ndarray  # the logarithms of the penalties, padded
    y: Any  # the coefficients of all folds at x
    curve: np.ndarray  # mean loss on the held-out rows at the start of every step
    best: int  # the index of x in the curve


def room(count: int, least: int) -> int:
    """Return the padded size of `count`: a power of two, from 512 a multiple of 256."""
    size = least
    while size < count and size < 512:
        size *= 2
    return size if count <= size else -(-count // 256) * 256


def bounded(x: Any) -> Any:
    return jnp.clip(x, LOWEST, HIGHEST)


def bounded_l1(x: Any) -> Any:
    return jnp.clip(x, LOWEST_L1, HIGHEST_L1)


def terms(sparse: bool, groups: tuple[int, ...] | None) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the penalties of the coefficients as a function of x, and the ridge term of the inner loss."""
    each = (lambda x: x) if groups is None else (lambda x: x[np.array(groups)])
    penalties = lambda x: jnp.exp(each(x))[None, :, None]
    return penalties, lambda x, w: 0.0 if sparse else 0.5 * jnp.sum(penalties(x) * w * w)


def with_prior(loss: Any, x: Any, prior: Any) -> tuple[Any, dict[str, Any]]:
    """Return an outer objective, and the loss without the prior for the trace."""
    center, tau = prior
    return loss + tau * jnp.sum((x - center) ** 2), {"loss": loss}


def tune(
    problem: bl.Problem, data: bl.Batch, y0: Any, size: int, smoothness: float, strength: Any, **run: Any
) -> Tuned:
    """Find the best single penalty, then one for each of `size` features or groups.

    Args:
        problem: the problem over folds; its outer data ends with the prior (c, τ).
        smoothness: L of the training losses; proximal steps have the size 1/L.
        strength: a function from the value Φ at the best single penalty to τ.
        run: arguments of `bl.run`.
    """
    sparse, data = problem.prox is not None, jax.tree.map(jnp.asarray, data)
    own = lambda: Spectral(problem, 1 / smoothness, bounded_l1)
    solver = own() if sparse else bl.tuning_free(problem, project=bounded)
    with_center = lambda c, tau: bl.Batch(data.inner, (*data.outer, (np.float64(c), np.float64(tau))))
    center, value, y = _single(solver, size, y0, with_center)
    data, x = with_center(center, strength(value)), np.full(size, center)
    stop = bl.hooks.EarlyStopping(patience=PATIENCE, least=LEAST * abs(value))
    options = bl.RunOptions(every=EVERY)
    result = bl.run(solver, x, y, data=data, hooks=[stop], record=_tried, options=options, **run).check()
    values, curve = result.trace["outer_value"], result.trace["outer/loss"]
    xs = np.concatenate([x[None], result.trace["x"]])  # at the start of each step
    best = int(np.nanargmin(values))
    return Tuned(xs[best], result.y, curve, best)


def _tried(state: Any, info: bl.Info) -> dict[str, Any]:
    """Return x for the trace. Not defined in `tune`, because a new record is compiled again at every fit."""
    return {"x": state.x}


def _single(solver: Any, size: int, y: Any, with_center: Any) -> tuple[float, float, Any]:
    """Return (c, Φ, y) of the best single penalty exp(c).

    Try a coarse grid from the strongest penalty until Φ rises twice in a row, then a finer one around the best.
    """
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
