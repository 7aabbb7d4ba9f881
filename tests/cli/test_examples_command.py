"""`bilevel examples`, as a user types it, on an application that takes no time."""

import ast
import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bilevel import applications
from bilevel.applications import MODULES, Application, Outcome
from bilevel.cli import app, examples
from bilevel.data.files import DataError
from bilevel.loop.errors import RunError


def trial(seed, steps, progress):
    return Outcome({"ours": {"loss": seed / steps}, "theirs": {"loss": 2.0}}, seen=seed)


def draw(figure, outcomes):
    figure.add_subplot().plot([outcome.seen for outcome in outcomes])


@pytest.fixture
def command(monkeypatch, tmp_path):
    """A call of it; `trial` may be another one."""

    def call(*words, trial=trial):
        made = Application(
            "reweighting", "for nothing", lambda seed: None, 10, trial, draw, source="Made up."
        )
        monkeypatch.setattr(examples, "application", lambda name: made)
        return CliRunner().invoke(app, ["examples", *words, "--out", str(tmp_path / "out")])

    return call


@pytest.mark.slow
def test_a_run_leaves_a_table_scores_and_a_picture(command, tmp_path):
    result = command("reweighting", "--seeds", "3")
    assert result.exit_code == 0, result.output
    assert "0.100 ± 0.100" in result.stdout
    rows = list(csv.DictReader((tmp_path / "out/reweighting.csv").read_text().splitlines()))
    assert [float(row["value"]) for row in rows if row["method"] == "ours"] == [0, 0.1, 0.2]
    page = (tmp_path / "out/reweighting.md").read_text()
    assert "| ours | **0.100 ± 0.100** |" in page
    assert "\n\n*`bilevel examples reweighting --seeds 3`, 20" in page
    assert page.endswith(". Data: Made up.*\n")
    assert (tmp_path / "out/reweighting.png").read_bytes().startswith(b"\x89PNG")


def test_the_number_of_steps_is_handed_on(command):
    assert " 0.250 ± 0.354 " in command("reweighting", "--seeds", "2", "--steps", "2").stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["cooking"], "no example 'cooking': take one of"),
        (["reweighting", "--seeds", "0"], "--seeds must be from 1 to 1000, not 0"),
        (["reweighting", "--steps", "0"], "--steps must be from 1 to"),
        (["reweighting", "--steps", "few"], "'--steps'"),
        (["reweighting", "--steps", "9" * 30], "--steps must be from 1 to"),
        (["./mine.py"], "your own goes by module:APPLICATION"),
        (["there_is_no_such:APPLICATION"], "there is no module 'there_is_no_such'"),
        (["json:loads"], "json:loads is no bilevel.applications.Application"),
        (["--source"], "say which example"),
        (["--seeds", "3"], "say which example"),
    ],
)
def test_bad_values_get_one_line(command, words, complaint):
    result = command(*words)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_trial_says_that_it_is_one_and_replaces_no_table(command, tmp_path):
    assert command("reweighting").exit_code == 0
    before = (tmp_path / "out/reweighting.md").read_text()
    result = command("reweighting", "--steps", "2")
    said = "A trial of 2 steps, not 10; baselines are cut short alike, so these are no results."
    assert said in " ".join(result.stdout.split())
    assert said in (tmp_path / "out/reweighting-2-steps.md").read_text()
    assert (tmp_path / "out/reweighting.md").read_text() == before
    assert "A trial" not in before


def test_one_s_own_application(monkeypatch, tmp_path):
    (tmp_path / "mine_13.py").write_text(
        "from bilevel.applications import Application, Outcome\n"
        "trial = lambda seed, steps, progress: Outcome({'mine': {'loss': 0.125 * steps}})\n"
        "draw = lambda figure, outcomes: None\n"
        "APPLICATION = Application('mine', 'my own', lambda seed: None, 3, trial, draw)\n"
    )
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["examples", "mine_13:APPLICATION"])
    assert result.exit_code == 0, result.output
    assert "0.375" in result.stdout
    assert (tmp_path / "results/mine.png").exists()


def test_a_seed_that_diverges_is_no_score(command, tmp_path):
    def broken(seed, steps, progress):
        raise RunError("diverged: y became infinite at step 3", None)

    result = command("reweighting", trial=broken)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "bilevel: seed 0 has no score: diverged: y became infinite at step 3\n"
    assert not (tmp_path / "out/reweighting.csv").exists()


@pytest.mark.parametrize("name", [*MODULES.values(), "parts"])
def test_no_run_that_was_interrupted_is_scored(name):
    """`bl.run` turns Ctrl-C into a status: `check` raises it again, also in `run_all` of the shared parts."""
    source = Path(applications.__file__).with_name(f"{name}.py")
    nodes = list(ast.walk(ast.parse(source.read_text(encoding="utf-8"))))
    called = [node for node in nodes if isinstance(node, ast.Call)]
    calls = [node for node in called if ast.unparse(node.func) == "bl.run"]
    checked = [node.value for node in nodes if isinstance(node, ast.Attribute) and node.attr == "check"]
    assert calls or any(ast.unparse(node.func) == "run_all" for node in called)
    assert set(calls) <= set(checked)


def test_data_that_are_not_there(command):
    def missing(seed, steps, progress):
        raise DataError("nothing at /nowhere: download it")

    result = command("reweighting", trial=missing)
    assert (result.exit_code, result.stderr) == (2, "bilevel: nothing at /nowhere: download it\n")


def test_a_run_that_is_stopped_keeps_its_scores(command, tmp_path):
    def stopped(seed, steps, progress):
        if seed == 1:
            raise KeyboardInterrupt
        return trial(seed, steps, progress)

    result = command("reweighting", "--seeds", "3", trial=stopped)
    assert result.exit_code == 130
    assert "scores of 1 of 3 seeds are in" in result.stderr
    assert len((tmp_path / "out/reweighting.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize("name", MODULES)
def test_the_source_is_shown(name):
    result = CliRunner().invoke(app, ["examples", name, "--source"])
    assert result.exit_code == 0
    assert result.stdout.startswith('"""')
    assert "APPLICATION = Application(" in result.stdout


def test_the_list_has_every_one():
    result = CliRunner().invoke(app, ["examples"])
    assert result.exit_code == 0
    assert all(f"bilevel examples {name}" in result.stdout for name in MODULES)
