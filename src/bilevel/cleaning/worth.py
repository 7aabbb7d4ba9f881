"""What a ranking is worth, measured on the trusted rows, whose labels are known to be right.

A fifth of them at a time lose that status: half of these get a wrong label, and all are hidden among the data. Then
everything is done again as for the real ranking, and the ranking is judged by where the wrong ones come out. Half of
the wrong labels are drawn evenly from the other classes, half are the class that the row is most easily taken for.

Of the data, a sample is enough for that. As it is ranked together with rows of which the truth is known, it also shows
how many labels of the data are wrong, as prevalence is estimated with a test that errs (Rogan and Gladen, 1978). The
test is that the suggested label differs from the given one. With s, t and f the shares of the data, of the labels made
wrong and of the right ones for which it does, the share of wrong labels is π = (s − f) / (t − f).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

FOLDS = 5
SAMPLE = 5_000  # rows of the data in each fold
RIGHT, EVENLY, LOOKALIKE = 0, 1, 2  # what was done to the label of a trusted row
LEAST_GAIN = 0.2  # of t − f, to say anything about the data

Weigh = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Any]


class Worth(NamedTuple):
    """One entry for each trusted row that was hidden, and the suspicion of the data beside them."""

    change: np.ndarray  # RIGHT, EVENLY or LOOKALIKE
    suspicion: np.ndarray
    correct: np.ndarray  # whether the suggested label is the true one
    disputed: np.ndarray  # whether it differs from the given one
    data: np.ndarray  # suspicion of the sampled rows of the data, from all folds
    data_disputed: np.ndarray

    @property
    def wrong(self) -> np.ndarray:
        return self.change != RIGHT

    def area(self, *changes: int) -> float:
        """Under the ROC curve: how often a wrong label is more suspicious than a right one. Ties count half."""
        picked = self.wrong if not changes else np.isin(self.change, changes)
        return roc_area(self.suspicion[picked], self.suspicion[~self.wrong])

    def interval(self) -> tuple[float, float]:
        """Of 95 %, for the area, after Hanley and McNeil (1982): wide if trusted rows are few."""
        area, wrong, right = self.area(), int(self.wrong.sum()), int((~self.wrong).sum())
        spread = area * (1 - area)
        spread += (wrong - 1) * (area / (2 - area) - area**2)
        spread += (right - 1) * (2 * area**2 / (1 + area) - area**2)
        reach = 1.96 * np.sqrt(max(spread, 0.0) / (wrong * right))
        return float(max(0, area - reach)), float(min(1, area + reach))

    @property
    def suggested(self) -> float:
        """How often the suggested label was the true one, for labels made wrong."""
        return float(self.correct[self.wrong].mean())

    def rates(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Thresholds, falling, and the shares of the wrong, the right and the data's labels at or above each."""
        thresholds = np.unique(self.suspicion)[::-1]
        above = lambda values: 1 - np.searchsorted(np.sort(values), thresholds, side="left") / len(values)
        return (
            thresholds,
            above(self.suspicion[self.wrong]),
            above(self.suspicion[~self.wrong]),
            above(self.data),
        )

    def share_wrong(self) -> tuple[float, float, float] | None:
        """π and a 95 % interval, as far as the data's faults are like those made here; `None` if nothing can be said.

        f is the share of suggestions that are not the truth, whatever label was given: a row is judged by a model that
        has not seen it. The interval is that of the delta method; every share is taken one row away from 0 and 1.
        """
        s, t, f = self.data_disputed, self.disputed[self.wrong], ~self.correct
        (s, s_error), (t, t_error), (f, f_error) = map(_share, (s, t, f))
        if t - f < LEAST_GAIN:
            return None
        share = (s - f) / (t - f)
        reach = 1.96 * np.hypot(s_error, np.hypot((1 - share) * f_error, share * t_error)) / (t - f)
        clipped = lambda value: float(np.clip(value, 0, 1))
        return clipped(share), clipped(share - reach), clipped(share + reach)

    def found(self, reviewed: float) -> float:
        """The share of wrong labels among the most suspicious `reviewed` of the data, by the same reasoning."""
        _, found, _, share = self.rates()
        return float(np.interp(reviewed, np.r_[0, share, 1], np.r_[0, found, 1]))


def worth(
    weigh: Weigh,
    inputs: np.ndarray,
    labels: np.ndarray,
    trusted_inputs: np.ndarray,
    trusted_labels: np.ndarray,
    likeness: np.ndarray,
    *,
    seed: int,
    folds: int = FOLDS,
    fold_done: Callable[[int], None] = lambda fold: None,
) -> Worth:
    """`weigh(inputs, labels, trusted_inputs, trusted_labels)` makes the ranking; `likeness` is what the trusted rows
    are taken for, a probability for each class."""
    rng = np.random.default_rng(seed)
    size = len(trusted_labels) // folds  # the same in all folds, so that one compiled program serves them
    order = _dealt(trusted_labels, rng)
    parts = []
    for fold in range(folds):
        hidden = order[fold::folds][:size]
        kept = np.setdiff1d(order, hidden)
        given, change = wrong_labels(trusted_labels[hidden], likeness[hidden], rng)
        sample = rng.permutation(len(labels))[:SAMPLE]
        found = weigh(
            np.concatenate([trusted_inputs[hidden], inputs[sample]]),
            np.concatenate([given, labels[sample]]),
            trusted_inputs[kept],
            trusted_labels[kept],
        )
        suggested = np.argmax(found.probabilities, axis=1)
        correct, disputed = suggested[:size] == trusted_labels[hidden], suggested[:size] != given
        among = found.suspicion[size:], suggested[size:] != labels[sample]
        parts.append(Worth(change, found.suspicion[:size], correct, disputed, *among))
        fold_done(fold)
    return Worth(*map(np.concatenate, zip(*parts, strict=True)))


def wrong_labels(
    labels: np.ndarray, likeness: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """`(given, change)`: half of the labels as they are, a quarter drawn evenly, a quarter those of the lookalike."""
    count, classes = likeness.shape
    change = np.array([RIGHT, EVENLY, RIGHT, LOOKALIKE])[rng.permutation(count) % 4]
    evenly = (labels + rng.integers(1, classes, size=count)) % classes
    others = np.where(np.arange(classes)[None, :] == labels[:, None], -np.inf, likeness)
    lookalike = np.argmax(others, axis=1)
    return np.choose(change, [labels, evenly, lookalike]).astype(labels.dtype), change


def roc_area(positive: np.ndarray, negative: np.ndarray) -> float:
    """The share of pairs in which the positive is the larger one; ties count half."""
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, side="left") + np.searchsorted(ordered, positive, side="right")
    return float(below.mean() / (2 * len(negative)))


def _share(holds: np.ndarray) -> tuple[float, float]:
    """How often it holds, and the standard error of that."""
    share = (holds.sum() + 1) / (len(holds) + 2)
    return holds.mean(), np.sqrt(share * (1 - share) / len(holds))


def _dealt(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows ordered by class, and at random within, so that every fold gets its part of every class."""
    return np.lexsort((rng.random(len(labels)), labels))
