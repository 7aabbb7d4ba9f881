"""The comparison measures what it says: known floors, counted calls, one figure and one table."""

import csv
import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest
import typer
from matplotlib.image import imread
from typer.testing import CliRunner

from bilevel.cli.compare import compare
from bilevel.counting import oracle_calls
from bilevel.data import corrupt_labels, mnist
from bilevel.lab.compare import METHODS, TASKS, measure
from bilevel.lab.compare.measurement import checkpoints, costs, solver_of
from bilevel.lab.compare.tasks import quadratic_task, ridge_task
from bilevel.loop.data.streams import as_stream
from bilevel.loop.program import program_of


def named(name):
    return next(method for method in METHODS if method.name == name)


@pytest.fixture(scope="module")
def app():
    app = typer.Typer()
    app.command()(compare)
    app.callback()(lambda: None)  # a command of its own, as in the real program
    return app


def test_checkpoints_grow_by_a_constant_factor_and_end_at_the_end():
    assert list(checkpoints(20, 1)) == [1, 2, 4, 8, 16, 20]
    assert list(checkpoints(1, 3)) == [1]
    many = list(checkpoints(1000, 2))
    assert many == sorted(set(many))
    assert many[-1] == 1000


@pytest.mark.slow
def test_the_floors_are_those_the_theory_predicts():
    """‖∇Φ‖ at the limits: m(κ − 1) = 0.9 for ITD, m(κ − 1)·0.9⁵ for the 6-term series, 0 for AID."""
    task = quadratic_task(quick=True)
    ends = {name: measure(named(name), task).points[-1] for name in ("AID", "AID, Neumann", "ITD")}
    assert ends["AID"].value < 1e-12
    np.testing.assert_allclose(ends["ITD"].value, 0.9, rtol=1e-8)
    np.testing.assert_allclose(ends["AID, Neumann"].value, 0.9 * 0.9**5, rtol=1e-8)
    assert (ends["AID"].gradients, ends["AID"].products) == (3 * 600, 2 * 600)
    assert (ends["ITD"].gradients, ends["ITD"].products) == (3 * 750, 1 * 750)


@pytest.mark.slow
def test_a_method_whose_cost_varies_spends_its_budget_too():
    task = quadratic_task(quick=True)
    curve = measure(named("HOAG"), task)
    calls = [point.calls for point in curve.points]
    assert calls == sorted(calls)
    assert task.calls <= calls[-1] <= 1.3 * task.calls
    assert curve.points[-1].value < curve.points[0].value / 10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SOBA", "ITD, 5 steps", "F2SA"])
def test_a_constant_cost_is_the_same_at_every_step(name):
    task = ridge_task(quick=True)
    solver = solver_of(named(name), task, 0.1)
    data = task.instance.data
    state = solver.init(task.instance.x0, task.instance.y0, data)
    total = oracle_calls(solver, state, data, steps=3)
    assert tuple(costs(named(name), task, 0.1)[2]) == (total.Gc, total.Mv)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["AID", "HOAG"])
def test_a_tallied_run_is_the_plain_one_and_counts_what_it_spends(name):
    """Along the run, step by step, against counting the same steps in one go."""
    task = quadratic_task(quick=True)
    varying = dataclasses.replace(named(name), varies=True)
    paid = costs(varying, task, 1.0)
    solver = solver_of(named(name), task, 1.0)
    state = solver.init(task.instance.x0, task.instance.y0)
    for steps in (1, 7):
        total = oracle_calls(solver, state, steps=steps)
        assert tuple(paid[steps - 1]) == (total.Gc, total.Mv)


@pytest.mark.slow
def test_all_rates_of_the_grid_share_one_program():
    task, method = quadratic_task(quick=True), named("AID")
    programs = {program_of(solver_of(method, task, rate))[0] for rate in task.rates}
    assert len(programs) == 1
    measure(method, task)
    assert programs.pop().keeping.chunk._cache_size() == 1


@pytest.mark.slow
def test_stocbio_draws_fifths_of_the_examples():
    task, method = ridge_task(quick=True), named("stocBiO")
    stream = as_stream(method.data(task.instance.data))
    assert solver_of(method, task, 0.1).draws == 5
    _, batch = stream.next(stream.start(0))
    assert len(batch.inner) == len(task.instance.data.inner) // 5


@pytest.mark.slow
def test_training_with_honest_weights_is_better_than_with_all():
    """The third task's yardstick: weights that know the wrong labels beat weights that do not."""
    instance = TASKS["reweighting"](True).instance
    rows = len(instance.x0)
    train, _ = mnist().train.split(rows, rows // 2, seed=0)
    _, wrong = corrupt_labels(train.targets, 0.2, classes=10, seed=1)
    judge = jax.jit(instance.measure)
    informed = np.where(wrong, -6.0, 6.0).astype(np.float32)
    assert float(judge(informed)) < float(judge(np.full(rows, 6.0, np.float32))) < float(judge(-informed))


@pytest.mark.slow
def test_the_command_writes_a_figure_and_its_data(app, tmp_path):
    result = CliRunner().invoke(app, ["compare", "quadratic", "--quick", "--out", str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    with (tmp_path / "new" / "compare.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {method.name for method in METHODS if method.quick}
    assert {row["family"] for row in rows} == {method.family for method in METHODS if method.quick}
    for row in rows:
        assert int(row["calls"]) == int(row["gradients"]) + int(row["products"]) > 0
    for name in ("AID", "tuning-free"):
        assert name in result.output
    picture = imread(tmp_path / "new" / "compare.png")
    assert picture.shape[0] > 1000
    assert picture[..., :3].std() > 0.05  # something is drawn
    assert (tmp_path / "new" / "compare.svg").read_text().startswith("<?xml")


def test_the_documentation_knows_how_many_methods_there_are():
    told = (Path(__file__).parents[3] / "docs" / "concepts" / "methods.md").read_text()
    assert f"`bilevel compare` runs {len(METHODS)} methods" in told
    assert sum(method.quick for method in METHODS) == 8  # "eight" there and in the command's help


@pytest.mark.slow
def test_bad_arguments_are_refused_in_one_line(app, tmp_path):
    result = CliRunner().invoke(app, ["compare", "mnist", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "unknown task 'mnist': choose from quadratic, ridge_logistic, reweighting" in result.output
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["compare", "--out", str(tmp_path / "file")])
    assert result.exit_code == 2
    assert "cannot write into" in result.output
    assert "--out" in result.output
