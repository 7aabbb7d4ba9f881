"""`bilevel reproduce` as a user meets it: what it refuses, what it writes, what it does not do twice."""

import pytest
import typer
from typer.testing import CliRunner

from bilevel.cli import reproduce as command
from bilevel.lab.paper import fig2


@pytest.fixture
def app():
    app = typer.Typer()
    app.command()(command.reproduce)
    app.callback()(lambda: None)
    return app


@pytest.fixture
def call(app, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BILEVEL_DATA", raising=False)
    return lambda *arguments: CliRunner().invoke(app, ["reproduce", *arguments])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["fig9"],
            "no experiment 'fig9': choose from fig1, fig2, table1, fig3-features, fig3-reweighting, fig3",
        ),
        (["fig2", "--seeds", "0"], "--seeds must be a whole number of at least 1, not '0'"),
        (["fig2", "--seeds", "few"], "--seeds must be a whole number of at least 1, not 'few'"),
        (["fig2", "--format", "bmp"], "--format must be one of png, svg, pdf, not 'bmp'"),
        (["fig3", "--data", "nowhere"], "the folder nowhere (named by directory) does not exist"),
        (["fig2", "--out", "file/below"], "cannot write into file/below"),
    ],
)
def test_bad_input_is_one_line_and_status_2(call, tmp_path, arguments, message):
    (tmp_path / "file").write_text("in the way")
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.rglob("*.csv"))


@pytest.mark.slow
def test_one_figure_with_pdf_and_then_not_again(call, tmp_path, monkeypatch):
    monkeypatch.setitem(fig2.PROTOCOL, "steps", 200)
    first = call("fig2", "--seeds", "5", "--out", "here", "--format", "pdf")
    assert first.exit_code == 0, first.output
    assert "holds" in first.stdout
    folder = tmp_path / "here"
    made = {path.name for path in folder.iterdir()}
    assert {
        "report.html",
        "report.md",
        "fig2.json",
        "fig2_kappa.csv",
        "fig2_left.pdf",
        "fig2_right.svg",
    } <= made
    tables = {path: path.read_bytes() for path in folder.glob("*.csv")}

    again = call("fig2", "--out", "here")
    assert again.exit_code == 0
    assert "already there" in again.stdout

    forced = call("fig2", "--out", "here", "--force")
    assert forced.exit_code == 0
    assert "already there" not in forced.stdout
    assert tables == {path: path.read_bytes() for path in folder.glob("*.csv")}


def test_interrupting_says_what_remains(call, monkeypatch):
    def interrupted(jobs, force, console):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_perform", interrupted)
    result = call("fig2")
    assert result.exit_code == 130
    assert "stopped; what was finished is in results" in result.stderr
