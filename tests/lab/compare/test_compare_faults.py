"""`bilevel compare` when the disk is full or somebody stops it: what was measured is in a file or on the screen."""

import dataclasses
import errno
import os
import signal

import pytest
from typer.testing import CliRunner

from bilevel import atomic_files
from bilevel.cli import app, compare as command
from bilevel.lab import compare as lab
from bilevel.lab.compare import METHODS
from bilevel.lab.compare.measurement import Curve, Point

QUICK = [method.name for method in METHODS if method.quick]


def said(result) -> str:
    """Its complaints, without the blank lines that older versions of rich leave behind a progress bar."""
    return "".join(line for line in result.stderr.splitlines(keepends=True) if line.strip())


@pytest.fixture
def call(tmp_path, monkeypatch):
    """The command with measurements that take no time; `happens` comes before the one with that number."""
    monkeypatch.chdir(tmp_path)

    def call(happens=None, number=None, name="quadratic", out="here"):
        count = iter(range(100))

        def measure(method, task):
            if next(count) == number:
                happens()
            return Curve(method, 1.0, [Point(1, 2, 3, 0.5, 0.25), Point(2, 4, 6, 1.0, 0.125)])

        monkeypatch.setattr(lab, "measure", measure)
        return CliRunner().invoke(app, ["compare", name, "--quick", "--out", out])

    return call


def rows(text: str) -> list[list[str]]:
    return [line.split(",") for line in text.splitlines() if line.startswith("quadratic,")]


def names(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.slow
def test_in_the_end_the_unfinished_file_is_gone(call, tmp_path):
    result = call()
    assert result.exit_code == 0, result.output
    assert names(tmp_path / "here") == {"compare.csv", "compare.png", "compare.svg"}
    assert len(rows((tmp_path / "here" / "compare.csv").read_text())) == 2 * len(QUICK)


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_the_curves_measured_so_far_and_an_older_file_alone(call, tmp_path, sent, status):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "compare.csv").write_text("older")
    result = call(lambda: os.kill(os.getpid(), sent), 3)
    assert result.exit_code == status
    assert said(result) == (
        "bilevel: stopped; the 3 curves measured so far are in here/compare-unfinished.csv\n"
    )
    assert names(tmp_path / "here") == {"compare.csv", "compare-unfinished.csv"}
    assert (tmp_path / "here" / "compare.csv").read_text() == "older"
    assert len(rows((tmp_path / "here" / "compare-unfinished.csv").read_text())) == 2 * 3


def test_what_was_measured_survives_an_error_of_a_method(call, tmp_path):
    """Also a kill: it is on the disk before the next method begins."""

    def fail():
        raise RuntimeError("a method's own")

    assert call(fail, 2).exit_code == 1
    assert len(rows((tmp_path / "here" / "compare-unfinished.csv").read_text())) == 2 * 2


def test_stopped_before_anything_was_measured(call):
    result = call(lambda: os.kill(os.getpid(), signal.SIGINT), 0)
    assert (result.exit_code, said(result)) == (130, "bilevel: stopped; nothing was measured\n")


@pytest.fixture
def full(monkeypatch):
    """A disk that takes no file of these kinds."""
    kinds = []
    real = atomic_files.new_part

    def new_part(path):
        if path.suffix in kinds:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path)

    monkeypatch.setattr(atomic_files, "new_part", new_part)
    return kinds


def test_a_disk_that_is_full_at_the_end_puts_the_rows_on_the_screen(call, full, tmp_path):
    full += [".csv"]
    result = call()
    assert result.exit_code == 3
    assert said(result) == (
        "bilevel: could not save here/compare.csv (No space left on device); all its rows are printed above\n"
    )
    assert names(tmp_path / "here") == set()
    assert len(rows(result.stdout)) == 2 * len(QUICK)


def test_stopped_on_a_full_disk(call, full):
    full += [".csv"]
    result = call(lambda: os.kill(os.getpid(), signal.SIGINT), 3)
    assert result.exit_code == 130
    assert "the 3 curves measured so far are printed above" in result.stderr
    assert len(rows(result.stdout)) == 2 * 3


@pytest.mark.slow
def test_a_disk_that_is_full_before_the_figure(call, full, tmp_path):
    full += [".svg"]
    result = call()
    assert result.exit_code == 3
    assert said(result) == (
        "bilevel: could not save here/compare.svg (No space left on device); saved: here/compare.csv\n"
    )
    assert names(tmp_path / "here") == {"compare.csv", "compare.png"}


def test_the_folder_is_tried_before_the_work(call, tmp_path, monkeypatch):
    (tmp_path / "here").write_text("in the way")
    result = call(lambda: pytest.fail("it was measured"), 0)
    assert (result.exit_code, said(result)) == (
        2,
        "bilevel: cannot write into here, which is no folder: name another one with --out\n",
    )


@pytest.mark.slow
def test_names_are_printed_as_they_are(call, tmp_path, monkeypatch):
    """Neither markup nor emoji nor formulae."""
    odd = dataclasses.replace(METHODS[0], name="[/x]:bomb:$y")
    monkeypatch.setattr(command, "_methods", lambda *_: [odd])
    result = call(out="res[/x]:bomb:")
    assert result.exit_code == 0, result.output
    assert "[/x]:bomb:$y" in result.stdout
    assert "Written: res[/x]:bomb:/compare.csv" in result.stdout
    assert (tmp_path / "res[/x]:bomb:" / "compare.svg").exists()
