"""Base of the estimators with a penalty per feature: parameters, checks and tuning."""

from numbers import Integral
from typing import Any, NamedTuple

import jax
import numpy as np
from sklearn.base import BaseEstimator, is_classifier

from bilevel.checks import as_number, check_count
from bilevel.sklearn import folds
from bilevel.sklearn.splits import splits
from bilevel.words import shown

SPREADS = 1e-6, 1e6
LARGEST = 1e100  # its square, and the square of its inverse, are floats, as are products of two of them
ROUNDING = 1e-14  # relative to the size of a column, differences below this may be rounding errors


class Tuning(NamedTuple):
    """Standardized columns of X with their means and sizes, and the penalties for these columns."""

    columns: np.ndarray
    means: np.ndarray
    sizes: np.ndarray
    penalties: np.ndarray
    tuned: folds.Tuned
    smoothness: float  # L


class PerFeature(BaseEstimator):
    """Parameters of all estimators.

    `fit` standardizes the features, so penalties and their prior have no units. `coef_`, `intercept_` and
    `alpha_` are in the units of X.
    """

    _sparse: bool
    alpha_: np.ndarray
    validation_curve_: np.ndarray
    best_index_: int
    n_iter_: int

    def __init__(
        self,
        *,
        cv: Any = 5,  # scikit-learn requires that `fit` checks the values
        groups: Any = None,
        spread: Any = 0.5,
        fit_intercept: Any = True,
        validation_fraction: Any = 0.2,
        max_iter: Any = 30,
        random_state: Any = 0,
        verbose: Any = 0,
    ):
        self.cv = cv
        self.groups = groups
        self.spread = spread
        self.fit_intercept = fit_intercept
        self.validation_fraction = validation_fraction
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose

    def _check(self, X: np.ndarray) -> np.ndarray | None:
        """Check all parameters and the size of X, and return the group numbers of its features, if any."""
        spread = as_number(self.spread)
        if spread is None or not SPREADS[0] <= spread <= SPREADS[1]:
            limits = f"a number from {SPREADS[0]:g} to {SPREADS[1]:g}"
            raise ValueError(f"spread must be {limits}, not {shown(self.spread)}: pass e.g. spread=0.5")
        check_count(self.max_iter, "max_iter")
        check_fraction(self.validation_fraction, "validation_fraction", 0.2)
        for name, values in {"fit_intercept": "True or False", "verbose": "0, 1 or more"}.items():
            if not isinstance(value := getattr(self, name), bool | np.bool_ | Integral):
                raise ValueError(f"{name} must be {values}, not {shown(value)}")
        groups = None if self.groups is None else self._group_numbers(X.shape[1])
        check_size(X, "X")
        return groups

    def _group_numbers(self, features: int) -> np.ndarray:
        groups = np.asarray(self.groups)
        if groups.shape != (features,):
            raise ValueError(
                f"groups has shape {groups.shape}, but X has {features} features: pass one group for each feature"
            )
        if unnamed := [group for group in groups.tolist() if group is None or group != group]:
            raise ValueError(f"groups has {unnamed[0]} in it: give every feature a group, a number or a word")
        try:
            return np.unique(groups, return_inverse=True)[1]
        except TypeError as error:
            raise ValueError(f"groups mixes numbers and words, {shown(self.groups)}: take either") from error

    def _tune(
        self, loss: Any, X: np.ndarray, Y: np.ndarray, y: np.ndarray, groups: np.ndarray | None, strength: Any
    ) -> Tuning:
        """Find the penalties of the columns for the targets Y; y are the labels or targets to split by."""
        Z, means, sizes = standardized(X, bool(self.fit_intercept))
        parts = splits(self.cv, X, y, is_classifier(self), self.validation_fraction, self.random_state)
        data, y0, smoothness = loss.data(Z, Y, parts, bool(self.fit_intercept))
        size = columns = folds.room(X.shape[1], 16)
        numbers = None  # group numbers, also for padding columns
        if groups is not None:
            size = folds.room(int(groups.max()) + 1, 16)
            numbers = tuple(np.pad(groups, (0, columns - len(groups))).tolist())
        problem = loss.problem(self._sparse, numbers)
        held = min(sum(len(out) for _, out in parts), len(X))
        tau = lambda value: strength(value) / (held * self.spread**2)
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            limits = {"steps": int(self.max_iter), "progress": bool(self.verbose)}
            tuned = folds.tune(problem, data, y0, size, smoothness, tau, **limits)
        x = tuned.x[: X.shape[1]] if groups is None else tuned.x[groups]
        self.n_iter_, self.best_index_ = len(tuned.curve), tuned.best
        return Tuning(Z, means, sizes, np.exp(x), tuned, smoothness)


def check_fraction(value: Any, name: str, example: float) -> None:
    fraction = as_number(value)
    if fraction is None or not 0 < fraction < 1:
        raise ValueError(f"{name} must be between 0 and 1, not {shown(value)}: pass e.g. {example}")


def check_size(values: np.ndarray, name: str) -> None:
    """Raise if the squares of a column overflow or underflow."""
    sizes = np.abs(values).max(axis=0, initial=0.0)
    if (bad := np.flatnonzero((sizes > LARGEST) | ((sizes > 0) & (sizes < 1 / LARGEST)))).size:
        what = f"column {bad[0]} of {name}" if values.shape[1] > 1 else name
        raise ValueError(
            f"{what} has numbers of size {sizes[bad[0]]:.0e}: take another unit, so that they are near 1"
        )


def standardized(X: np.ndarray, centered: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the columns at size 1, and at mean 0 if `centered`; also their means and sizes.

    Constant columns stay constant.
    """
    means = X.mean(0) if centered else np.zeros(X.shape[1])
    center = X - means
    sizes = np.sqrt(np.mean(center**2, axis=0))
    tiny = sizes <= ROUNDING * np.maximum(np.abs(means), np.abs(X).max(0, initial=0.0))
    center[:, tiny & (means != 0)] = 0.0
    sizes[tiny | (sizes == 0)] = 1.0
    return center / sizes, means, sizes
