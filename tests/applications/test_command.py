"""`bilevel examples`, as a user types it, on an application that takes no time."""

import csv

import pytest
from typer.testing import CliRunner

from bilevel.applications import MODULES, Application, Outcome
from bilevel.cli import app, examples
from bilevel.data.errors import DataError


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


def test_a_run_leaves_a_table_scores_and_a_picture(command, tmp_path):
    result = command("reweighting", "--seeds", "3")
    assert result.exit_code == 0, result.output
    assert "0.1 ± 0.1" in result.stdout
    rows = list(csv.DictReader((tmp_path / "out/reweighting.csv").read_text().splitlines()))
    assert [float(row["value"]) for row in rows if row["method"] == "ours"] == [0, 0.1, 0.2]
    page = (tmp_path / "out/reweighting.md").read_text()
    assert "| ours | **0.1 ± 0.1** |" in page
    assert "`bilevel examples reweighting --seeds 3`" in page
    assert (tmp_path / "out/reweighting.png").read_bytes().startswith(b"\x89PNG")


def test_the_number_of_steps_is_handed_on(command):
    assert " 0.25 " in command("reweighting", "--seeds", "2", "--steps", "2").stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["cooking"], "no example 'cooking': take one of"),
        (["reweighting", "--seeds", "0"], "--seeds must be from 1 to 1000, not 0"),
        (["reweighting", "--steps", "0"], "--steps must be from 1 to"),
        (["reweighting", "--steps", "few"], "'--steps'"),
    ],
)
def test_bad_values_get_one_line(command, words, complaint):
    result = command(*words)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


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
