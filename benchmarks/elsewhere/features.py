"""The feature tables of docs/how-to/elsewhere.md, from the file beside it that has the evidence for every cell."""

import csv
from pathlib import Path

# As many libraries side by side as a page is wide.
HALVES = (
    ("bilevel", "jaxopt", "optimistix", "TorchOpt", "Betty"),
    ("bilevel", "BOAT", "higher", "hypertorch", "PyTorch"),
)
SOURCE = Path(__file__).parents[2] / "docs" / "how-to" / "elsewhere.csv"


def cells() -> list[dict[str, str]]:
    with SOURCE.open(newline="") as file:
        return list(csv.DictReader(file))


def table(name: str, libraries: tuple[str, ...]) -> str:
    """In Markdown: a row for every feature, a column for every library."""
    rows: dict[str, dict[str, str]] = {}
    for cell in cells():
        if cell["table"] == name:
            rows.setdefault(cell["feature"], {})[cell["library"]] = cell[
                "cell"
            ]
    body = [
        [feature, *map(row.get, libraries)]
        for feature, row in rows.items()
    ]
    lines = [["", *libraries], ["---"] * (len(libraries) + 1), *body]
    return "".join(
        f"| {' | '.join(map(str, line))} |\n" for line in lines
    )
