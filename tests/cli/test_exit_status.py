"""The table of exit statuses in the documentation is the one that the commands keep to."""

import re
from pathlib import Path

from typer.testing import CliRunner

from bilevel.cli import app, errors

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "command-line.md"


def documented() -> dict[int, str]:
    section = PAGE.read_text().split("## Exit status")[1].split("\n## ")[0]
    return {
        int(status): meaning
        for status, meaning in re.findall(r"^\| (\d+) \| (.*) \|$", section, re.MULTILINE)
    }


def test_the_table_names_every_status():
    named = {value for name, value in vars(errors).items() if name.isupper()}
    assert set(documented()) == {0} | named
    assert len(named) == 5
    assert "diverged" in documented()[errors.BROKEN]
    assert "SIGINT" in documented()[errors.INTERRUPTED]
    assert "SIGTERM" in documented()[errors.TERMINATED]
    assert "refused" in documented()[errors.REFUSED]
    assert "saved" in documented()[errors.UNSAVED]


def test_what_typer_refuses_has_the_status_of_what_we_refuse():
    for arguments in (
        ["no-such-command"],
        ["certify"],
        ["demo", "--no-such-option"],
        ["demo", "--steps", "few"],
    ):
        assert CliRunner().invoke(app, arguments).exit_code == errors.REFUSED
