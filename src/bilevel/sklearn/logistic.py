"""Logistic regression with one penalty per feature or group, L2 or L1, from cross-validation."""

from typing import Any, TypeVar

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from bilevel.sklearn import penalty_softmax as entropy
from bilevel.sklearn.penalty_estimator import PerFeature

Fitted = TypeVar("Fitted", bound="_Logistic")


class _Logistic(ClassifierMixin, PerFeature):
    classes_: np.ndarray
    coef_: np.ndarray
    intercept_: np.ndarray

    def fit(self: Fitted, X: Any, y: Any) -> Fitted:
        """Find the penalties on the folds, then the coefficients on all rows."""
        rows: Any = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        X, y = rows
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        count = len(self.classes_)
        if count < 2:
            raise ValueError(
                f"y has one class only, {self.classes_[0]!r}: pass labels of at least 2 classes to classify"
            )
        groups, hot = self._check(X), np.eye(count)[labels]
        found = self._tune(entropy, X, hot, labels, groups, lambda value: 0.5)
        Z, means, sizes, penalties, tuned, smoothness = found
        free = slice(1, 2) if count == 2 else slice(0, count)
        w, b = (np.asarray(part)[-1] for part in tuned.y)
        w, b = w[: X.shape[1], free], b[free] * bool(self.fit_intercept)
        arguments = Z, hot, penalties, w, b, bool(self.fit_intercept)
        w, b = entropy.lasso(*arguments, smoothness) if self._sparse else entropy.ridge(*arguments)
        w = w / sizes[:, None]
        self.coef_, self.intercept_ = w.T, b - means @ w
        self.alpha_ = len(X) * penalties * (sizes if self._sparse else sizes**2)
        self.validation_curve_ = tuned.curve
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the score of the second of two classes, or of every class."""
        check_is_fitted(self)
        X = np.asarray(validate_data(self, X, reset=False, dtype=np.float64))
        scores = X @ self.coef_.T + self.intercept_
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of new rows."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, in the order of `classes_`."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.stack([expit(-scores), expit(scores)], axis=1)
        return softmax(scores, axis=1)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithm of `predict_proba`."""
        return np.log(self.predict_proba(X))


class PerFeatureLogisticRegression(_Logistic):
    """Logistic regression with one penalty per feature, or per group of features, tuned on all folds at once.

        minimize over w, b:   Σ_i ℓ(class of i, x_iᵀw + b) + ½ Σ_j alpha_j ‖w_j‖²

    with the cross-entropy ℓ of two or more classes (multinomial). The logarithms of the penalties minimize
    the mean cross-entropy of the rows held out of the folds, plus a prior around the best single penalty. The
    coefficients are then fitted to all rows. Parameters and attributes are as in `bl.sklearn.PerFeatureRidge`,
    except for these:

    Args:
        cv: a number means stratified folds, at most as many as the largest class has rows. A fold ignores held-out
            rows of a class that it does not train on.
        spread: toward 0 all penalties are equal, as in `LogisticRegressionCV`.

    Attributes:
        alpha_: the penalty of each feature; equal entries are `LogisticRegression(C=1/alpha)`.
        coef_, intercept_, classes_: as in `sklearn.linear_model.LogisticRegression`.
        validation_curve_: the mean cross-entropy of the held-out rows along the run.
    """

    _sparse = False


class PerFeatureSparseLogisticRegression(_Logistic):
    """Logistic regression with one L1 penalty per feature or group and exact zeros, tuned on all folds at once.

        minimize over w, b:   Σ_i ℓ(class of i, x_iᵀw + b) + Σ_j alpha_j ‖w_j‖₁

    Parameters and attributes are as in `bl.sklearn.PerFeatureLogisticRegression`. The steps are proximal, and
    the hypergradient is the one of the sparse solution. Equal entries are `LogisticRegression(C=1/alpha, l1_ratio=1)`.
    """

    _sparse = True
