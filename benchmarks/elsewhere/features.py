"""The feature tables of docs/how-to/elsewhere.md, from the file beside it that has the evidence for every cell."""

import csv
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "docs" / "how-to" / "elsewhere.csv"


def cells() -> list[dict[str, str]]:
    with SOURCE.open(newline="") as file:
        return list(csv.DictReader(file))


def table(name: str) -> str:
    """In Markdown: a row for every feature, a column for every library."""
    mine = [cell for cell in cells() if cell["table"] == name]
    libraries = list(dict.fromkeys(cell["library"] for cell in mine))
    rows: dict[str, dict[str, str]] = {}
    for cell in mine:
        rows.setdefault(cell["feature"], {})[cell["library"]] = cell[
            "cell"
        ]
    lines = [["", *libraries], ["---"] * (len(libraries) + 1)]
    lines += [
        [feature, *(row[library] for library in libraries)]
        for feature, row in rows.items()
    ]
    return (
        "\n".join(f"| {' | '.join(line)} |" for line in lines).replace(
            "|  |", "| |"
        )
        + "\n"
    )
