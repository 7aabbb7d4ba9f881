"""Linear regression with one penalty per feature or group from cross-validation: ridge and lasso."""

from typing import Any, TypeVar

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from bilevel.sklearn import penalty_squares as squares
from bilevel.sklearn.penalty_estimator import PerFeature, check_size

Fitted = TypeVar("Fitted", bound="_Linear")


class _Linear(MultiOutputMixin, RegressorMixin, PerFeature):
    coef_: np.ndarray
    intercept_: Any  # a float for one target, an array for several

    def fit(self: Fitted, X: Any, y: Any) -> Fitted:
        """Find the penalties on the folds, then the coefficients on all rows."""
        rows: Any = validate_data(
            self, X, y, multi_output=True, y_numeric=True, dtype=np.float64, ensure_min_samples=2
        )
        X, y = rows[0], np.asarray(rows[1], float)
        groups = self._check(X)
        Y = y.reshape(len(y), -1)
        check_size(Y, "y")
        mean = Y.mean(0) if self.fit_intercept else np.zeros(Y.shape[1])
        unit = np.sqrt(np.mean((Y - mean) ** 2)) or 1.0
        Y, observations = (Y - mean) / unit, Y.shape[1]
        found = self._tune(squares, X, Y, y, groups, lambda value: value / observations)
        Z, means, sizes, penalties, tuned, _ = found
        solve = squares.lasso if self._sparse else squares.ridge
        w = solve(Z, Y, penalties) * unit / sizes[:, None]
        b = mean - means @ w
        self.alpha_ = penalties * sizes * unit if self._sparse else penalties * sizes**2 * len(X)
        self.coef_, self.intercept_ = (w[:, 0], float(b[0])) if y.ndim == 1 else (w.T, b)
        self.validation_curve_ = 2 * unit**2 * tuned.curve / observations
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the values of new rows."""
        check_is_fitted(self)
        X = np.asarray(validate_data(self, X, reset=False, dtype=np.float64))
        return X @ self.coef_.T + self.intercept_


class PerFeatureRidge(_Linear):
    """Ridge regression with one penalty per feature, or per group of features, tuned on all folds at once.

        minimize over w, b:   Σ_i (y_i − x_iᵀw − b)² + Σ_j alpha_j w_j²

    The logarithms of the penalties minimize the mean squared error on the rows held out of the folds, plus a
    prior around the best single penalty. The coefficients are then fitted to all rows. `bl.tuning_free`
    solves one bilevel problem over the folds, so there is no step size; features may have any units.

    Args:
        cv: a number of folds (shuffled by `random_state`), a splitter, an iterable of (train, held-out) rows, or
            "split" for one split that holds `validation_fraction` of the rows out. For groups of rows pass
            `list(GroupKFold().split(X, y, groups))`.
        groups: one label per feature; features with the same label share a penalty. None: one penalty per feature.
        spread: the standard deviation of the prior of the log penalties around the best single one. Toward 0 all are
            equal, as in `RidgeCV`; large values fit the folds more closely.
        fit_intercept: whether there is a b, which is never penalized.
        validation_fraction: the share of the rows held out with cv="split".
        max_iter: the largest number of outer steps; fewer if the validation value no longer falls.
        random_state: seed of the folds.
        verbose: whether to draw a progress bar.

    Attributes:
        alpha_: the penalty of each feature; equal entries are `Ridge(alpha)`.
        coef_, intercept_: as in `sklearn.linear_model.Ridge`.
        validation_curve_: the mean squared error on the held-out rows along the run.
        best_index_: the index of `alpha_` in the curve. It has the smallest sum of loss and prior, so not always the
            smallest loss.
        n_iter_: the number of outer steps.
        n_features_in_, feature_names_in_: as in all scikit-learn estimators.
    """

    _sparse = False


class PerFeatureLasso(_Linear):
    """Lasso with one penalty per feature or group, tuned on all folds at once; zeros are exact.

        minimize over w, b:   Σ_i (y_i − x_iᵀw − b)²/(2n) + Σ_j alpha_j |w_j|

    Parameters and attributes are as in `bl.sklearn.PerFeatureRidge`. The steps are proximal, and the
    hypergradient is the one of the sparse solution. The features of a group share their penalty, not their
    zeros. Equal entries of `alpha_` are the one of `sklearn.linear_model.Lasso`.
    """

    _sparse = True
