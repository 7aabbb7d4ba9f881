"""Scores of the applications by seed, as `bilevel examples NAME --seeds 3 --out docs/measured` wrote them."""

import csv
from collections.abc import Mapping
from pathlib import Path

from bilevel.applications import Outcome

MEASURED = Path(__file__).parents[1] / "docs" / "measured"


def outcomes(name: str) -> dict[str, Outcome]:
    """Return the scores by seed."""
    path = MEASURED / f"{name}.csv"
    assert path.exists(), f"bilevel examples {name} --seeds 3 --out docs/measured writes {path}"
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for row in csv.DictReader(path.read_text().splitlines()):
        of_method = scores.setdefault(row["seed"], {}).setdefault(row["method"], {})
        of_method[row["measure"]] = float(row["value"])
    return {seed: Outcome(found) for seed, found in scores.items()}


def check(name: str, scores: Mapping[str, Mapping[str, float]]) -> None:
    """Raise if the recorded scores have other methods or measures than this trial."""
    measures = lambda scores: {method: set(row) for method, row in scores.items()}
    for seed, outcome in outcomes(name).items():
        kept, new = measures(outcome.scores), measures(scores)
        assert kept == new, f"seed {seed} of docs/measured/{name}.csv has {kept}, a trial has {new}"
