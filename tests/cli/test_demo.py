"""The demo, as a user types it."""

import errno
import io
import os
import signal
import sys

import pytest
from typer.testing import CliRunner

import bilevel as bl
from bilevel.cli import app, main, plain_text


@pytest.mark.slow
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


def run_until(stop, monkeypatch):
    """`bl.run` as the demo calls it, with something that happens after 100 steps of its second call."""
    real, calls = bl.run, []

    def run(*arguments, **options):
        calls.append(options)
        hook = (lambda event: stop()) if len(calls) == 2 else (lambda event: None)
        return real(*arguments, **options, hooks=[hook], options=bl.RunOptions(every=100))

    monkeypatch.setattr(bl, "run", run)


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_demo_that_is_stopped_says_how_far_it_came(monkeypatch, sent, status):
    run_until(lambda: os.kill(os.getpid(), sent), monkeypatch)
    result = CliRunner().invoke(app, ["demo", "--steps", "1000"])
    assert result.exit_code == status, result.output
    assert result.stderr == "bilevel: stopped; steps taken: AID 1,000, ITD 100\n"
    title = " ".join(result.stdout.split("┏")[0].split())
    assert title == "The paper's quadratic at κ = 10, stopped: AID 1,000, ITD 100 of 1,000 steps"


def test_a_demo_that_is_stopped_before_its_first_step(monkeypatch):
    def run(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(bl, "run", run)
    result = CliRunner().invoke(app, ["demo"])
    assert (result.exit_code, result.stderr) == (130, "bilevel: stopped; steps taken: none\n")


@pytest.mark.slow
def test_a_screen_that_takes_nothing(monkeypatch, capsys):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    replaced = []
    monkeypatch.setattr(os, "dup2", lambda *descriptors: replaced.append(descriptors[1]))
    monkeypatch.setattr(sys, "stdout", Full())
    monkeypatch.setattr(
        sys, "argv", ["bilevel", *["certify", "--mu", "1", "--L", "2", "--M", "1", "--rho", "1"]]
    )
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 3
    assert replaced == [1]
    assert capsys.readouterr().err == (
        "bilevel: could not print (No space left on device); files that were finished are kept\n"
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("‖∇Φ(x_k)‖² ≤ 10⁻⁵·κ⁴", "||grad Phi(x_k)||^2 <= 10^-5*kappa^4"),
        ("β = αμ/L̂, ŷ ∈ ½, λ₁ → ∞", "beta = alphamu/L, y in  1/2, lambda_1 -> inf"),
        ("naïve: Łódź 漢字", "naive: ?odz ??"),
        ("plain", "plain"),
    ],
)
def test_letters_that_a_terminal_does_not_have_are_spelled(text, shown):
    assert text.encode("ascii", plain_text.NAME).decode() == shown
    assert text.encode("utf-8", plain_text.NAME).decode() == text


def test_letters_that_a_terminal_has_stay():
    assert "5 £ × µ ≤ α".encode("latin-1", plain_text.NAME).decode("latin-1") == "5 £ × µ <= alpha"
