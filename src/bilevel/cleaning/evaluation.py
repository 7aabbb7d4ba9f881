"""Quality of a ranking, measured on the trusted rows by cross-validation.

In every fold, a fifth of them is hidden among the data, and half of these get a wrong label. The ranking is
computed again and judged by the positions of the wrong labels. Half of the wrong labels are drawn evenly from
the other classes, half are the most similar class.

A sample of the data is enough for that. It is ranked together with rows of known labels. So it also shows the
share of wrong labels in the data, as the prevalence with an imperfect test (Rogan and Gladen, 1978). The test
is that the suggested label differs from the given one. s, t and f are the shares of rows with this difference
in the data, among the labels made wrong, and among the right ones. The share of wrong labels is π = (s − f) /
(t − f).

Trusted rows are often chosen by class, as five of each are needed. So the weight of a row is the frequency of
its class in the data relative to the trusted rows. n rows of weights w count as (Σw)²/Σw² in a standard error.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import betabinom

FOLDS = 5
SAMPLE = 5_000  # rows of the data in each fold
RIGHT, EVENLY, LOOKALIKE = 0, 1, 2  # the change of the label of a trusted row
MANY = 10_000  # future cases; more change no printed digit and take seconds
ROUNDING = 1e-9
LEAST_GAIN = 0.2  # the smallest t − f for an estimate

Weigh = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Any]


class Worth(NamedTuple):
    """Result of the evaluation: one entry per hidden trusted row, and the suspicion of the sampled data."""

    change: np.ndarray  # RIGHT, EVENLY or LOOKALIKE
    suspicion: np.ndarray
    correct: np.ndarray  # whether the suggested label is the true one
    disputed: np.ndarray  # whether it differs from the given one
    weight: np.ndarray  # frequency of its class in the data relative to the trusted rows
    data: np.ndarray  # suspicion of the sampled rows of the data, from all folds
    data_disputed: np.ndarray
    row: np.ndarray  # the numbers of these rows; a row may be in several folds
    alike: np.ndarray  # whether the given label is the lookalike, also by chance
    classes: int

    @property
    def wrong(self) -> np.ndarray:
        return self.change != RIGHT

    def area(self, *changes: int) -> float:
        """Return the area under the ROC curve: P(a wrong label is more suspicious than a right one)."""
        parts = np.isin(self.change, changes or (EVENLY, LOOKALIKE)), ~self.wrong
        return roc_area(*(array[part] for part in parts for array in (self.suspicion, self.weight)))

    def interval(self) -> tuple[float, float]:
        """Return a 95 % interval for the area, after Hanley and McNeil (1982).

        Their variance is zero at an area of one. So take it at the area after half an error among as many
        comparisons as there are rows of the rarer kind.
        """
        area = self.area()
        wrong, right = (effective(self.weight[part]) for part in (self.wrong, ~self.wrong))
        fewer = min(wrong, right)
        shrunk = (area * fewer + 0.5) / (fewer + 1)
        spread = shrunk * (1 - shrunk)
        spread += (wrong - 1) * (shrunk / (2 - shrunk) - shrunk**2)
        spread += (right - 1) * (2 * shrunk**2 / (1 + shrunk) - shrunk**2)
        reach = 1.96 * np.sqrt(max(spread, 0.0) / (wrong * right))
        return float(max(0, area - reach)), float(min(1, area + reach))

    @property
    def suggested(self) -> float:
        """Return the share of labels made wrong with the true label as suggestion."""
        return float(np.average(self.correct[self.wrong], weights=self.weight[self.wrong]))

    def suggested_interval(self) -> tuple[float, float]:
        """Return a 95 % interval for `suggested`, after Clopper and Pearson."""
        return predicted(self.suggested, effective(self.weight[self.wrong]))

    def share_wrong(self) -> tuple[float, float, float] | None:
        """Return π and a 95 % interval, or None without an estimate.

        They hold if the errors in the data are like the errors made here.
        f is the share of wrong suggestions for any given label, because the model has not seen the row. The
        interval is from the delta method; every share is taken one row away from 0 and 1.
        """
        rows = float(len(np.unique(self.row)))
        s, s_error = _share(self.data_disputed, np.ones(len(self.data_disputed)), rows)
        t, t_error = _share(self.disputed[self.wrong], self.weight[self.wrong])
        f, f_error = _share(~self.correct, self.weight)
        if t - f < LEAST_GAIN:
            return None
        share = (s - f) / (t - f)
        reach = 1.96 * np.hypot(s_error, np.hypot((1 - share) * f_error, share * t_error)) / (t - f)
        clipped = lambda value: float(np.clip(value, 0, 1))
        return clipped(share), clipped(share - reach), clipped(share + reach)

    def found_curve(self, weight: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return shares of the data, the most suspicious first, and the shares of labels made wrong in them.

        `weight` is the weight of each trusted row; the default is the weight of its class.
        """
        weight, thresholds = self.weight if weight is None else weight, np.unique(self.suspicion)[::-1]
        found = _above(thresholds, self.suspicion[self.wrong], weight[self.wrong])
        share = _above(thresholds, self.data, np.ones(len(self.data)))
        return np.r_[0, share, 1], np.r_[0, found, 1]

    def found(self, reviewed: float, weight: np.ndarray | None = None) -> float:
        """Return the share of labels made wrong that are as suspicious as the first `reviewed` of the data."""
        return float(np.interp(reviewed, *self.found_curve(weight)))

    def found_interval(self, reviewed: float, wrong: int) -> tuple[float, float]:
        """Return a 95 % interval for the share of `wrong` labels in the first `reviewed` of the data.

        The wrong labels of the data may be drawn evenly or be lookalikes, so the interval contains the
        intervals of both kinds. A label drawn evenly from C classes is the lookalike with probability 1/(C −
        1), and half of the labels are lookalikes. So a lookalike has the weight 1/C for labels drawn evenly.
        With two classes both kinds are equal.
        """
        ends = []
        for kind in (self.alike, np.where(self.alike, 1 / self.classes, 1.0)):
            weight = kind * self.weight * self.wrong
            if weight.any():
                ends.append(predicted(self.found(reviewed, weight), effective(weight), wrong))
        return min(low for low, _ in ends), max(high for _, high in ends)


def worth(
    weigh: Weigh,
    inputs: np.ndarray,
    labels: np.ndarray,
    trusted_inputs: np.ndarray,
    trusted_labels: np.ndarray,
    likeness: np.ndarray,
    *,
    seed: int,
    fold_done: Callable[[int], None] = lambda fold: None,
) -> Worth:
    """Evaluate the ranking `weigh(inputs, labels, trusted_inputs, trusted_labels)`.

    `likeness` has the probabilities of the classes for the trusted rows.
    """
    rng = np.random.default_rng(seed)
    size = len(trusted_labels) // FOLDS  # the same in all folds, for one compiled program
    # By class, and random within: every fold gets its part of every class.
    order = np.lexsort((rng.random(len(trusted_labels)), trusted_labels))
    classes = likeness.shape[1]
    in_data, among = (np.bincount(part, minlength=classes) / len(part) for part in (labels, trusted_labels))
    weight = np.divide(in_data, among, out=np.zeros(classes), where=among > 0)[trusted_labels]
    parts = []
    for fold in range(FOLDS):
        hidden = order[fold::FOLDS][:size]
        kept = np.setdiff1d(order, hidden)
        given, change = wrong_labels(trusted_labels[hidden], likeness[hidden], rng, fold)
        alike = given == lookalikes(trusted_labels[hidden], likeness[hidden])
        sample = rng.permutation(len(labels))[:SAMPLE]
        found = weigh(
            np.concatenate([trusted_inputs[hidden], inputs[sample]]),
            np.concatenate([given, labels[sample]]),
            trusted_inputs[kept],
            trusted_labels[kept],
        )
        suggested = np.argmax(found.probabilities, axis=1)
        correct, disputed = suggested[:size] == trusted_labels[hidden], suggested[:size] != given
        beside = found.suspicion[size:], suggested[size:] != labels[sample], sample
        parts.append((change, found.suspicion[:size], correct, disputed, weight[hidden], *beside, alike))
        fold_done(fold)
    return Worth(*map(np.concatenate, zip(*parts, strict=True)), classes=classes)


def wrong_labels(
    labels: np.ndarray, likeness: np.ndarray, rng: np.random.Generator, fold: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return `(given, change)`: half of the labels unchanged, a quarter drawn evenly, a quarter lookalikes.

    Small folds lack some of these, so each fold starts with another kind.
    """
    count, classes = likeness.shape
    change = np.array([RIGHT, EVENLY, RIGHT, LOOKALIKE])[(rng.permutation(count) + fold) % 4]
    evenly = (labels + rng.integers(1, classes, size=count)) % classes
    alike = lookalikes(labels, likeness)
    return np.choose(change, [labels, evenly, alike]).astype(labels.dtype), change


def lookalikes(labels: np.ndarray, likeness: np.ndarray) -> np.ndarray:
    """Return, for each row, the likeliest class other than its label."""
    others = np.where(np.arange(likeness.shape[1])[None, :] == labels[:, None], -np.inf, likeness)
    return np.argmax(others, axis=1)


def predicted(share: float, count: float, future: int = MANY) -> tuple[float, float]:
    """Return a 95 % interval for the share among `future` cases, after `share` among `count` of them.

    After s of n, the probability is between quantiles of Beta(s, n − s + 1) and of Beta(s + 1, n − s)
    (Clopper and Pearson, 1934). The number among m future cases then has a beta-binomial distribution with
    these parameters.
    """
    future = min(max(future, 1), MANY)
    had, missed = share * count, (1 - share) * count
    low = betabinom.ppf(0.025, future, had, missed + 1) / future if had > ROUNDING else 0.0
    high = betabinom.ppf(0.975, future, had + 1, missed) / future if missed > ROUNDING else 1.0
    return float(low), float(high)


def roc_area(
    positive: np.ndarray, weight: np.ndarray, negative: np.ndarray, other_weight: np.ndarray
) -> float:
    """Return the weighted share of pairs with a larger positive; ties count half."""
    less, at_most = (_below(positive, negative, other_weight, side) for side in ("left", "right"))
    return float(np.average((less + at_most) / 2, weights=weight))


def effective(weight: np.ndarray) -> float:
    """Return the effective number of rows of equal weight (Kish, 1965)."""
    return float(weight.sum() ** 2 / np.sum(weight**2))


def _below(at: np.ndarray, values: np.ndarray, weight: np.ndarray, side: Any) -> np.ndarray:
    """Return the share of the values below each point; with side "right", not above it."""
    order = np.argsort(values)
    total = np.r_[0.0, np.cumsum(weight[order])]
    return total[np.searchsorted(values[order], at, side=side)] / total[-1]


def _above(at: np.ndarray, values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return 1 - _below(at, values, weight, "left")


def _share(holds: np.ndarray, weight: np.ndarray, count: float | None = None) -> tuple[float, float]:
    """Return a share and its standard error; `count` is the number of different rows."""
    count, share = effective(weight) if count is None else count, np.average(holds, weights=weight)
    inside = (share * count + 1) / (count + 2)
    return float(share), float(np.sqrt(inside * (1 - inside) / count))
