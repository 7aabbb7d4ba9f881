"""The page on other libraries: its code equals the files, its tables equal the evidence, and all answers are right."""

import importlib
import re
import warnings

import numpy as np
import pytest
import side_by_side
from elsewhere import features, problem
from pages import ROOT, blocks

PAGE = "docs/how-to/elsewhere.md"
FILES = sorted((ROOT / "benchmarks" / "elsewhere").glob("*.py"))
TEXT = (ROOT / PAGE).read_text()
THEIRS = [entry for entry in side_by_side.ENTRIES if entry.module != "ours"]


def test_every_block_is_that_of_a_file():
    sources = [path.read_text() for path in FILES]
    ours_to_run = r"^(import bilevel as bl|import jax, .*|jax\.config.*|print\(.*)\n+"
    for block in blocks(PAGE, "python", "py"):
        kept = re.sub(ours_to_run, "", block.code, flags=re.MULTILINE).strip()
        assert any(kept in source for source in sources), block.code


@pytest.mark.parametrize("entry", THEIRS, ids=lambda entry: entry.library)
def test_every_library_is_shown_whole(entry):
    source = (side_by_side.FOLDER / f"{entry.module}.py").read_text()
    code = source.split('"""', 2)[2].strip()
    assert code in [block.code.strip() for block in blocks(PAGE, "py")]
    assert entry.lines <= 25


@pytest.mark.parametrize("name", ["computes", "runs", "project"])
def test_a_table_is_that_of_its_evidence(name):
    assert all(features.table(name, half) in TEXT for half in features.HALVES)


def test_every_cell_has_its_evidence_and_every_library_its_row():
    cells = features.cells()
    assert all(cell["cell"] and cell["evidence"] for cell in cells)
    libraries = {cell["library"] for cell in cells}
    assert libraries == {"bilevel", *(entry.library for entry in THEIRS)} == {*sum(features.HALVES, ())}
    assert len(cells) == len(libraries) * len({cell["feature"] for cell in cells})


def test_versions_are_those_that_the_extra_pins():
    pinned = dict(re.findall(r'"([a-z]+)==([0-9.]+)', (ROOT / "pyproject.toml").read_text()))
    seen = {c["library"].lower(): c["cell"] for c in features.cells() if c["feature"] == "version looked at"}
    assert {name: seen[name] for name in ("jaxopt", "optimistix", "torchopt", "higher")} == {
        name: pinned[name] for name in ("jaxopt", "optimistix", "torchopt", "higher")
    }
    assert (seen["pytorch"], seen["bilevel"]) == (pinned["torch"], side_by_side.bilevel.__version__)


def test_the_closed_form_is_the_slope_of_the_value():
    x, direction = np.linspace(-1, 1, 5), np.array([0.3, -1.0, 0.2, 0.7, -0.4])
    ahead, behind = (problem.value(x + h * direction) for h in (1e-5, -1e-5))
    assert np.isclose((ahead - behind) / 2e-5, problem.hypergradient(x) @ direction, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("entry", side_by_side.ENTRIES, ids=lambda entry: entry.library)
def test_an_answer_is_right(entry):
    try:
        with warnings.catch_warnings():  # we cannot fix theirs
            warnings.simplefilter("ignore")
            importlib.import_module(f"elsewhere.{entry.module}")
    except ImportError as error:
        pytest.skip(f"{entry.library} is not installed: {error}")
    assert side_by_side.judged(entry).right
