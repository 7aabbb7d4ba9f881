"""How often the intervals in the report of `bilevel clean` contain the truth.

    python benchmarks/cleaning_intervals.py [--tables 50] [--record docs/measured] [--quick]

Two intervals of 95 % are checked: for the share of wrong labels in the table, and for how many of them are among the
most suspicious rows, if as many rows are looked at as are estimated to be wrong. The tables are drawn again each time,
so the truth is known: classes are normal distributions around random centers, except in breast cancer, where the
trusted rows and the wrong labels are drawn from scikit-learn's table. A wrong label is

- evenly: any other class, with the same probability.
- next: the class that follows, always the same one.
- hard rows: the class that the row fits second best. The nearer the row is to it, the more probable the mistake.

Of each kind of table the record shows the mean truth, the mean ends of the interval, and the share of intervals that
contain the truth, with their number: the report has no interval if the ranking is hardly better than chance, and none
for the labels found if no label is estimated to be wrong.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import record
from sklearn.datasets import load_breast_cancer

from bilevel.cleaning.evaluation import worth
from bilevel.row_weights.fit import weigh

LEAST = 5  # trusted rows of each class, as the command wants them
COLUMNS = 10
PARTS = "", ", interval", ", covered"
MOST = 0.9  # the largest probability of a mistake


class Kind(NamedTuple):
    """A way to draw tables."""

    rows: int
    trusted: int
    classes: int
    share: float  # of wrong labels
    distance: float  # of the classes' centers, about, in standard deviations within a class
    mistakes: str = "evenly"


KINDS = {
    "2 classes, 10 trusted rows": Kind(300, 10, 2, 0.2, 3),
    "2 classes, 30 trusted rows": Kind(500, 30, 2, 0.2, 3),
    "3 classes, 60 trusted rows": Kind(500, 60, 3, 0.15, 3),
    "3 classes far apart, 60 trusted rows": Kind(500, 60, 3, 0.15, 6),
    "3 classes, 60 trusted rows, few wrong": Kind(500, 60, 3, 0.03, 4),
    "3 classes, 60 trusted rows, next": Kind(500, 60, 3, 0.15, 3, "next"),
    "3 classes, 300 trusted rows": Kind(1000, 300, 3, 0.15, 3),
    "5 classes, 200 trusted rows": Kind(800, 200, 5, 0.1, 3),
    "breast cancer, 60 trusted rows": Kind(500, 60, 2, 0.15, 0),
    "3 classes, 60 trusted rows, hard rows": Kind(500, 60, 3, 0.15, 3, "hard rows"),
}


class Table(NamedTuple):
    inputs: np.ndarray
    given: np.ndarray
    trusted_inputs: np.ndarray
    trusted_labels: np.ndarray
    wrong: np.ndarray


class Checked(NamedTuple):
    """Of one table: the truth, and the ends of the intervals."""

    share: float
    share_ends: tuple[float, float]
    found: float  # NaN if the report says nothing about it
    found_ends: tuple[float, float]


def draw(kind: Kind, rng: np.random.Generator) -> Table:
    """The trusted rows are drawn at random, but at least `LEAST` of each class."""
    count = kind.rows + kind.trusted
    if kind.distance:
        centers = rng.normal(size=(kind.classes, COLUMNS)) * kind.distance / np.sqrt(2 * COLUMNS)
        truth = rng.integers(0, kind.classes, size=count)
        inputs = centers[truth] + rng.normal(size=(count, COLUMNS))
        fit = inputs @ centers.T - 0.5 * (centers**2).sum(axis=1)
    else:
        inputs, truth = load_breast_cancer(return_X_y=True)
        picked = rng.permutation(len(truth))[:count]
        inputs, truth = (inputs - inputs.mean(axis=0))[picked] / inputs.std(axis=0), truth[picked]
        fit = np.zeros((count, kind.classes))
    first = np.concatenate([np.flatnonzero(truth == k)[:LEAST] for k in range(kind.classes)])
    trusted = np.r_[first, np.setdiff1d(np.arange(count), first)[: kind.trusted - len(first)]]
    probability, other = mistakes(kind, truth, fit, rng)
    wrong = rng.random(count) < probability
    given = np.where(wrong, other, truth).astype(np.int32)
    data = np.setdiff1d(np.arange(count), trusted)
    inputs = inputs.astype(np.float32)
    return Table(inputs[data], given[data], inputs[trusted], truth[trusted].astype(np.int32), wrong[data])


def mistakes(
    kind: Kind, truth: np.ndarray, fit: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Of each row, the probability that its label is wrong, and the label that it then has."""
    count = len(truth)
    if kind.mistakes != "hard rows":
        away = rng.integers(1, kind.classes, size=count) if kind.mistakes == "evenly" else 1
        return np.full(count, kind.share), (truth + away) % kind.classes
    own = fit[np.arange(count), truth].copy()
    fit[np.arange(count), truth] = -np.inf
    probability = 1 / (1 + np.exp(own - fit.max(axis=1)))
    for _ in range(20):  # until the mean is the share
        probability = np.minimum(probability * kind.share / probability.mean(), MOST)
    return probability, fit.argmax(axis=1)


def check(kind: Kind, seed: int) -> Checked | None:
    """Return what the report says about one table, and the truth; `None` if it says nothing."""
    table = draw(kind, np.random.default_rng(seed))
    rank = partial(weigh, classes=kind.classes, seed=seed)
    ranked = rank(*table[:4])
    judged = worth(rank, *table[:4], ranked.predict(table.trusted_inputs), seed=seed)
    share, rows = judged.share_wrong(), len(table.given)
    if share is None:
        return None
    expected = round(share[0] * rows)
    if not expected or not table.wrong.any():
        return Checked(table.wrong.mean(), share[1:], np.nan, (np.nan, np.nan))
    first = np.argsort(-ranked.suspicion, kind="stable")[:expected]
    found = table.wrong[first].sum() / table.wrong.sum()
    return Checked(table.wrong.mean(), share[1:], found, judged.found_interval(expected / rows, expected))


def lines(kinds: list[str], tables: int) -> Iterator[list[str]]:
    for name in kinds:
        results = [check(KINDS[name], seed) for seed in range(tables)]
        checked = [each for each in results if each is not None]
        found = cells([(each.found, *each.found_ends) for each in checked])
        share = cells([(each.share, *each.share_ends) for each in checked])
        yield [name, *found, *share]


def cells(found: list[tuple[float, float, float]]) -> list[str]:
    truth, low, high = (values := np.array(found))[~np.isnan(values).any(axis=1)].T
    covered = np.mean((low <= truth + 1e-9) & (truth <= high + 1e-9))
    return [f"{truth.mean():.0%}", f"{low.mean():.0%} to {high.mean():.0%}", f"{covered:.1%} of {len(truth)}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=int, default=50, help="of each kind")
    record.options(parser)
    given = parser.parse_args()
    kinds, tables = (list(KINDS)[:2], 2) if given.quick else (list(KINDS), given.tables)
    columns = ["table", *(f"{each}{part}" for each in ("found", "wrong") for part in PARTS)]
    record.table(
        "cleaning-intervals", columns, lines(kinds, tables), given.record, libraries=["scikit-learn"]
    )


if __name__ == "__main__":
    main()
