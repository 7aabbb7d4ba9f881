"""`bilevel compare` with a method and a task of one's own, as a user in some folder types it."""

import csv
import sys

import pytest
import typer
from matplotlib.figure import Figure
from typer.testing import CliRunner

from bilevel.cli.compare import compare
from bilevel.lab.compare import METHODS, Curve, Method, Point
from bilevel.lab.compare.methods import YOURS
from bilevel.lab.compare.plot import draw, looks
from bilevel.lab.compare.tasks import quadratic_task

MINE = """
import bilevel as bl
from bilevel.lab.compare import Method
from bilevel.problems import Instance

def cautious(problem, L, outer):
    return bl.aid(problem, inner=0.5 / L, adjoint=0.5 / L, outer=outer)

named = Method("AID, cautious", "mine and only mine", cautious)
stolen = Method("AID", "implicit differentiation", cautious)
q = bl.problems.quadratic(kappa=2.0)

def tiny():
    return Instance("tiny", q.problem, q.instance().x0, q.instance().y0, L=q.L, measure=q.instance().measure)

blind = Instance("blind", q.problem, q.instance().x0, q.instance().y0)
wrong = lambda problem, L, outer: "a solver"
number = 3
"""


@pytest.fixture
def call(tmp_path, monkeypatch):
    app = typer.Typer()
    app.command()(compare)
    app.callback()(lambda: None)
    (tmp_path / "mine_for_compare.py").write_text(MINE)
    (tmp_path / "broken_for_compare.py").write_text("import no_such_library")
    monkeypatch.chdir(tmp_path)
    yield lambda *arguments: CliRunner().invoke(app, ["compare", *arguments])
    for name in ("mine_for_compare", "broken_for_compare"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_a_method_and_a_task_of_ones_own(call, tmp_path, monkeypatch):
    monkeypatch.setattr("bilevel.lab.compare.METHODS", [m for m in METHODS if m.name in ("AID", "ITD")])
    mine = "mine_for_compare"
    result = call(
        "--task", f"{mine}:tiny", "--method", f"{mine}:cautious", "--method", f"{mine}:named", "--quick"
    )
    assert result.exit_code == 0, result.output
    with (tmp_path / "results" / "compare.csv").open() as file:
        last = {row["method"]: row for row in csv.DictReader(file)}
    assert {row["task"] for row in last.values()} == {"tiny"}
    assert {name: row["family"] for name, row in last.items() if name not in ("AID", "ITD")} == {
        "cautious": YOURS,
        "AID, cautious": "mine and only mine",
    }
    assert float(last["cautious"]["value"]) < 1e-12 < float(last["ITD"]["value"])
    for name in ("cautious", "AID, cautious"):  # counted along the run or once and for all: the same
        assert (last[name]["gradients"], last[name]["products"]) == (
            last["AID"]["gradients"],
            last["AID"]["products"],
        )
    assert (tmp_path / "results" / "compare.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "nowhere:f"], "--method nowhere:f: there is no module 'nowhere'"),
        (["--method", "mine_for_compare"], "--method mine_for_compare: not of the form module:name"),
        (
            ["--method", "mine_for_compare:lost"],
            "mine_for_compare has no 'lost': it has bl, Method, Instance",
        ),
        (["--method", "mine_for_compare:number"], "an object of type int is not a method"),
        (["--method", "mine_for_compare:tiny"], "tiny() is not a method"),
        (["--method", "mine_for_compare:wrong"], "must make a solver, but made a str"),
        (["--method", "mine_for_compare:stolen"], "two methods named 'AID': give yours another name"),
        (["--method", "broken_for_compare:f"], "importing broken_for_compare failed: ModuleNotFoundError"),
        (["--task", "mine_for_compare:cautious"], "cautious(problem, L, outer) is not a task"),
        (["--task", "mine_for_compare:blind"], "the instance 'blind' has no yardstick: give it measure="),
        (["--task", "mine_for_compare:tiny", "--out", "mine_for_compare.py"], "cannot write into"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_status_2(call, tmp_path, arguments, message):
    before = set(tmp_path.rglob("*"))
    result = call("quadratic", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert {path for path in tmp_path.rglob("*") if "__pycache__" not in str(path)} <= before


def test_the_figure_draws_methods_it_has_never_heard_of():
    strangers = [
        Method(f"stranger {i}", family, METHODS[0].make) for i, family in enumerate(["?", YOURS, "!"])
    ]
    points = [Point(1, 1, 1, 0.1, 1.0), Point(2, 2, 2, 0.2, 0.5)]
    task = quadratic_task(quick=True)
    curves = [Curve(method, 1.0, points) for method in [METHODS[0], *strangers]]
    assert isinstance(draw({task.name: (task, curves)}), Figure)
    styles = looks([*METHODS, *strangers])
    assert len({str(style) for style in styles.values()}) == len(METHODS) + 3
    assert looks([METHODS[5]])[METHODS[5].name] == styles[METHODS[5].name]  # whoever else is there
