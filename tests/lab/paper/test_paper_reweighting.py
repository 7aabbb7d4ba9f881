"""Data reweighting: the task against NumPy, the scores against counting pairs, the experiment in miniature."""

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from bilevel.batch import Batch
from bilevel.data import Examples
from bilevel.lab.paper import fig3_reweighting as experiment
from bilevel.lab.paper.tables import as_csv, select
from bilevel.loop.run import run as run_solver
from bilevel.loop.status import Code, Status
from bilevel.problems import quadratic
from bilevel.problems.reweighting import PROBLEM, initial_mlp, losses
from bilevel.problems.scores import accuracy, roc_auc
from bilevel.solvers.algorithms.itd import itd


@pytest.mark.slow
def test_losses_are_the_cross_entropy_of_the_network():
    rng = np.random.default_rng(0)
    y = initial_mlp(5, 4, 3, seed=1, dtype=np.float64)
    y = y._replace(b1=rng.normal(size=4), b2=rng.normal(size=3))
    inputs, labels = rng.normal(size=(6, 5)), rng.integers(0, 3, 6)
    scores = np.maximum(inputs @ y.W1 + y.b1, 0) @ y.W2 + y.b2
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    expected = -np.log(probabilities[np.arange(6), labels])
    np.testing.assert_allclose(losses(y, Examples(jnp.asarray(inputs), jnp.asarray(labels))), expected)


@pytest.mark.slow
def test_weights_multiply_the_losses_and_start_at_one_half():
    y, rng = initial_mlp(5, 4, 3, seed=1, dtype=np.float64), np.random.default_rng(2)
    batch = Examples(jnp.asarray(rng.normal(size=(6, 5))), jnp.asarray(rng.integers(0, 3, 6)))
    np.testing.assert_allclose(PROBLEM.inner(jnp.zeros(6), y, batch), 0.5 * np.mean(losses(y, batch)))
    np.testing.assert_allclose(PROBLEM.outer(jnp.zeros(6), y, batch), np.mean(losses(y, batch)))


@pytest.mark.slow
def test_a_part_of_the_examples_has_its_own_weights():
    y, rng = initial_mlp(5, 4, 3, seed=1, dtype=np.float64), np.random.default_rng(2)
    inputs, labels, x = rng.normal(size=(6, 5)), rng.integers(0, 3, 6), rng.normal(size=6)
    rows = jnp.array([4, 1])
    part = Examples(jnp.asarray(inputs[[4, 1]]), jnp.asarray(labels[[4, 1]]))
    expected = np.mean(1 / (1 + np.exp(-x[[4, 1]])) * np.asarray(losses(y, part)))
    np.testing.assert_allclose(PROBLEM.inner(jnp.asarray(x), y, part, rows=rows), expected)


def test_auc_counts_pairs_with_ties_by_half():
    rng = np.random.default_rng(5)
    scores, positive = rng.integers(0, 6, 40).astype(float), rng.random(40) < 0.3
    pairs = [(a > b) + 0.5 * (a == b) for a, b in itertools.product(scores[positive], scores[~positive])]
    assert roc_auc(scores, positive) == pytest.approx(np.mean(pairs))


def test_auc_needs_both_kinds():
    with pytest.raises(ValueError, match="0 positives and 3 negatives"):
        roc_auc(np.arange(3.0), np.zeros(3, bool))


def test_accuracy_counts_hits():
    assert accuracy(np.array([[0, 2.0, 1], [5, 0, 0]]), np.array([1, 2])) == 0.5


@pytest.mark.slow
def test_leaving_out_blank_pixels_changes_no_loss(digits, settings):
    few = settings["fig3-reweighting"]
    case = experiment.case(digits, 0, few)
    data = case.instance.data
    assert data.inner.inputs.shape == (60, 10)  # of 12 pixels, two are always blank
    train, valid, _ = digits.train.split(60, 30, 20, seed=0)
    full = Batch(
        inner=Examples(jnp.asarray(train.inputs), data.inner.targets),
        outer=Examples(jnp.asarray(valid.inputs), jnp.asarray(valid.targets)),
    )
    solver, x0 = itd(PROBLEM, inner=0.1, outer=0.5), jnp.zeros(60, jnp.float32)
    y0 = initial_mlp(12, 8, 10, seed=[0, 2])
    whole = run_solver(solver, x0, y0, data=full, steps=20)
    inked = run_solver(solver, x0, case.instance.y0, data=data, steps=20)
    np.testing.assert_allclose(whole.trace["outer_value"], inked.trace["outer_value"], rtol=1e-5)
    np.testing.assert_allclose(whole.x, inked.x, rtol=1e-4, atol=1e-7)


def test_cases_differ_by_seed_and_have_about_the_wanted_share_of_wrong_labels(digits, settings):
    few = settings["fig3-reweighting"] | {"wrong": 0.5}
    one, two = (experiment.case(digits, seed, few) for seed in (0, 1))
    assert 15 <= one.wrong.sum() <= 45
    assert not np.array_equal(one.instance.data.outer.inputs, two.instance.data.outer.inputs)


@pytest.mark.slow
def test_miniature_has_every_row(tables):
    plateaus, useful = tables["fig3_plateau.csv"], tables["fig3_useful.csv"]
    assert list(zip(plateaus["method"], plateaus["seed"], strict=True)) == [
        ("ITD", 0),
        ("ITD", 1),
        ("AID", 0),
    ]
    assert [(row["seed"], row["rate"]) for row in _rows(useful)][:2] == [(0, 0.1), (0, 0.3)]
    chosen = [row for row in _rows(useful) if row["chosen"]]
    tried = [row for row in _rows(useful) if row["seed"] == 0 and row["rate"] > 0]
    assert {row["rate"] for row in chosen} == {min(tried, key=lambda row: row["held_out_loss"])["rate"]}
    assert [row["seed"] for row in chosen] == [0, 1]
    unweighted = [row for row in _rows(useful) if row["rate"] == 0]
    assert [row["setting"] for row in unweighted] == ["no weights"] * 2 + ["clean images only"] * 2
    assert all(row["lowest_weight"] == row["highest_weight"] == 0.5 for row in unweighted)
    histogram = tables["fig3_weights.csv"]
    assert histogram["right_labels"].sum() + histogram["wrong_labels"].sum() == 60


@pytest.fixture(scope="module")
def result():
    """Of any run, to be changed as a test likes."""
    q = quadratic()
    return run_solver(itd(q.problem, inner=1.0, outer=0.1), jnp.ones(2), jnp.ones(2), steps=1)


@pytest.mark.slow
def test_plateau_is_the_mean_of_the_last_tenth(tables, result):
    curve = select(tables["fig3_reweighting.csv"], method="ITD", seed=0)
    assert list(curve["step"]) == [0, 10, 20, 30, 40]
    losses = np.linspace(3, 1, 30)

    found = experiment.plateau(dataclasses.replace(result, trace={"outer_value": losses}))
    assert found["plateau"] == pytest.approx(losses[-3:].mean())
    assert found["fall_in_last_third"] == pytest.approx(losses[20] - losses[-1])


@pytest.mark.parametrize(
    ("code", "error"), [(Code.INTERRUPTED, KeyboardInterrupt), (Code.DIVERGED, RuntimeError)]
)
def test_a_run_that_did_not_complete_makes_no_table(monkeypatch, digits, settings, code, error, result):
    broken = dataclasses.replace(result, status=Status(code, "stopped"))
    monkeypatch.setattr(experiment, "run_solver", lambda *args, **kwargs: broken)
    with pytest.raises(error):
        experiment.run(settings["fig3-reweighting"], digits, lambda done, doing="": None)


@pytest.mark.slow
def test_same_settings_same_bytes(run, tables):
    again = run("fig3-reweighting")
    assert {file: as_csv(table) for file, table in again.items()} == {
        file: as_csv(tables[file]) for file in again
    }


def _rows(table: dict) -> list[dict]:
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
