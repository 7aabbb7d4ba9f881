"""Linear regression with one penalty per feature or group, found by cross-validation: ridge, and lasso with zeros."""

from typing import Any, TypeVar

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from bilevel.sklearn import penalty_squares as squares
from bilevel.sklearn.penalty_estimator import PerFeature, check_size, standardized
from bilevel.sklearn.splits import splits

__all__ = ["PerFeatureLasso", "PerFeatureRidge"]


Fitted = TypeVar("Fitted", bound="_Linear")


class _Linear(MultiOutputMixin, RegressorMixin, PerFeature):
    _sparse: bool
    coef_: np.ndarray
    intercept_: Any  # a float for one target, an array for several

    def fit(self: Fitted, X: Any, y: Any) -> Fitted:
        """Finds the penalties on the folds, then the coefficients on all rows."""
        rows: Any = validate_data(
            self, X, y, multi_output=True, y_numeric=True, dtype=np.float64, ensure_min_samples=2
        )
        X, y = rows[0], np.asarray(rows[1], float)
        self._check(X.shape[1])
        check_size(X, "X")
        check_size(y.reshape(len(y), -1), "y")
        Z, means, sizes = standardized(X, bool(self.fit_intercept))
        Y, mean = y.reshape(len(y), -1), 0.0
        if self.fit_intercept:
            mean = Y.mean(0)
            Y = Y - mean
        unit = np.sqrt(np.mean(Y**2)) or 1.0
        parts = splits(self.cv, X, y, False, self.validation_fraction, self.random_state)
        observations = Y.shape[1]
        penalties, tuned, _ = self._tune(
            squares, self._sparse, Z, Y / unit, parts, strength=lambda value: value / observations
        )
        solve = squares.lasso if self._sparse else squares.ridge
        w = solve(Z, Y / unit, penalties) * unit / sizes[:, None]
        b = mean - means @ w if self.fit_intercept else np.zeros(Y.shape[1])
        self.alpha_ = penalties * sizes * unit if self._sparse else penalties * sizes**2 * len(X)
        self.coef_, self.intercept_ = (w[:, 0], float(b[0])) if y.ndim == 1 else (w.T, b)
        self.validation_curve_ = 2 * unit**2 * tuned.curve / observations
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The values of new rows."""
        check_is_fitted(self)
        X = np.asarray(validate_data(self, X, reset=False, dtype=np.float64))
        return X @ self.coef_.T + self.intercept_


class PerFeatureRidge(_Linear):
    """Ridge regression with one penalty per feature, or per group of features, tuned on all folds at once.

        minimize over w, b:   Σ_i (y_i − x_iᵀw − b)² + Σ_j alpha_j w_j²

    The logarithms of the penalties minimize the mean squared error on the rows held out of the folds, plus a prior that
    draws them toward the best single penalty; the coefficients are then those of all rows. One bilevel problem over
    the folds, solved by `bl.tuning_free`, so there is no step size; features may have any units.

    Args:
        cv: a number of folds (shuffled by `random_state`), a splitter, an iterable of (train, held-out) rows, or
            "split" for one split that holds `validation_fraction` of the rows out. For groups of rows pass
            `list(GroupKFold().split(X, y, groups))`.
        groups: one label per feature; features with the same one share a penalty. None: each has its own.
        spread: how far, as a standard deviation of their natural logarithm, penalties may lie from the best single one
            before the prior counts. Toward 0 all are the same, as in `RidgeCV`; large values fit the folds harder.
        fit_intercept: whether there is a b, which is never penalized.
        validation_fraction: of the rows, for cv="split".
        max_iter: the most outer steps. They end earlier when the validation value no longer falls.
        random_state: of the folds.
        verbose: whether to draw a progress bar.

    Attributes:
        alpha_: the penalty of each feature, as above: with equal entries this is `Ridge(alpha)`.
        coef_, intercept_: as those of `sklearn.linear_model.Ridge`.
        validation_curve_: the mean squared error on the rows held out, along the run.
        best_index_: the entry of it that `alpha_` belongs to: that of the smallest sum of loss and prior, so not always
            the smallest.
        n_iter_: the number of outer steps taken.
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.
    """

    _sparse = False


class PerFeatureLasso(_Linear):
    """Lasso with one penalty per feature, or per group of features, tuned on all folds at once; zeros are exact.

        minimize over w, b:   Σ_i (y_i − x_iᵀw − b)²/(2n) + Σ_j alpha_j |w_j|

    As `bl.sklearn.PerFeatureRidge`, with proximal steps and the hypergradient of the sparse
    solution. A group shares its penalty; its coefficients are zero or not, each on its own. Parameters and attributes
    are the same; with equal entries `alpha_` is that of `sklearn.linear_model.Lasso`.
    """

    _sparse = True
