"""The command line with odd words for every option: exit status 2 and one line that helps, or what was asked for."""

import random
import re

import pytest
import typer
from typer.testing import CliRunner

from bilevel.cli import app, compare, demo, reproduce

ODD = [
    "",
    " ",
    "abc",
    "-",
    "--",
    "0",
    "-1",
    "1",
    "3",
    "0.5",
    "1e-3",
    "1e30",
    "1e155",
    "1e308",
    "1e309",
    "-1e308",
    "1e-200",
    "1e-320",
    "nan",
    "inf",
    "-inf",
    "1j",
    "0x10",
    "1_000",
    "١",
    "½",
    "²",
    "1,5",
    "1e",
    "9" * 19,
    "1" * 400,
    "9" * 5000,
    "True",
    "None",
    "null",
    "[red]",
    "res[/x]",
    "[/]",
    "a\0b",
    "\ud800",
    "\u202e",
    "é",
    "∞",
    "a" * 5000,
    "--help=1",
    "fig1",
    "quadratic",
    "%s",
    "{0}",
    "$(x)",
    "../..",
]
ORDINARY = {
    "0",
    "1",
    "3",
    "0.5",
    "1e-3",
    "1_000",
    "١",
    "1e30",
    "9" * 19,
}  # which certify works on for a second
CERTIFY = {"--mu": "0.1", "--L": "1", "--M": "1", "--rho": "0.5"}
MORE = ("--steps", "--gap", "--y-distance", "--c-y")


@pytest.fixture(autouse=True)
def no_work(monkeypatch, tmp_path, as_users_see_it):
    """Whatever would take time is cut off where it begins: the arguments were fine."""

    def work(*_, **__):
        raise typer.Exit(0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "_demo", work)
    monkeypatch.setattr(compare, "_measure", work)
    monkeypatch.setattr(reproduce, "_perform", work)


def complaint(arguments: list[str]) -> str | None:
    """What is wrong with how the command ends, if anything."""
    result = CliRunner().invoke(app, arguments)
    if result.exit_code == 0:
        bad = re.search(r"(?<![\w.])-?(inf|nan)(?![\w ]| Φ)", result.stdout)
        return f"prints {bad[0]}" if bad else None
    if not isinstance(result.exception, SystemExit):
        return f"traceback: {type(result.exception).__name__}: {str(result.exception)[:200]}"
    lines = result.stderr.strip().splitlines()
    if result.exit_code != 2 or len(lines) != 1:
        return f"status {result.exit_code}, {len(lines)} lines: {result.stderr[:200]}"
    if not lines[0].startswith("bilevel: ") or len(lines[0].split()) < 6:
        return f"too short to help: {lines[0]}"
    return None


def assert_fine(calls: list[list[str]]) -> None:
    assert {str(call)[:300]: found for call in calls if (found := complaint(call))} == {}


def words(options: dict[str, str]) -> list[str]:
    return [word for option in options.items() for word in option]


@pytest.mark.slow
@pytest.mark.parametrize("option", [*CERTIFY, *MORE])
def test_certify(option):
    asked = lambda value: ["certify", *words(CERTIFY | {option: value})]
    assert_fine(
        [asked(value) for value in ODD if value not in ORDINARY]
        + [[*asked(value), "--json"] for value in ("1e30", "1e308", "1e-200")]
    )


@pytest.mark.slow
def test_certify_with_two_odd_numbers():
    draw = random.Random(0)
    numbers = [value for value in ODD if re.fullmatch(r"-?[\d.e-]+", value)]
    pick = lambda: dict.fromkeys(draw.sample([*CERTIFY, *MORE], 2), None)
    assert_fine([["certify", *words(CERTIFY | {o: draw.choice(numbers) for o in pick()})] for _ in range(30)])


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--kappa", "--steps"])
def test_demo(option):
    assert_fine([["demo", option, value] for value in ODD])


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--out"], ["--method"], ["--task"], []], ids=str)
def test_compare(arguments):
    tasks = [] if not arguments else ["quadratic"]
    assert_fine([["compare", "--quick", *tasks, *arguments, value] for value in ODD])


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--out"], ["--seeds"], ["--data"], ["--format"], []], ids=str)
def test_reproduce(arguments):
    experiments = [] if not arguments else ["fig2"]
    assert_fine(
        [["reproduce", "--quick", *experiments, *arguments, value] for value in ODD if value != "fig1"]
    )


@pytest.mark.slow
def test_unknown_names():
    assert_fine([[value] for value in ODD if value not in ("", "--")])
    assert_fine(
        [[command, f"--{value}", "1"] for command in ("demo", "certify", "compare") for value in ODD[2:40]]
    )


def test_there_are_enough_of_them():
    commands = len([*CERTIFY, *MORE]) + 2 + 4 + 5
    assert commands * len(ODD) >= 500
