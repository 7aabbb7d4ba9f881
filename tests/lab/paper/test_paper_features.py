"""Feature learning: closed forms against dense algebra and autodiff, and the protocol's promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bilevel.batch import Batch
from bilevel.data import Examples
from bilevel.lab.paper import fig3_features as experiment
from bilevel.lab.paper.tables import as_csv, select
from bilevel.problems.features import Training, compress, curvatures, g, head, hypergradient, value

MU = 0.3


@pytest.fixture
def case():
    rng = np.random.default_rng(3)
    train, valid = (Examples(rng.normal(size=(n, 3)), rng.normal(size=n)) for n in (40, 25))
    data = Batch(inner=Training(train, MU), outer=valid)
    return jnp.asarray(rng.normal(size=(3, 7))), jnp.asarray(rng.normal(size=7)), data


def hessian(x, train) -> np.ndarray:
    features = train.inputs @ x
    return features.T @ features / len(features) + MU * np.eye(x.shape[1])


@pytest.mark.slow
def test_head_solves_the_ridge_problem(case):
    x, _, data = case
    train = data.inner.examples
    features = train.inputs @ x
    dense = np.linalg.solve(hessian(x, train), features.T @ train.targets / len(features))
    np.testing.assert_allclose(head(x, data.inner), dense, rtol=1e-10)


@pytest.mark.slow
def test_hypergradient_is_the_derivative_of_phi(case):
    x, _, data = case
    np.testing.assert_allclose(hypergradient(x, data), jax.grad(value)(x, data), rtol=1e-9)


@pytest.mark.slow
def test_curvatures_are_eigenvalues_and_the_rest_is_the_ridge(case):
    x, _, data = case
    dense = np.linalg.eigvalsh(hessian(x, data.inner.examples))
    np.testing.assert_allclose(dense[:4], MU)
    np.testing.assert_allclose(curvatures(x, data.inner), dense[4:], rtol=1e-10)


@pytest.mark.slow
def test_compressed_data_have_the_same_gradients(case):
    x, y, data = case
    gradients = jax.grad(g, argnums=(0, 1))
    small = compress(data.inner.examples)
    assert small.inputs.shape == (3, 3)
    for full, reduced in zip(gradients(x, y, data.inner), gradients(x, y, Training(small, MU)), strict=True):
        np.testing.assert_allclose(full, reduced, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("kappa", [3.0, 20.0])
def test_head_problem_has_the_claimed_constants_at_x0(settings, inputs, kappa):
    variant = experiment.VARIANTS[experiment.MAIN]
    lane = experiment.lane(inputs["fig3-features"], kappa, 0, variant, settings["fig3-features"])
    train, mu = lane.instance.data.inner
    features = train.inputs @ lane.instance.x0
    spectrum = np.linalg.eigvalsh(features.T @ features / len(features) + mu * np.eye(128))
    np.testing.assert_allclose((spectrum[0], spectrum[-1]), (1 / kappa, 1.0), rtol=1e-9)
    np.testing.assert_allclose(lane.instance.L, 1.0, rtol=1e-9)
    np.testing.assert_allclose(lane.beta, kappa**-3)


def test_rescaling_both_keeps_the_least_squares_predictor_of_the_validation_data(settings, inputs):
    """The same map on both sets is a change of coordinates: the attainable validation loss does not change."""
    few = settings["fig3-features"]

    def attainable(rescaled: str) -> float:
        variant = experiment.Variant(1.0, 3, rescaled)
        valid = experiment.lane(inputs["fig3-features"], 10.0, 0, variant, few).instance.data.outer
        A, b = valid.inputs, valid.targets
        return float(np.sum((A @ np.linalg.lstsq(A, b)[0] - b) ** 2))

    np.testing.assert_allclose(attainable("training"), attainable("both"), atol=1e-10)


@pytest.mark.slow
def test_runs_measure_the_exact_hypergradient(settings, inputs, tables):
    """The mean over k < K, by a plain loop of Algorithm 2 on the uncompressed task's formulas."""
    few = settings["fig3-features"]
    instance, beta = experiment.lane(
        inputs["fig3-features"], 6.0, 1, experiment.VARIANTS[experiment.MAIN], few
    )
    (train, mu), valid = instance.data.inner, instance.data.outer
    x, y, norms = instance.x0, np.asarray(head(jnp.asarray(instance.x0), instance.data.inner)), []
    for _ in range(few["steps"]):
        norms.append(float(jnp.sum(jax.grad(value)(jnp.asarray(x), instance.data) ** 2)))
        A, n = train.inputs, len(train.targets)
        r = A.T @ (A @ (x @ y) - train.targets) / n
        y_new = y - (x.T @ r + mu * y)
        q = valid.inputs.T @ (valid.inputs @ (x @ y_new) - valid.targets) / len(valid.targets)
        w = x.T @ q  # ∇_y f
        cross = np.outer(r, w) + np.outer(A.T @ (A @ (x @ w)) / n, y)
        x, y = x - beta * (np.outer(q, y_new) - cross), y_new
    row = select(tables["fig3_features.csv"], variant=experiment.MAIN, seed=1, kappa=6.0)
    np.testing.assert_allclose(row["mean"], np.mean(norms), rtol=1e-8)
    np.testing.assert_allclose(row["first"], norms[0], rtol=1e-8)


@pytest.mark.slow
def test_tables_cover_every_case(settings, tables):
    few = settings["fig3-features"]
    assert len(tables["fig3_features.csv"]["mean"]) == len(experiment.cases(few)) == 6 * 2 * 2
    assert list(tables["fig3_exponents.csv"]["variant"]) == list(experiment.VARIANTS)


@pytest.mark.slow
def test_same_settings_same_bytes(run, tables):
    again = run("fig3-features")
    assert {file: as_csv(table) for file, table in again.items()} == {
        file: as_csv(tables[file]) for file in again
    }
