"""Report as one web page without scripts or links. Every cell is escaped."""

from collections import Counter
from html import escape
from importlib.resources import files
from math import ceil, floor
from string import Template

import numpy as np

from bilevel.cleaning.encoding import Column
from bilevel.cleaning.evaluation import EVENLY, LOOKALIKE, Worth
from bilevel.cleaning.findings import Findings, tame
from bilevel.cleaning.report import charts
from bilevel.cleaning.table import plural, rows_in_words

FIRST, ROWS = 20, 100  # rows shown at once, and on the page; the file has all rows
CELLS = 8  # per row
NAMES = 2  # identifiers or texts per row
SWAPS = 8
SENTENCE = 400  # characters


def as_page(found: Findings) -> str:
    low, middle, high = np.percentile(found.weights, (10, 50, 90))
    return _template("template.html").substitute(
        file=text(found.table.path.name),
        title=escape(tame(found.table.path.name)),
        label=text(found.label),
        trusted=f"{found.trusted:,}",
        summary=summary(found),
        notes="".join(f'<p class="note">{text(note, SENTENCE)}</p>' for note in found.notes),
        cards="".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in _cards(found).items()),
        shown=f"The first {FIRST} of {len(found.rows):,}." if len(found.rows) > FIRST else "",
        rows=_rows(found, found.order[:FIRST]),
        more=_more(found, found.order[FIRST:ROWS]),
        swaps=_swaps(found),
        histogram=charts.layered(found.weights, found.disputed, "weight", "Rows by weight"),
        low=f"{low:.2f}",
        middle=f"{middle:.2f}",
        high=f"{high:.2f}",
        worth=_worth(found, found.worth) if found.worth else "<p>Not measured (<code>--no-check</code>).</p>",
        columns="\n".join(map(_column, found.encoding.columns)),
        made="".join(f"<dt>{text(k)}</dt><dd>{text(v, SENTENCE)}</dd>" for k, v in found.made.items()),
    )


def text(cell: str, longest: int = 48) -> str:
    """Return escaped HTML with its own writing direction."""
    return f"<bdi>{escape(tame(cell, longest))}</bdi>"


def summary(found: Findings) -> str:
    """Return the answer in a few sentences."""
    count = len(found.rows)
    if found.worth is None:
        return f"{count:,} rows, ranked by how little their label fits what the model has learned."
    if found.expected is None:
        return (
            f"{count:,} rows were ranked, but on the trusted rows the ranking is hardly better than chance. Either the "
            "columns say too little about the label, or there are too few trusted rows."
        )
    wrong = found.expected[0]
    disputed = rows_in_words(int(found.disputed.sum()))
    differs = f"The suggested label differs from the given one in {disputed}. "
    if not wrong:
        return (
            f"Of {count:,} rows, hardly any seems to have a wrong label ({_between(found)}). {differs}On the trusted "
            "rows about as many suggestions are wrong, so this alone is no sign of wrong labels."
        )
    twice = min(2 * wrong, count)
    first, second = (_found(found, found.worth, looked, " and ") for looked in (wrong, twice))
    return (
        f"Of {count:,} rows, about <b>{_rounded(wrong)}</b> seem to have a wrong label ({_between(found)}). "
        f"The {_rounded(wrong)} most suspicious rows should contain between {first} of them, "
        f"the {_rounded(twice)} most suspicious between {second}. {differs}"
        "This count need not match the estimate: some suggestions are wrong, and some wrong labels get no other "
        f"suggestion. The estimate of {_rounded(wrong)} corrects for both."
    )


def _found(found: Findings, worth: Worth, looked: int, between: str = " to ") -> str:
    """Return the smallest and the largest share of the wrong labels that is in the first rows."""
    wrong, _, _ = found.expected or (0, 0, 0)
    return _outwards(worth.found_interval(looked / len(found.rows), wrong), between)


def _outwards(interval: tuple[float, float], between: str = " to ") -> str:
    """Round the ends so that no digit promises more than the interval."""
    low, high = interval
    return f"{floor(100 * low + 1e-9)}%{between}{ceil(100 * high - 1e-9)}%"


def _template(name: str) -> Template:
    return Template((files("bilevel.cleaning.report") / name).read_text(encoding="utf-8"))


def _between(found: Findings) -> str:
    _, least, most = found.expected or (0, 0, 0)
    return f"{least / len(found.rows):.0%} to {most / len(found.rows):.0%}"


def _rounded(count: int) -> str:
    return f"{int(float(f'{count:.2g}')):,}"


def _cards(found: Findings) -> dict[str, str]:
    small = lambda value, note: f"{value}<small>{note}</small>"
    cards = {
        "rows judged": small(f"{len(found.rows):,}", f"{len(found.classes)} labels"),
        "trusted rows": f"{found.trusted:,}",
        "columns used": small(len(found.telling), f"of {len(found.encoding.columns)}"),
        "suggestion differs": small(f"{int(found.disputed.sum()):,}", "rows"),
    }
    if found.worth:
        low, high = found.worth.interval()
        cards["ROC-AUC, cross-validated"] = small(f"{found.worth.area():.3f}", f"{low:.2f} to {high:.2f}")
    if found.expected:
        cards["wrong labels, estimated"] = small(_rounded(found.expected[0]), _between(found))
    return cards


def _rows(found: Findings, order: np.ndarray) -> str:
    # Columns that identify a row for a person: identifiers and free text.
    unused = [column for column in found.encoding.columns if not column.parts]
    names = [column.name for column in unused if "identifier" in column.treatment][:NAMES]
    return "\n".join(_row(found, i, names) for i in order.tolist())


def _more(found: Findings, order: np.ndarray) -> str:
    if not len(order):
        return ""
    table = f'<table class="rows"><tbody>{_rows(found, order)}</tbody></table>'
    return f"<details><summary>The next {len(order)}</summary>{table}</details>"


def _row(found: Findings, i: int, names: list[str]) -> str:
    given, new = text(found.classes[found.given[i]]), text(found.classes[found.suggested[i]])
    swap, sure = f'{given} <span class="quiet">stays, ', f"{found.sureness[i]:.0%}</span>"
    if found.disputed[i]:
        swap = f'<span class="given">{given}</span> → <span class="new">{new}</span> <span class="quiet">'
    row, cells = found.table.rows[found.rows[i]], ""
    for name in (*names, *found.telling[:CELLS]):
        cell = row[found.table.index(name)]
        shown = text(cell, 32) if cell.strip() else "<i>missing</i>"
        cells += f"<span><i>{text(name, 24)}</i> {shown}</span>"
    left = len(found.telling) - CELLS
    if left > 0:
        cells += f'<span class="quiet">… and {left} more {plural("column", left)}</span>'
    return (
        f'<tr><td class="n" data-label="row">{found.rows[i] + 1:,}</td><td class="swap">{swap}{sure}</td>'
        f'<td class="n" data-label="suspicion">{found.suspicion[i]:.3f}{_bar(float(found.suspicion[i]))}</td>'
        f'<td class="n" data-label="weight">{found.weights[i]:.2f}</td><td class="cells">{cells}</td></tr>'
    )


def _bar(share: float) -> str:
    return f'<span class="bar"><b style="width:{100 * share:.0f}%"></b></span>'


def _swaps(found: Findings) -> str:
    given, suggested = found.given[found.disputed].tolist(), found.suggested[found.disputed].tolist()
    pairs = Counter(zip(given, suggested, strict=True)).most_common()
    if not pairs:
        return "<p>The suggested label is the given one in every row.</p>"
    most = pairs[0][1]
    rows = "".join(
        f"<tr><td>{text(found.classes[a])} → <b>{text(found.classes[b])}</b></td>"
        f'<td class="n">{count:,}</td><td style="width:50%">{_bar(count / most)}</td></tr>'
        for (a, b), count in pairs[:SWAPS]
    )
    which = f"the {SWAPS} most frequent of {len(pairs)} pairs" if len(pairs) > SWAPS else "by frequency"
    return (
        f"<p>Rows whose suggested label differs from the given one, {which}.</p><table><thead><tr>"
        f'<th>given → suggested</th><th class="n">rows</th><th></th></tr></thead><tbody>{rows}</tbody></table>'
    )


def _worth(found: Findings, worth: Worth) -> str:
    wrong, _, _ = found.expected or (0, 0, 0)
    first, second = worth.suspicion[~worth.wrong], worth.suspicion[worth.wrong]
    both = f"Suspicion of {len(first)} trusted rows with their label and of {len(second)} with a wrong one"
    looked = "rows looked at, the most suspicious first"
    low, high = worth.interval()
    part = lambda change: f"{worth.area(change):.3f}" if (worth.change == change).any() else "–"
    return _template("evaluation.html").substitute(
        wrong=len(second),
        right=len(first),
        rows=f"{len(found.rows):,}",
        apart=charts.beside(first, second, "suspicion", both),
        review=charts.curve(*worth.found_curve(), looked, "Wrong labels found"),
        area=f"{worth.area():.3f}",
        low=f"{low:.3f}",
        high=f"{high:.3f}",
        evenly=part(EVENLY),
        lookalike=part(LOOKALIKE),
        suggested=f"{worth.suggested:.0%}",
        suggested_ends=_outwards(worth.suggested_interval()),
        found=_found(found, worth, wrong) if wrong else "–",
        expected=_rounded(wrong) if found.expected else "–",
        between=_between(found) if found.expected else "nothing can be said",
    )


def _column(column: Column) -> str:
    quiet = "" if column.parts else ' class="quiet"'
    return (
        f"<tr><td>{text(column.name)}</td><td{quiet}>{column.kind}</td>"
        f'<td class="n">{len(column.parts) or "–"}</td>'
        f'<td class="quiet">{text(column.treatment or "as it is", SENTENCE)}</td></tr>'
    )
