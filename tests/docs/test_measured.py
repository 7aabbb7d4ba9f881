"""Every table of numbers on a page is a file that a command wrote, or a test computes it."""

import argparse
import sys
from pathlib import Path

import measured
import pytest
from measured import INCLUDED, MEASURED, Table, records, tables
from pages import ROOT, Part, differs
from record import made_by, options
from running import run
from test_documented import PAGES

import recorded
from bilevel.applications import MODULES, application
from bilevel.applications.table import as_markdown

# Tables in the text of a page, by their heads, and the test that computes their numbers.
COSTS = "method | gradients of f | gradients of g | Hessian products | cross products"
TESTED: dict[str, dict[str, str]] = {
    "README.md": {"method | operations per step | converges to": "tests/solvers/test_cost.py"},
    "docs/concepts/methods-stochastic.md": {COSTS: "tests/docs/test_counts.py"},
    "docs/concepts/methods-unrolled-and-first-order.md": {f"{COSTS} | memory": "tests/docs/test_counts.py"},
    "docs/concepts/methods.md": {f"{COSTS} | memory": "tests/docs/test_counts.py"},
    "docs/how-to/constraints.md": {
        r"inner problem | c | largest c\|y\| | P held fixed | without the decay | cI in the place of c/P": (
            "tests/solvers/test_preconditioner_error.py"
        )
    },
    "docs/how-to/large-models.md": {
        "step | state | work, in forward passes over one batch": "tests/docs/test_counts.py"
    },
    "docs/how-to/minibatches.md": {"method | draws a step | default": "tests/docs/test_counts.py"},
    "docs/theory/index.md": {
        "module | what it is | order for AID | inherent error of ITD": "tests/theory/certificates/test_paper_slips.py"
    },
    "docs/theory/kappa4.md": {
        r"analysis | $\beta$ | measured mean | bound": "tests/theory/certificates/test_kappa4.py",
    },
    "docs/theory/limit.md": {
        r"$\kappa$ | 1 | 1.5 | 2 | 5 | 10 | 100 | 1000 | largest": "tests/theory/certificates/test_limit.py"
    },
    "docs/theory/momentum.md": {
        r"steps on $y$ and $v$ | $\alpha=\eta$ | $m$ | lag $\mu\Gamma$ | certified $\beta$, large $\kappa$": (
            "tests/theory/certificates/test_momentum.py"
        )
    },
    "docs/theory/sharp.md": {
        r"$\kappa$ | 1.5 | 2 | 5 | 10 | 20": "tests/theory/certificates/test_exact_gains.py"
    },
    "docs/theory/star.md": {r"$\kappa$ | 1 | 2 | 10 | 100 | 1000": "tests/theory/certificates/test_star.py"},
}

# What a script needs beyond the extra `test`.
TORCH = ("peers_torch", "ported", "torch_steps")  # tests/docs/test_torch_pages.py runs them
NEEDS = {"worst_case": ("cvxpy", "clarabel")}


def scripts() -> dict[str, list[measured.Record]]:
    """Return the records on the pages by the benchmark that wrote them."""
    found: dict[str, list[measured.Record]] = {}
    for record in records():
        if record.command[2]:
            found.setdefault(record.command[2], []).append(record)
    return found


def test_what_was_measured_is_shown_and_what_is_shown_was_measured():
    shown = {
        (ROOT / page).parent.joinpath(name).resolve()
        for page in PAGES
        for name in INCLUDED.findall((ROOT / page).read_text())
    }
    assert {path for path in shown if path.parent == MEASURED} == {record.path for record in records()}


@pytest.mark.parametrize("page", PAGES)
def test_a_table_of_numbers_is_a_file_that_a_command_wrote_or_has_a_test(page):
    if page.endswith(".ipynb"):
        pytest.skip("a notebook is run as a whole")
    found = {" | ".join(each.head) for each in tables((ROOT / page).read_text()) if each.measured}
    assert found == set(TESTED.get(page, {}))
    for test in TESTED.get(page, {}).values():
        assert page.rpartition("/")[2] in (ROOT / test).read_text(), f"{test} does not read {page}"


def test_no_page_shows_a_quick_run():
    assert [record.path.name for record in records() if "--quick" in record.command[1]] == []


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path, capsys):
    parser = argparse.ArgumentParser()
    options(parser)
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        parser.parse_args(["--record", str(tmp_path / "file")])
    assert "cannot write into" in capsys.readouterr().err
    assert parser.parse_args(["--record", str(tmp_path / "new")]).record == tmp_path / "new"


@pytest.mark.parametrize("given", [["--record", "folder"], ["--record=folder"]])
def test_the_command_below_a_table_has_no_folder_and_says_that_it_was_quick(given, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["growth.py", *given, "--quick", "--most", "2"])
    assert made_by().startswith("*`python benchmarks/growth.py --quick --most 2`, ")


@pytest.mark.parametrize("record", records(), ids=lambda record: record.path.stem)
def test_no_column_of_a_record_is_empty(record):
    """A command fills every column that it has, so an empty column was copied from another file."""
    for table in record.tables:
        empty = [
            head
            for head, *cells in zip(table.head, *table.rows, strict=True)
            if not any(map(str.strip, cells))
        ]
        assert not empty, f"{record.path.name} has nothing below {empty}"


@pytest.mark.parametrize(
    "cell", ["÷ 4.5", "1.2e5", "κ = 6", "> 40,000", "≥ 3", "2.0–2.7", "0.3 ± 0.1", "12 ms", "3.8e-3 (4.0 ×)"]
)
def test_what_counts_as_a_number_in_a_table(cell):
    assert Table(("", ""), (("row", cell),)).measured


@pytest.mark.parametrize("cell", ["–", "Theorem 5.9", "2N", "`n = 3`", "settle"])
def test_what_does_not(cell):
    assert not Table(("", ""), (("row", cell),)).measured


def check_rows(new: Table, kept: Table, what: str, repeatable: bool) -> None:
    """Raise unless the new rows have known names and, in a repeatable table, the same numbers."""
    assert new.head == kept.head, what
    for row in new.rows:
        if repeatable:
            assert any(not differs(" | ".join(one), " | ".join(row)) for one in kept.rows), (
                f"{what} has no {row}"
            )
        else:
            assert row[0] in kept.names, f"{what} has no row {row[0]!r}"


def check_benchmark(script: str, where: Path) -> None:
    """Run a benchmark quickly; raise unless it writes the tables on the pages, with known rows."""
    path = ROOT / "benchmarks" / f"{script}.py"
    program = (
        f"import runpy, sys; sys.path[:0] = {sys.path!r}; runpy.run_path({str(path)!r}, run_name='__main__')"
    )
    run([Part("python", program)], where, str(path), ("--quick", "--record", str(where)))
    for record in scripts()[script]:
        new = measured.Record(where / record.path.name)
        assert new.repeatable == record.repeatable, (
            f"{record.path.name} is checked otherwise than it is written"
        )
        for ours, kept in zip(new.tables, record.tables, strict=True):
            check_rows(ours, kept, record.path.name, record.repeatable)


@pytest.mark.slow
@pytest.mark.parametrize("script", [script for script in scripts() if script not in TORCH])
def test_a_benchmark_still_writes_what_pages_show_of_it(script, tmp_path):
    for module in NEEDS.get(script, ()):
        pytest.importorskip(module)
    check_benchmark(script, tmp_path)


@pytest.mark.parametrize("name", MODULES)
def test_the_table_of_an_application_is_that_of_its_scores(name):
    page, outcomes = (MEASURED / f"{name}.md").read_text(), recorded.outcomes(name)
    assert list(outcomes) == ["0", "1", "2"]
    assert page.startswith(as_markdown(application(name), list(outcomes.values())) + "\n\n*`bilevel examples")
    assert f"`bilevel examples {name} --seeds 3`" in page
