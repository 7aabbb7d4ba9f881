"""The reference shows every public name, once, and functions rather than the modules they live in."""

import importlib
import re
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import bilevel
from bilevel import solvers
from bilevel.solvers import adjoints

PAGES = [page.read_text() for page in (Path(__file__).parents[2] / "docs" / "reference").glob("*.md")]
DIRECTIVE = re.compile(r"^\.\. auto(?:class|data|exception|function):: (\S+)$", re.MULTILINE)
EVERY = [name for page in PAGES for name in DIRECTIVE.findall(page)]
# Without PyTorch, names of `bilevel.torch` cannot be loaded.
SHOWN = [name for name in EVERY if find_spec("torch") or not name.startswith("bilevel.torch.")]

# Certificates of one analysis are a module of their own; their names are read as `theory.prior.aid`.
ROOMS = ["limit", "momentum", "prior", "sharp", "star", "tight", "recursions"]


def reached(path: str):
    """Return the object at this path: the longest module in it, then attributes."""
    parts = path.split(".")
    found = bilevel
    for i, part in enumerate(parts[1:], 2):
        if not hasattr(found, part):
            importlib.import_module(".".join(parts[:i]))
        found = getattr(found, part)
    return found


def public(module: ModuleType) -> dict[str, object]:
    """Return the public names of a module: `__all__`, or its names without underscores, except modules."""
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


@pytest.mark.parametrize("room", ROOMS)
def test_every_certificate_is_in_the_reference(room):
    module = getattr(bilevel.theory, room)
    own = {
        name for name, value in public(module).items() if getattr(value, "__module__", "") == module.__name__
    }
    assert own == {path.rpartition(".")[2] for path in SHOWN if path.startswith(f"bilevel.theory.{room}.")}
    assert any(f".. automodule:: {module.__name__}\n" in page for page in PAGES)  # its introduction


def test_every_estimator_is_in_the_reference():
    sklearn = pytest.importorskip("bilevel.sklearn")
    assert {f"bilevel.sklearn.{name}" for name in sklearn.__all__} <= set(SHOWN)


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
    assert not any(isinstance(value, ModuleType) for value in values)


def test_what_is_shown_is_documented():
    undocumented = [path for path in SHOWN if not callable(reached(path)) or not reached(path).__doc__]
    no_words = {"bilevel.data.SPACE_GA_FEATURES", "bilevel.theory.Verdict"}  # a tuple, and a choice of words
    assert set(undocumented) <= no_words
