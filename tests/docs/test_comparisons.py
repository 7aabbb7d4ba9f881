"""Comparisons in sentences agree with the tables: which method leads, by how much, and against which."""

from dataclasses import dataclass

import pytest
from origins import number, rows
from sentences import prose

OURS = "`PerFeature"
PENALTIES = "docs/applications/per-feature-penalties.md"


@dataclass(frozen=True)
class Score:
    method: str
    mean: float
    spread: float

    @property
    def ours(self) -> bool:
        return self.method.startswith(OURS)


def ranked(name: str) -> dict[str, list[Score]]:
    """Return the methods of every row, the best first."""
    found, falls = {}, "log-loss" in name or "seconds" in name
    for row in rows(f"estimators-{name}"):
        (_, label), *cells = row.items()
        scores = (Score(method, number(text), number(text.partition(" ± ")[2])) for method, text in cells)
        found[label.partition(" (")[0]] = sorted(scores, key=lambda each: each.mean, reverse=not falls)
    return found


def lead(scores: list[Score]) -> float:
    """Return how far our best is ahead of the best other, in units of the larger spread; 0 or less if it is not."""
    ours, theirs = (next(each for each in scores if each.ours == own) for own in (True, False))
    gain = ours.mean - theirs.mean if scores[0].mean > scores[-1].mean else theirs.mean - ours.mean
    return gain / max(ours.spread, theirs.spread, 1e-9)


def said(*fragments: str) -> None:
    for fragment in fragments:
        assert fragment in prose(PENALTIES)


def test_what_is_said_of_regression():
    said(
        "one of ours leads in about half of the rows, each time by less than the spread",
        "the ridge gains a little over `RidgeCV`, and is behind the sparse models",
        "boosting is far ahead of every linear model",
        "nothing predicts, and penalties per feature are worst",
    )
    table = ranked("regression-r2")
    leads = [lead(scores) for scores in table.values() if scores[0].ours]
    assert abs(len(leads) / len(table) - 0.5) < 0.1
    assert max(leads) < 1
    noise = {each.method: each.mean for each in table["diabetes + 100 noise"]}
    sparse = noise["`PerFeatureLasso`"], noise["`ElasticNetCV`"]
    assert noise["`RidgeCV`"] < noise["`PerFeatureRidge`"] < min(sparse)
    first, second = table["space_ga"][:2]
    assert first.method == "boosting"
    assert first.mean - second.mean > 3 * first.spread
    last = table["linnerud, waist"]
    assert last[0].mean < 0
    assert {each.ours for each in last[-2:]} == {True}


def test_what_is_said_of_classification():
    said(
        "where ours lead it is by less than the spread or in a tie, but for the sparse one's log-loss on iris",
        "boosting leads in most rows",
    )
    tables = ranked("classification-accuracy"), ranked("classification-log-loss")
    leads = {(i, label): lead(scores) for i, table in enumerate(tables) for label, scores in table.items()}
    assert [where for where, size in leads.items() if size >= 1] == [(1, "iris")]
    best = [scores[0].method for table in tables for scores in table.values()]
    assert best.count("boosting") > len(best) / 2


def test_what_is_said_of_seconds():
    said(
        "`RidgeCV` is much quicker, and so is `LogisticRegressionCV` on all but the smallest and the largest set",
    )
    of = lambda scores, name: next(each.mean for each in scores if each.method == name)
    ridge = ranked("regression-seconds").values()
    assert sum(of(s, "`RidgeCV`") for s in ridge) < 0.1 * sum(of(s, "`PerFeatureRidge`") for s in ridge)
    slower = {
        label: of(scores, "`LogisticRegressionCV`") > 0.5 * min(each.mean for each in scores if each.ours)
        for label, scores in ranked("classification-seconds").items()
    }
    assert [label for label, so in slower.items() if so] == ["iris", "MNIST, 1000"]


@pytest.mark.parametrize("table", ["variance-quadratics", "variance-ridge-logistic", "variance-cleaning"])
def test_saba_is_ahead_by_more_than_one_and_a_half_everywhere(table):
    assert "`saba` is ahead by more than one and a half everywhere" in prose(
        "docs/concepts/methods-stochastic.md"
    )
    (theirs,) = (row for row in rows(table) if row["method"] == "SABA (theirs)")
    assert number(theirs["theirs / ours"]) > 1.5


def test_learned_hyperparameters_beat_the_defaults_by_a_fifth_of_the_loss():
    assert "beats the defaults, by a fifth of the test loss or more" in prose(
        "docs/applications/weight-decay.md"
    )
    loss = {row["method"]: number(row["test loss"].strip("*")) for row in rows("weight-decay")}
    for network in ("MLP", "CNN"):
        assert loss[f"{network}, learned along the run"] <= 0.8 * loss[f"{network}, defaults"]
        assert (
            loss[f"{network}, best of 14 at random"]
            < loss[f"{network}, retrained with the last quarter's mean"]
        )
