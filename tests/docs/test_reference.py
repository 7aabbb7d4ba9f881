"""The reference shows every public name, once, and functions rather than the modules they live in."""

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

import bilevel
from bilevel import solvers
from bilevel.solvers import adjoints

PAGE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
SHOWN = re.findall(r"^::: (\S+)$", PAGE, re.MULTILINE)

# Certificates of one analysis are a module of their own; their names are read as `theory.prior.aid`.
ROOMS = {
    "bilevel.theory.limit",
    "bilevel.theory.momentum",
    "bilevel.theory.prior",
    "bilevel.theory.sharp",
    "bilevel.theory.star",
    "bilevel.theory.tight",
    "bilevel.theory.recursions",
}


def reached(path: str):
    """What the path stands for: the longest module in it, and attributes from there."""
    parts = path.split(".")
    found = bilevel
    for i, part in enumerate(parts[1:], 2):
        if not hasattr(found, part):
            importlib.import_module(".".join(parts[:i]))
        found = getattr(found, part)
    return found


def public(module: ModuleType) -> dict[str, object]:
    """What a module offers: `__all__`, or what it imports by name; modules inside it are not names of their own."""
    names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    return {
        name: getattr(module, name) for name in names if not isinstance(getattr(module, name), ModuleType)
    }


@pytest.mark.parametrize(
    "module",
    [bilevel, bilevel.hooks, adjoints, bilevel.theory, bilevel.problems, bilevel.data, bilevel.plot],
    ids=lambda module: module.__name__,
)
def test_every_public_name_is_in_the_reference(module):
    shown = [reached(path) for path in SHOWN]
    missing = [name for name, value in public(module).items() if not any(value is other for other in shown)]
    assert missing == []


def test_every_state_is_in_the_reference():
    shown = {path.rpartition(".")[2] for path in SHOWN}
    folder = Path(solvers.__path__[0])
    sources = (file.read_text() for file in folder.rglob("*.py"))
    states = {name for text in sources for name in re.findall(r"^class (\w+State)\(", text, re.MULTILINE)}
    assert len(states) > 5
    assert states <= shown


def test_what_is_shown_exists_once_and_is_no_module():
    values = [reached(path) for path in SHOWN]
    assert len(set(SHOWN)) == len(SHOWN)
    assert len({id(value) for value in values}) == len(values)
    assert {path for path, value in zip(SHOWN, values, strict=True) if isinstance(value, ModuleType)} == ROOMS


def test_what_is_shown_is_documented():
    undocumented = [path for path in SHOWN if not callable(reached(path)) or not reached(path).__doc__]
    no_words = {"bilevel.data.SPACE_GA_FEATURES", "bilevel.theory.Verdict"}  # a tuple, and a choice of words
    assert set(undocumented) <= ROOMS | no_words
