"""Feature learning: closed forms against dense algebra and autodiff, and the protocol's promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bilevel.paper import fig3_features as experiment
from bilevel.paper.tables import as_csv, select
from bilevel.problem import Batch
from bilevel.tasks.features import FeatureLearning, Regression, compress

MU = 0.3


@pytest.fixture
def case():
    rng = np.random.default_rng(3)
    data = Batch(*(Regression(rng.normal(size=(n, 3)), rng.normal(size=n)) for n in (40, 25)))
    return FeatureLearning(MU), jnp.asarray(rng.normal(size=(3, 7))), jnp.asarray(rng.normal(size=7)), data


def hessian(x, train) -> np.ndarray:
    features = train.inputs @ x
    return features.T @ features / len(features) + MU * np.eye(x.shape[1])


def test_head_solves_the_ridge_problem(case):
    task, x, _, data = case
    features = data.inner.inputs @ x
    dense = np.linalg.solve(hessian(x, data.inner), features.T @ data.inner.targets / len(features))
    np.testing.assert_allclose(task.head(x, data.inner), dense, rtol=1e-10)


def test_hypergradient_is_the_derivative_of_phi(case):
    task, x, _, data = case
    np.testing.assert_allclose(task.hypergradient(x, data), jax.grad(task.value)(x, data), rtol=1e-9)


def test_curvatures_are_eigenvalues_and_the_rest_is_the_ridge(case):
    task, x, _, data = case
    dense = np.linalg.eigvalsh(hessian(x, data.inner))
    np.testing.assert_allclose(dense[:4], MU)
    np.testing.assert_allclose(task.curvatures(x, data.inner), dense[4:], rtol=1e-10)


def test_compressed_data_have_the_same_gradients(case):
    task, x, y, data = case
    gradients = jax.grad(task.g, argnums=(0, 1))
    small = compress(data.inner)
    assert small.inputs.shape == (3, 3)
    for full, reduced in zip(gradients(x, y, data.inner), gradients(x, y, small), strict=True):
        np.testing.assert_allclose(full, reduced, rtol=1e-10)


@pytest.mark.parametrize("kappa", [3.0, 20.0])
def test_head_problem_has_the_claimed_constants_at_x0(settings, inputs, kappa):
    variant = experiment.VARIANTS[experiment.MAIN]
    lane = experiment.instance(inputs["fig3-features"], kappa, 0, variant, settings["fig3-features"])
    features = lane.data.inner.inputs @ lane.x0
    spectrum = np.linalg.eigvalsh(features.T @ features / len(features) + lane.mu * np.eye(128))
    np.testing.assert_allclose((spectrum[0], spectrum[-1]), (1 / kappa, 1.0), rtol=1e-9)
    np.testing.assert_allclose(lane.beta, kappa**-3)


def test_rescaling_both_keeps_the_least_squares_predictor_of_the_validation_data(settings, inputs):
    """The same map on both sets is a change of coordinates: the attainable validation loss does not change."""
    few = settings["fig3-features"]

    def attainable(rescaled: str) -> float:
        variant = experiment.Variant(1.0, 3, rescaled)
        A, b = experiment.instance(inputs["fig3-features"], 10.0, 0, variant, few).data.outer
        return float(np.sum((A @ np.linalg.lstsq(A, b)[0] - b) ** 2))

    np.testing.assert_allclose(attainable("training"), attainable("both"), atol=1e-10)


def test_runs_measure_the_exact_hypergradient(settings, inputs, tables):
    """The mean over k < K, by a plain loop of Algorithm 2 on the uncompressed task's formulas."""
    few = settings["fig3-features"]
    lane = experiment.instance(inputs["fig3-features"], 6.0, 1, experiment.VARIANTS[experiment.MAIN], few)
    task, (train, valid) = FeatureLearning(lane.mu), lane.data
    x, y, norms = lane.x0, np.asarray(task.head(jnp.asarray(lane.x0), train)), []
    for _ in range(few["steps"]):
        norms.append(float(jnp.sum(jax.grad(task.value)(jnp.asarray(x), lane.data) ** 2)))
        A, n = train.inputs, len(train.targets)
        r = A.T @ (A @ (x @ y) - train.targets) / n
        y_new = y - (x.T @ r + lane.mu * y)
        q = valid.inputs.T @ (valid.inputs @ (x @ y_new) - valid.targets) / len(valid.targets)
        w = x.T @ q  # ∇_y f
        cross = np.outer(r, w) + np.outer(A.T @ (A @ (x @ w)) / n, y)
        x, y = x - lane.beta * (np.outer(q, y_new) - cross), y_new
    row = select(tables["fig3_features.csv"], variant=experiment.MAIN, seed=1, kappa=6.0)
    np.testing.assert_allclose(row["mean"], np.mean(norms), rtol=1e-8)
    np.testing.assert_allclose(row["first"], norms[0], rtol=1e-8)


def test_tables_cover_every_case(settings, tables):
    few = settings["fig3-features"]
    assert len(tables["fig3_features.csv"]["mean"]) == len(experiment.cases(few)) == 6 * 2 * 2
    assert list(tables["fig3_exponents.csv"]["variant"]) == list(experiment.VARIANTS)


def test_same_settings_same_bytes(run, tables):
    again = run("fig3-features")
    assert {file: as_csv(table) for file, table in again.items()} == {
        file: as_csv(tables[file]) for file in again
    }
