"""What a result and a sweep say of themselves, as text and in a notebook."""

import csv
import io
import json
import re
import sys
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

import bilevel as bl
from bilevel.cli.screen import print_table
from bilevel.loop.diagnose.report import Diagnosis, Finding
from bilevel.loop.hooks.drawing import View
from bilevel.loop.status import Status
from bilevel.loop.summary import lane_names

X0, Y0 = jnp.ones(2), jnp.zeros(2)


@pytest.fixture(scope="module")
def result(q):
    aid = bl.aid(q.problem, inner=0.1, adjoint=0.1, outer=0.1)
    return bl.run(aid, X0, Y0, steps=1200, record=lambda state, info: {"x": state.x})


def rows(text: str) -> dict[str, str]:
    """By the name at the left; lines further in go on with the one above."""
    found, name = {}, ""
    for line in text.splitlines()[1:]:
        if line[2] != " ":
            name, _, rest = line.strip().partition("  ")
            found[name] = rest.strip()
        else:
            found[name] += f" {line.strip()}"
    return found


def test_a_result_prints_how_it_ended_and_where_its_numbers_went(result):
    text = str(result)
    assert text.startswith(f"completed after 1,200 steps, {result.seconds:.1f} s\n")
    said, value = rows(text), result.trace["outer_value"]
    assert said["outer value"].startswith(f"{value[0]:.4g} → {value[-1]:.4g}")
    assert (said["x"], said["y"], said["also traced"]) == ("float64[2]", "float64[2]", "x")
    assert said["status"] == result.status.message
    assert max(map(len, text.splitlines())) <= 88


@pytest.mark.parametrize(
    ("name", "column", "said"),
    [
        ("outer_value", [3.0], "3"),
        ("outer_value", [3.0, 1.0, 9.0, 2.0], "3 → 2, lowest 1"),
        ("outer/accuracy", [0.5, 0.9, 0.7], "0.5 → 0.7, highest 0.9"),
        ("outer_value", [2.0, np.nan, 1.0], "2 → 1, not finite in 1 of 3 rows"),
        ("outer/hits", [True, False], "1 → 0"),
    ],
)
def test_the_course_of_a_column(result, name, column, said):
    changed = replace(result, trace={name: np.array(column)})
    assert rows(str(changed))[name.replace("_", " ") if "/" not in name else name] == said


def test_trees_are_told_by_their_arrays_and_long_lists_are_cut(result):
    tree = {f"layer{i}": {"w": np.zeros((3, 4), np.float32)} for i in range(20)}
    trace = {f"outer/m{i}": np.arange(3.0) for i in range(30)}
    said = rows(str(replace(result, x=tree, trace=trace, halvings=((7, 0.5, 1.0), (9, 0.5, 0.5)))))
    assert said["x"].startswith("240 numbers: layer0.w float32[3, 4], ")
    assert said["x"].endswith("… 12 more arrays")
    assert said["also traced"].split(", ")[-1] == "outer/m29"
    assert said["step sizes"] == "cut at step 7, 9"


def test_a_name_that_breaks_lines_or_gives_orders_is_shown_with_escapes(result, tmp_path):
    """In what is printed and drawn; files keep it as it is."""
    name, seen = "outer/a\nb\x1b[2J\u2028c\ud800", r"outer/a\nb\x1b[2J\u2028c\ud800"
    trace = {"outer_value": np.array([3.0, 2.0]), name: np.array([1.0, 4.0])}
    odd = replace(result, trace=trace | {name + "s": [0]}, probes={"step": np.ones(1), name: np.ones(1)})
    said = rows(str(odd))
    assert (said[seen], said["also traced"], said["probed"]) == ("1 → 4", seen + "s", seen)
    screen = Console(file=io.StringIO(), force_terminal=True, width=80, height=20, color_system=None)
    live = bl.hooks.Live(console=screen)
    csv_file, json_lines = bl.hooks.CSV(tmp_path / "a.csv"), bl.hooks.JSONLines(tmp_path / "a.jsonl")
    for hook in (live, csv_file, json_lines):
        hook.begin(bl.hooks.Event(0, 2, result.run, None, {}, 0.0, "AID"))
        hook(bl.hooks.Event(2, 2, result.run, None, trace, 1.0, "AID"))
        hook.end(odd)
    lines = Text.from_ansi(screen.file.getvalue()).plain.splitlines()
    assert any(re.match(r"outer/a\\nb\\x1b\S*\s+4 ", line) for line in lines)
    with open(tmp_path / "a.csv", newline="", encoding="utf-8") as file:
        assert list(csv.DictReader(file))[1][name.replace("\ud800", r"\ud800")] == "4.0"
    second = (tmp_path / "a.jsonl").read_text().splitlines()[1]
    assert json.loads(second) == {"step": 1, "outer_value": 2.0, name: 4.0}


def test_a_run_without_a_step_prints(result):
    empty = replace(result, steps=0, trace={}, status=Status(bl.Code.INTERRUPTED, "at once"))
    assert str(empty).startswith("interrupted after 0 steps")
    assert rows(str(empty))["status"] == "at once"


def test_in_a_notebook_it_is_a_table_in_which_nothing_of_the_user_s_is_markup(result):
    nasty = replace(
        result, trace={"<script>alert(1)</script>": np.ones(2)}, status=Status(bl.Code.STOPPED, "a<b & c")
    )
    html = nasty._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "a&lt;b &amp; c" in html
    assert html.count("<tr>") == html.count("</tr>") == 4


@pytest.mark.slow
def test_a_sweep_prints_its_lanes_from_the_best_to_those_that_diverged(q):
    betas = [1e30, *np.geomspace(1e-3, 0.1, 11)]
    found = bl.sweep(
        [bl.aid(q.problem, inner=0.1, adjoint=0.1, outer=float(beta)) for beta in betas], X0, Y0, steps=20
    )
    text = str(found)
    assert text.startswith("Sweep of 12 lanes, 1 diverged, ")
    order = sorted(range(1, 12), key=lambda i: found.scores[i])
    names = [f"outer {betas[i]:.4g}" for i in order[:8]]
    assert list(rows(text))[:8] == [f"best: {names[0]}", *names[1:]]
    assert rows(text)[names[3]] == f"outer_value {found.scores[order[3]]:.6g}, completed after 20 steps"
    assert rows(text)["…"] == "4 more lanes, the last of them outer 1e+30: no score"
    assert found._repr_html_().count("<tr>") == 9


def test_lanes_are_named_by_what_was_given_to_their_solvers(q):
    heavy = lambda rate: optax.inject_hyperparams(optax.sgd)(rate, momentum=0.5)
    solvers = [
        bl.aid(q.problem, inner=0.1, adjoint=eta, outer=heavy(rate))
        for eta, rate in ((0.1, 1e-3), (0.2, 1e-2))
    ]
    names = lane_names(bl.sweep(solvers, X0, Y0, steps=2))
    assert names == ["adjoint 0.1, outer.learning_rate 0.001", "adjoint 0.2, outer.learning_rate 0.01"]


@pytest.mark.slow
def test_lanes_that_differ_in_no_number_of_their_solvers_are_numbered(q):
    found = bl.sweep(bl.aid(q.problem, inner=0.1, adjoint=0.1, outer=0.1), X0, Y0, steps=2, seeds=[4, 5])
    assert list(rows(str(found))) == ["best: lane 0", "lane 1"]


def test_a_table_of_a_command_is_whole_on_a_narrow_terminal(monkeypatch, capsys):
    table = Table("method", "a bound of its own")
    table.add_row("one of a long name", "1.2345678e-12")
    monkeypatch.setenv("COLUMNS", "20")
    print_table(table)
    shown = capsys.readouterr().out
    assert "one of a long name │ 1.2345678e-12 " in shown
    assert "…" not in shown


def test_a_bar_has_the_letters_of_its_stream():
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), force_terminal=True, width=120)
    console.print(View("AID", 1, 2, 1.0, 5.0, numbers="f 3  ‖∇Φ‖≈2"))
    console.file.seek(0)
    assert "f 3  |grad Phi|~2" in Text.from_ansi(console.file.read()).plain


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_it_can_be_printed_where_there_are_few_letters(result, monkeypatch, encoding):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    finding = Finding("flat", "‖∇_y f‖ ≈ 1, η and 日")
    said = [replace(result, diagnosis=None), Diagnosis((finding,), {"step": np.arange(0)})]
    print(*said, Status(bl.Code.COMPLETED, "κ → ∞"))
    sys.stdout.seek(0)
    text = sys.stdout.read()
    assert " -> " in text
    assert "|grad _y f| ~ 1" in text


def test_one_step_is_one_step(q):
    result = bl.run(bl.aid(q.problem, inner=0.1, adjoint=0.1, outer=0.1), X0, Y0, steps=1)
    assert "completed after 1 step, " in repr(result)
    assert "completed after 1 step, " in str(result)
