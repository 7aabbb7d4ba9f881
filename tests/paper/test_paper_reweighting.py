"""Data reweighting: the task against NumPy, the scores against counting pairs, the experiment in miniature."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from bilevel.paper import fig3_reweighting as experiment
from bilevel.paper.tables import as_csv, select
from bilevel.problem import Batch
from bilevel.run import Result, run as run_solver
from bilevel.solvers import itd
from bilevel.status import Code, Status
from bilevel.tasks.reweighting import Labelled, initial_mlp, losses, reweighting
from bilevel.tasks.scores import accuracy, roc_auc


def test_losses_are_the_cross_entropy_of_the_network():
    rng = np.random.default_rng(0)
    y = initial_mlp(5, 4, 3, seed=1, dtype=np.float64)
    y = y._replace(b1=rng.normal(size=4), b2=rng.normal(size=3))
    inputs, labels = rng.normal(size=(6, 5)), rng.integers(0, 3, 6)
    scores = np.maximum(inputs @ y.W1 + y.b1, 0) @ y.W2 + y.b2
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    expected = -np.log(probabilities[np.arange(6), labels])
    np.testing.assert_allclose(losses(y, Labelled(jnp.asarray(inputs), jnp.asarray(labels))), expected)


def test_weights_multiply_the_losses_and_start_at_one_half():
    y, rng = initial_mlp(5, 4, 3, seed=1, dtype=np.float64), np.random.default_rng(2)
    batch = Labelled(jnp.asarray(rng.normal(size=(6, 5))), jnp.asarray(rng.integers(0, 3, 6)))
    problem = reweighting()
    np.testing.assert_allclose(problem.inner(jnp.zeros(6), y, batch), 0.5 * np.mean(losses(y, batch)))
    np.testing.assert_allclose(problem.outer(jnp.zeros(6), y, batch), np.mean(losses(y, batch)))


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


def test_leaving_out_blank_pixels_changes_no_loss(digits, settings):
    few = settings["fig3-reweighting"]
    task = experiment.task(digits, 0, few)
    assert task.data.inner.inputs.shape == (60, 10)  # of 12 pixels, two are always blank
    train, valid, _ = digits.train.split(60, 30, 20, seed=0)
    full = Batch(
        inner=Labelled(jnp.asarray(train.inputs), task.data.inner.labels),
        outer=Labelled(jnp.asarray(valid.inputs), jnp.asarray(valid.targets)),
    )
    solver, x0 = itd(reweighting(), 0.1, 0.5), jnp.zeros(60, jnp.float32)
    y0 = initial_mlp(12, 8, 10, seed=[0, 2])
    whole = run_solver(solver, x0, y0, data=full, steps=20)
    inked = run_solver(solver, x0, task.y0, data=task.data, steps=20)
    np.testing.assert_allclose(whole.trace["outer_value"], inked.trace["outer_value"], rtol=1e-5)
    np.testing.assert_allclose(whole.x, inked.x, rtol=1e-4, atol=1e-7)


def test_tasks_differ_by_seed_and_have_about_the_wanted_share_of_wrong_labels(digits, settings):
    few = settings["fig3-reweighting"] | {"wrong": 0.5}
    one, two = (experiment.task(digits, seed, few) for seed in (0, 1))
    assert 15 <= one.wrong.sum() <= 45
    assert not np.array_equal(one.data.outer.inputs, two.data.outer.inputs)


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


def test_plateau_is_the_mean_of_the_last_tenth(tables):
    curve = select(tables["fig3_reweighting.csv"], method="ITD", seed=0)
    assert list(curve["step"]) == [0, 10, 20, 30, 40]
    losses = np.linspace(3, 1, 30)

    done = Result(0, 0, Status(Code.COMPLETED, ""), 30, {"outer_value": losses}, {}, None)
    found = experiment.plateau(done)
    assert found["plateau"] == pytest.approx(losses[-3:].mean())
    assert found["fall_in_last_third"] == pytest.approx(losses[20] - losses[-1])


@pytest.mark.parametrize(
    ("code", "error"), [(Code.INTERRUPTED, KeyboardInterrupt), (Code.DIVERGED, RuntimeError)]
)
def test_a_run_that_did_not_complete_makes_no_table(monkeypatch, digits, settings, code, error):
    broken = Result(0, 0, Status(code, "stopped"), 0, {}, {}, None)
    monkeypatch.setattr(experiment, "run_solver", lambda *args, **kwargs: broken)
    with pytest.raises(error):
        experiment.run(settings["fig3-reweighting"], digits, lambda done, doing="": None)


def test_same_settings_same_bytes(run, tables):
    again = run("fig3-reweighting")
    assert {file: as_csv(table) for file, table in again.items()} == {
        file: as_csv(tables[file]) for file in again
    }


def _rows(table: dict) -> list[dict]:
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
