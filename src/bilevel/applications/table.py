"""Tables over seeds: mean and spread for every method and measure, with the best marked."""

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
    """Return all measures in the order of their first occurrence; a method may lack some."""
    return list(dict.fromkeys(name for one in outcomes for row in one.scores.values() for name in row))


def cells(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Cell]]:
    """Return the cells by method, then by measure."""
    table: dict[str, dict[str, Cell]] = {}
    for method in dict.fromkeys(method for one in outcomes for method in one.scores):
        for measure in measures(outcomes):
            found = [one.scores[method][measure] for one in outcomes if measure in one.scores.get(method, {})]
            if found:
                spread = statistics.stdev(found) if len(found) > 1 else None
                table.setdefault(method, {})[measure] = statistics.fmean(found), spread
    return table


def spread(values: np.ndarray) -> np.ndarray:
    """Return the standard deviation over the first axis, as in the table; zero for one seed."""
    return values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1:])


def form(table: dict[str, dict[str, Cell]], measure: str) -> str:
    """Return the format of a measure: three digits of the largest mean, three decimals below ten."""
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
    """Return the method with the best mean as printed, or None if several have it."""
    printed = lambda row: float(f"{row[measure][0]:{form(table, measure)}}")
    means = {method: printed(row) for method, row in table.items() if measure in row}
    choose = max if measure in application.better else min
    first = [method for method, mean in means.items() if mean == choose(means.values())]
    judged = measure not in application.neutral and len(means) > 1
    return first[0] if judged and len(first) == 1 else None


def parts(measures: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return for every table, by its first heading, the headings of its measures.

    Measures such as "accuracy, little noise" and "accuracy, much noise" form a separate table, "accuracy".
    """
    first = Counter(measure.partition(", ")[0] for measure in measures)
    found: dict[str, dict[str, str]] = {}
    for measure in measures:
        before, _, after = measure.partition(", ")
        head, column = (before, after) if after and first[before] > 1 else ("method", measure)
        found.setdefault(head, {})[measure] = column
    return found


def as_markdown(application: Application, outcomes: Sequence[Outcome]) -> str:
    """Return the tables in Markdown; a table omits methods without any of its measures."""
    table = cells(outcomes)
    bold = lambda method, measure: "**" if best(application, table, measure) == method else ""
    cell = lambda method, measure: shown(table, method, measure).join([bold(method, measure)] * 2)
    line = lambda row: "| " + " | ".join(text.replace("|", "\\|") for text in row) + " |"
    found = []
    for head, columns in parts(measures(outcomes)).items():
        rows = [[head, *columns.values()], ["---"] * (1 + len(columns))]
        methods = [method for method in table if table[method].keys() & columns]
        rows += [[method, *(cell(method, m) for m in columns)] for method in methods]
        found.append("\n".join(map(line, rows)))
    return "\n\n".join(found)


def as_csv(seeds: Sequence[int], outcomes: Sequence[Outcome]) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("seed", "method", "measure", "value"))
    for seed, outcome in zip(seeds, outcomes, strict=True):
        for method, row in outcome.scores.items():
            rows.writerows((seed, method, measure, float(value)) for measure, value in row.items())
    return text.getvalue()
