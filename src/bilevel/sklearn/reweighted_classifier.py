"""Classifier for tables with wrong labels, which learns a weight for every label."""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_array, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from bilevel.checks import check_count
from bilevel.row_weights.fit import weigh
from bilevel.sklearn.penalty_estimator import check_fraction, check_size
from bilevel.words import shown


class ReweightedClassifier(ClassifierMixin, BaseEstimator):
    """Logistic regression, or a small network, with training weights learned from a few trusted rows.

        model = ReweightedClassifier().fit(X, y, X_trusted=X_checked, y_trusted=y_checked)
        model.suspects_[:20]      # look at these rows first

    Rows with probably wrong labels lose their weight (docs/how-to/sklearn.md). `fit` standardizes the columns.

    Args:
        hidden: the width of a network's hidden layer; `None` for logistic regression.
        trusted_fraction: the share of the rows to hold out as trusted if `fit` gets no trusted rows. Their labels may
            be wrong too: pass checked rows if you have some.
        max_iter: the number of steps on the weights.
        random_state: seed of the held-out rows, the folds, the batches and the initial networks.
        verbose: 1 or more draws progress bars.

    Attributes:
        classes_: the labels, sorted.
        sample_weight_: the weight of every row of `fit` in [0, 1]; 1 for held-out rows.
        suspicion_: a score of every row in [0, 1], larger for probably wrong labels; 0 for held-out rows.
        suspects_: the row numbers without held-out rows, the most suspicious first.
        n_iter_: the number of steps.
        n_features_in_: the number of columns.
        feature_names_in_: the names of the columns, if `X` has any.
    """

    classes_: np.ndarray
    sample_weight_: np.ndarray
    suspicion_: np.ndarray
    suspects_: np.ndarray
    n_iter_: int

    def __init__(
        self,
        hidden: Any = None,  # scikit-learn requires that `fit` checks the values
        *,
        trusted_fraction: Any = 0.1,
        max_iter: Any = 40,
        random_state: Any = None,
        verbose: Any = 0,
    ):
        self.hidden = hidden
        self.trusted_fraction = trusted_fraction
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, *, X_trusted: Any = None, y_trusted: Any = None) -> "ReweightedClassifier":
        """Train on the rows of `X`, with a weight for each label `y`.

        Args:
            X: rows × columns of finite numbers.
            y: labels, some of them wrong.
            X_trusted: more rows with correct labels; default: a fraction of `X` is held out.
            y_trusted: the labels of `X_trusted`.
        """
        check_fraction(self.trusted_fraction, "trusted_fraction", 0.1)
        check_count(self.max_iter, "max_iter")
        if self.hidden is not None:
            check_count(self.hidden, "hidden")
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        check_size(X, "X")
        rng = check_random_state(self.random_state)
        if (X_trusted is None) != (y_trusted is None):
            raise ValueError("X_trusted and y_trusted go together: pass both, or neither")
        trusted = None if X_trusted is None else self._rows(X_trusted, "X_trusted")
        if trusted is not None:
            check_size(trusted, "X_trusted")
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            only = f"y has only one class, {self.classes_[0]}"
            raise ValueError(f"{only}: a classifier needs rows of two classes or more")
        if trusted is None:
            kept, held = self._split(labels, rng)
            trusted, right, labels = X[held], labels[held], labels[kept]
        else:
            kept, right = np.arange(len(X)), self._right(y_trusted)
            check_consistent_length(trusted, right)
        seed, progress = int(rng.randint(2**31 - 1)), bool(self.verbose)
        options: dict[str, Any] = dict(hidden=self.hidden, steps=self.max_iter, seed=seed, progress=progress)
        found = weigh(X[kept], labels, trusted, right, len(self.classes_), **options)
        self.sample_weight_, self.suspicion_ = np.ones(len(X)), np.zeros(len(X))
        self.sample_weight_[kept], self.suspicion_[kept] = found.weights, found.suspicion
        self.suspects_ = kept[np.argsort(-found.suspicion, kind="stable")]
        self.n_iter_ = self.max_iter
        self._predictor = found.predict
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the log probabilities; for two classes, the log of the ratio of the second to the first."""
        logs = self._logs(X)
        return logs[:, 1] - logs[:, 0] if len(self.classes_) == 2 else logs

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the classes, in the order of `classes_`."""
        return np.exp(self._logs(X))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of every row."""
        logs = self._logs(X)  # raises before `classes_` is read, if nothing was fitted
        return self.classes_[np.argmax(logs, axis=1)]

    def _logs(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return self._predictor.logs(self._rows(X))

    def _rows(self, X: Any, name: str = "X") -> Any:
        try:
            return validate_data(self, X, dtype=np.float64, reset=False)
        except ValueError as error:
            if name == "X":
                raise
            raise ValueError(f"{name}: {error}") from error

    def _right(self, y_trusted: Any) -> np.ndarray:
        """Return the indices of the trusted labels in `classes_`."""
        some: Any = None  # keeps the type
        given = column_or_1d(check_array(y_trusted, ensure_2d=False, dtype=some, input_name="y_trusted"))
        labels, places = given.tolist(), {label: i for i, label in enumerate(self.classes_.tolist())}
        if unknown := [label for label in labels if label not in places]:
            raise ValueError(
                f"y_trusted has the label {shown(unknown[0])}, which no row of y has: write labels alike in both; y "
                f"has {', '.join(map(shown, list(places)[:5]))}{', …' if len(places) > 5 else ''}"
            )
        if len(set(labels)) < 2:
            same = f"all trusted rows have the label {shown(given[0])}"
            raise ValueError(f"{same}: pass trusted rows of two classes or more")
        return np.array([places[label] for label in labels])

    def _split(self, labels: np.ndarray, rng: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
        """Return training and trusted rows, with the same share of every class."""
        held = np.zeros(len(labels), bool)
        for c in range(len(self.classes_)):
            own = rng.permutation(np.flatnonzero(labels == c))
            held[own[: min(max(1, round(self.trusted_fraction * len(own))), len(own) - 1)]] = True
        if not held.any():
            single = "no class has two rows, so no row can be held out as trusted"
            raise ValueError(f"{single}: pass X_trusted and y_trusted")
        return np.flatnonzero(~held), np.flatnonzero(held)
