"""Ceilings for the style guide: how often its words to avoid occur, and how many docstrings have no imperative.

A ceiling may only fall. `python tests/package/test_style.py` prints the present counts in the form of CEILINGS.
"""

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

import bilevel

SOURCE = Path(bilevel.__file__).parent
ROOT = SOURCE.parents[1]
TEXTS = ("README.md", "CONTRIBUTING.md", "SECURITY.md")  # and the first section of CHANGELOG.md
STEMS = "general|initial|linear|maxim|minim|normal|optim|organ|parametr|recogn|regular|serial|summar|vector"
TICS = {
    "go on": r"(?:go|goes|going|went) on",
    "anew": r"anew",
    "rests": r"rests?(?! of)|at rest|stands? still",
    "lies": r"lie|lies|lay",
    "stands": r"stands?(?![- ](?:for|in|still|out))",
    "says, told": r"says?|said|tells?|told",
    "by hand": r"by hand",
    "mend": r"mend(?:s|ed|ing)?",
    "nobody": r"nobody|somebody|whoever",
    "dear": r"dear(?:er|est)?",
    "suffice": r"suffic(?:es?|ed)",
    "but for": r"but for",
    "beside": r"besides?",
    "that of": r"(?:that|those) of",
    "of its own": r"of (?:its|his|her|their|one's|your|our) own|of (?:yours|theirs|ours)",
    "alone": r"alone",
    "what-clause": r"what (?:it|is|was|are|were|one|they|has|have|comes|came|a|the)",
    "British spelling": rf"(?:{STEMS})is(?:e[ds]?|ing|ations?)|(?:behaviour|centre|colour|favour|modelled|neighbour)s?",
}
RELATIVE = "after|as|at|before|by|for|from|how|in|of|on|that|those|to|what|when|where|whether|which|who|whose|why|with"
FIRST_WORDS = {  # of the docstring of a function
    "first word: relative": rf"(?:{RELATIVE}|without)",
    "first word: article": r"(?:a|all|an|both|each|every|it|its|no|one|some|the|these|this|two)",
}
CEILINGS = {  # in the strings and comments of src, and in the texts of the repository
    "go on": (2, 1),
    "anew": (0, 0),
    "rests": (9, 0),
    "lies": (16, 0),
    "stands": (2, 1),
    "says, told": (26, 3),
    "by hand": (2, 0),
    "mend": (0, 0),
    "nobody": (0, 0),
    "dear": (0, 0),
    "suffice": (0, 0),
    "but for": (0, 1),
    "beside": (1, 2),
    "that of": (3, 1),
    "of its own": (2, 1),
    "alone": (2, 1),
    "what-clause": (18, 6),
    "British spelling": (1, 0),
    "first word: relative": (0, 0),
    "first word: article": (0, 0),
}


@cache
def words(path: Path) -> str:
    """Return the strings and comments of a module."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    kinds = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    return "\n".join(token.string for token in tokens if token.type in kinds)


def changelog() -> str:
    """Return the section of the next version."""
    return re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1]


@cache
def first_lines() -> str:
    """Return the first lines of the docstrings of functions and methods."""
    nodes = (node for path in SOURCE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text())))
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return "\n".join(text.splitlines()[0] for text in map(ast.get_docstring, functions) if text)


@cache
def counts() -> dict[str, tuple[int, int]]:
    """Count every tic in src and in the texts of the repository."""
    source = "\n".join(map(words, SOURCE.rglob("*.py")))
    texts = "\n".join([*((ROOT / name).read_text() for name in TEXTS), changelog()])
    found = {
        name: tuple(len(re.findall(rf"\b(?:{tic})\b", text, re.IGNORECASE)) for text in (source, texts))
        for name, tic in TICS.items()
    }
    first = {
        name: (len(re.findall(rf"^{word}\b(?!\()", first_lines(), re.IGNORECASE | re.MULTILINE)), 0)
        for name, word in FIRST_WORDS.items()
    }
    return found | first


@pytest.mark.parametrize("name", TICS | FIRST_WORDS)
def test_no_count_is_above_its_ceiling(name):
    source, texts = counts()[name]
    assert source <= CEILINGS[name][0], f"{name}: {source} in src: see docs/about/style.md"
    assert texts <= CEILINGS[name][1], f"{name}: {texts} in the texts: see docs/about/style.md"


def test_the_search_finds_tics():
    tic = re.compile(TICS["British spelling"])
    assert [bool(tic.fullmatch(word)) for word in ("optimised", "initialise", "optimized", "minimal")] == [
        1,
        1,
        0,
        0,
    ]
    assert re.search(TICS["rests"], "it rests there")


if __name__ == "__main__":
    print("CEILINGS = {")
    for name, count in counts().items():
        print(f'    "{name}": {count},')
    print("}")
