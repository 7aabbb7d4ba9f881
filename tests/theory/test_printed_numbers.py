"""Theorems, lemmas and assumptions go by the numbers the paper prints, wherever they are named."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KINDS = "Theorem|Lemma|Assumption|Definition|Proposition|Corollary"
NUMBER = r"(?:[0-9A-Z]\.\d+|\d+)"
MENTION = re.compile(rf"({KINDS}|Corollaries)s? ({NUMBER}[a-z]?(?:(?:, | and | or | to |–){NUMBER}[a-z]?)*)")


def mentions(text):
    """(kind, number) of everything named, in lists and ranges too."""
    return {
        (kind, number) for kind, numbers in MENTION.findall(text) for number in re.findall(NUMBER, numbers)
    }


def printed():
    """(kind, number) of every row of the table in the documentation, its one range counted through."""
    table = (ROOT / "docs/theory/index.md").read_text().split("## The paper's numbers")[1]
    rows = "\n".join(row.split("|")[1] for row in table.splitlines() if row.startswith("|"))
    return mentions(rows) | {("Assumption", f"4.{i}") for i in range(2, 6)}


def test_the_table_is_read():
    assert {("Assumption", "4.2"), ("Assumption", "4.5"), ("Theorem", "5.9"), ("Lemma", "B.2")} < printed()
    assert len(printed()) == 21


def test_mentions_are_found():
    found = mentions("Lemmas 5.13 and B.1; Theorems 1 and 2; Assumptions 4.2 to 4.5; Lemma 5.1a, 5.1b")
    assert {("Lemma", "5.13"), ("Lemma", "B.1"), ("Theorem", "1"), ("Theorem", "2")} < found
    assert {("Assumption", "4.5"), ("Lemma", "5.1")} < found


@pytest.mark.parametrize("folder", ["src", "docs", "examples", "README.md", "tests"])
def test_every_number_is_one_the_paper_prints(folder):
    place = ROOT / folder
    files = (
        [place] if place.is_file() else [p for p in place.rglob("*") if p.suffix in (".py", ".md", ".html")]
    )
    wrong = {
        (str(path.relative_to(ROOT)), *mention)
        for path in files
        if path != Path(__file__)
        for mention in mentions(path.read_text()) - printed()
    }
    assert sorted(wrong) == []
