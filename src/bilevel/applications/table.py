"""What the seeds say together: a mean and a spread for every method and measure, the best marked."""

import csv
import io
import math
import statistics
from collections import Counter
from collections.abc import Sequence

import numpy as np

from bilevel.applications.base import Application, Outcome

Cell = tuple[float, float | None]  # the mean, and the standard deviation of several


def measures(outcomes: Sequence[Outcome]) -> list[str]:
    """In the order in which they first occur: not every method has every one."""
    return list(dict.fromkeys(name for one in outcomes for row in one.scores.values() for name in row))


def cells(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Cell]]:
    """By method, then by measure."""
    table: dict[str, dict[str, Cell]] = {}
    for method in dict.fromkeys(method for one in outcomes for method in one.scores):
        for measure in measures(outcomes):
            found = [one.scores[method][measure] for one in outcomes if measure in one.scores.get(method, {})]
            if found:
                spread = statistics.stdev(found) if len(found) > 1 else None
                table.setdefault(method, {})[measure] = statistics.fmean(found), spread
    return table


def spread(values: np.ndarray) -> np.ndarray:
    """The standard deviation over the first axis, for a picture: the same as in the table, and nothing for one seed."""
    return values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1:])


def form(table: dict[str, dict[str, Cell]], measure: str) -> str:
    """How all numbers of a measure are written: the largest mean to three digits, below ten with three decimals."""
    largest = max((abs(row[measure][0]) for row in table.values() if measure in row), default=0.0)
    if not 1e-4 <= largest < 1e6:
        return "z.3g"
    digits = 2 - math.floor(math.log10(largest))
    return f"z.{3 if digits == 2 else max(digits, 0)}f"


def shown(table: dict[str, dict[str, Cell]], method: str, measure: str) -> str:
    if measure not in table[method]:
        return "–"
    return " ± ".join(f"{each:{form(table, measure)}}" for each in table[method][measure] if each is not None)


def best(application: Application, table: dict[str, dict[str, Cell]], measure: str) -> str | None:
    """The method whose mean is the best as it is shown, if there is one alone."""
    means = {
        method: float(f"{row[measure][0]:{form(table, measure)}}")
        for method, row in table.items()
        if measure in row
    }
    choose = max if measure in application.better else min
    first = [method for method, mean in means.items() if mean == choose(means.values())]
    judged = measure not in application.neutral and len(means) > 1
    return first[0] if judged and len(first) == 1 else None


def parts(measures: Sequence[str]) -> dict[str, dict[str, str]]:
    """Tables by the heads of their first columns, each from measures to the heads of theirs.

    Measures such as "accuracy, little noise" and "accuracy, much noise" are a table of their own, "accuracy".
    """
    first = Counter(measure.partition(", ")[0] for measure in measures)
    found: dict[str, dict[str, str]] = {}
    for measure in measures:
        before, _, after = measure.partition(", ")
        head, column = (before, after) if after and first[before] > 1 else ("method", measure)
        found.setdefault(head, {})[measure] = column
    return found


def as_markdown(application: Application, outcomes: Sequence[Outcome]) -> str:
    """A table, or several; methods that have none of its measures are not in one."""
    table = cells(outcomes)
    bold = lambda method, measure: "**" if best(application, table, measure) == method else ""
    cell = lambda method, measure: shown(table, method, measure).join([bold(method, measure)] * 2)
    found = []
    for head, columns in parts(measures(outcomes)).items():
        rows = [[head, *columns.values()], ["---"] * (1 + len(columns))]
        rows += [
            [method, *(cell(method, m) for m in columns)]
            for method in table
            if table[method].keys() & columns
        ]
        found.append("\n".join(map(_line, rows)))
    return "\n\n".join(found)


def _line(row: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in row) + " |"


def as_csv(seeds: Sequence[int], outcomes: Sequence[Outcome]) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("seed", "method", "measure", "value"))
    for seed, outcome in zip(seeds, outcomes, strict=True):
        for method, row in outcome.scores.items():
            rows.writerows((seed, method, measure, float(value)) for measure, value in row.items())
    return text.getvalue()
