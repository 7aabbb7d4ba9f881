"""What the seeds say together: a mean and a spread for every method and measure, the best marked."""

import csv
import io
import statistics
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


def best(application: Application, table: dict[str, dict[str, Cell]], measure: str) -> str | None:
    """The method whose mean is the best, if there is one alone."""
    means = {method: row[measure][0] for method, row in table.items() if measure in row}
    choose = max if measure in application.better else min
    first = [method for method, mean in means.items() if mean == choose(means.values())]
    return first[0] if len(first) == 1 and len(means) > 1 else None


def shown(cell: Cell | None) -> str:
    """To four digits, the spread to two."""
    if cell is None:
        return "–"
    mean, spread = cell
    return f"{mean:.4g}" if spread is None else f"{mean:.4g} ± {spread:.2g}"


def as_markdown(application: Application, outcomes: Sequence[Outcome]) -> str:
    table, columns = cells(outcomes), measures(outcomes)
    lines = [["method", *columns], ["---"] * (1 + len(columns))]
    for method, row in table.items():
        bold = lambda measure, text, method=method: (
            f"**{text}**" if best(application, table, measure) == method else text
        )
        lines.append([method, *(bold(measure, shown(row.get(measure))) for measure in columns)])
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def as_csv(seeds: Sequence[int], outcomes: Sequence[Outcome]) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("seed", "method", "measure", "value"))
    for seed, outcome in zip(seeds, outcomes, strict=True):
        for method, row in outcome.scores.items():
            rows.writerows((seed, method, measure, f"{value:.9g}") for measure, value in row.items())
    return text.getvalue()
