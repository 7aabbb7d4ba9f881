"""The demo, as a user types it."""

from typer.testing import CliRunner

import bilevel as bl
from bilevel.cli import app


def test_demo_shows_both_algorithms_beside_their_closed_forms():
    result = CliRunner().invoke(app, ["demo", "--kappa", "3", "--steps", "20000"])
    assert result.exit_code == 0
    rows = {line.split("│")[1].strip(): line.split("│") for line in result.stdout.splitlines() if "│" in line}
    for name in ("AID", "ITD"):
        assert rows[name][2] == rows[name][3]  # x has reached its closed-form limit, to the digits shown
    assert float(rows["ITD"][4]) == float(f"{0.01 * (3 - 1) ** 2:.3e}")
    assert float(rows["AID"][4]) < 1e-12


def test_the_version_is_the_package_s():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.split() == ["bilevel", bl.__version__]


def test_bad_values_get_one_line_and_exit_status_2():
    for arguments, word in ((["--kappa", "0.5"], "--kappa"), (["--steps", "0"], "--steps")):
        result = CliRunner().invoke(app, ["demo", *arguments])
        assert result.exit_code == 2
        assert word in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
