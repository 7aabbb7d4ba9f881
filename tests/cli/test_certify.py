"""`bilevel certify`: table, JSON, and one-line errors."""

import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from bilevel import theory
from bilevel.cli import certify

ARGUMENTS = ["certify", "--mu", "0.1", "--L", "1", "--M", "0.1", "--rho", "0.1", "--steps", "10000"]


@pytest.fixture
def invoke(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    app = typer.Typer()
    app.callback()(lambda: None)
    app.command()(certify.certify)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


@pytest.mark.slow
def test_table_shows_the_analyses_side_by_side(invoke):
    result = invoke(*ARGUMENTS)
    assert result.exit_code == 0
    for word in (
        "earlier",
        "paper",
        "sharp",
        "tight",
        "star",
        "Single-loop AID",
        "Single-loop SOBA",
        "Single-loop ITD",
        "κ = 10",
    ):
        assert word in result.stdout
    k = theory.Constants(0.1, 1.0, 0.1, 0.1)
    for value in (theory.prior.aid(k).beta, theory.aid(k).beta, theory.itd(k).inherent_error):
        assert f"{value:.4g}" in result.stdout
    assert "K = 10,000" in result.stdout


@pytest.mark.slow
def test_json_carries_the_numbers_of_the_library(invoke):
    result = invoke(*ARGUMENTS, "--gap", "2", "--y-distance", "3", "--c-y", "0.5", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    k = theory.Constants(0.1, 1.0, 0.1, 0.1)
    aid, itd = report["aid"], report["itd"]
    assert list(aid) == list(itd) == ["earlier", "paper", "sharp", "tight", "star"]
    assert list(report["soba"]) == ["star"]
    start = 0.5 * 0.1  # warmed up to c_y·mu
    paper = theory.aid(k)
    # One contraction by 1 − mu/L; from v₀ = 0 the adjoint error is at most 0.9·M/mu = 0.9.
    assert aid["paper"]["bound"] == pytest.approx(paper.bound_from(10_000, 2.0, (0.9 * start, 0.9)))
    for name, certificate in theory.analyses(k).items():
        assert aid[name]["bound"] <= 1.1 * certificate.bound(10_000, 2.0, start) * (1 + 1e-9)
        beta = aid[name]["beta"]
        assert aid[name]["bound"] == pytest.approx(certificate.bound(10_000, 2.0, start, beta=beta))
    assert aid["paper"]["warmup_steps"] == paper.warmup_steps(3.0, 0.5) > 0
    bounds = [column["bound"] for column in aid.values()]
    assert bounds == sorted(bounds, reverse=True)
    R_y = theory.itd(k).R_y
    assert itd["paper"]["bound"] == pytest.approx(theory.itd(k).bound_from(10_000, 2.0, (0.9 * R_y, 0.0)))
    assert itd["tight"]["bound"] <= 1.1 * theory.tight.itd(k).bound(10_000, 2.0, R_y) * (1 + 1e-9)
    assert itd["tight"]["inherent_error"] == pytest.approx(report["itd_lower_bound"]) == pytest.approx(0.81)
    for (
        column
    ) in itd.values():  # none promises less than what its own α can do, and star's α is not the paper's
        assert column["inherent_error"] >= column["lower_bound"] * (1 - 1e-12)
    assert itd["star"]["lower_bound"] == pytest.approx(0.81 * (10 / 11) ** 2)
    assert report["constants"]["kappa"] == pytest.approx(10)
    assert report["run"]["steps"] == 10_000


@pytest.mark.slow
def test_json_says_null_where_there_is_no_bound(invoke, monkeypatch):
    monkeypatch.setattr(theory.Certificate, "bound", lambda self, *start, **options: np.inf)
    result = invoke(*ARGUMENTS, "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["aid"]["paper"]["bound"] is None
    assert report["aid"]["paper"]["beta"] > 0


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--mu", "-0.1", "mu must be positive, got -0.1"),
        ("--mu", "2", "mu = 2.0 exceeds L = 1.0"),
        ("--mu", "nan", "mu must be finite, got nan"),
        ("--L", "abc", "'abc' is not a number"),
        ("--M", "-1", "M must be at least 0, got -1.0"),
        ("--rho", "-1", "rho must be at least 0, got -1.0"),
        ("--steps", "0", "steps must be positive, got 0.0"),
        ("--steps", "2.5", "steps must be a whole number"),
        ("--steps", "inf", "steps must be finite, got inf"),
        ("--gap", "0", "gap must be positive, got 0.0"),
        ("--y-distance", "-1", "D_y must be at least 0, got -1.0"),
        ("--c-y", "0", "c_y must be positive, got 0.0"),
    ],
)
def test_bad_values_get_one_line_and_exit_status_two(invoke, option, value, message):
    result = invoke(*ARGUMENTS, option, value)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("bilevel: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
def test_condition_number_one(invoke):
    result = invoke("certify", "--mu", "1", "--L", "1", "--M", "0", "--rho", "0", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["itd"]["tight"]["inherent_error"] == 0
