"""Figures 1 and 2 and Table 1 in miniature, against closed forms and plain loops."""

import jax.numpy as jnp
import numpy as np
import pytest

from bilevel import theory
from bilevel.lab.paper import table1
from bilevel.lab.paper.quadratic_runs import means, squared_norms, start
from bilevel.lab.paper.tables import as_csv, select
from bilevel.problems.two_dimensional import Quadratic
from bilevel.solvers.algorithms.aid import aid
from bilevel.solvers.algorithms.itd import itd

MU, M = 0.1, 0.1


def aid_by_hand(L: float, alpha: float, eta: float, beta: float, steps: int) -> list[float]:
    """Algorithm 1 on the quadratic in plain NumPy, derivatives written out."""
    Z = np.array([L, MU])
    x, v = np.ones(2), np.zeros(2)
    y = (L * x - 1) / Z
    norms = [np.sum((Z * x + L * M / Z) ** 2)]
    for _ in range(steps):
        y = y - alpha * (Z * y - L * x + 1)
        v = v - eta * (Z * v - M)
        x = x - beta * (Z * x + L * v)  # ∇²_xy g = −L·I
        norms.append(np.sum((Z * x + L * M / Z) ** 2))
    return norms


@pytest.mark.slow
def test_aid_runs_follow_algorithm_1_for_every_lane():
    L = np.array([0.2, 0.5])
    sizes = np.array([6.0, 2.0]), np.array([3.0, 1.0]), np.array([0.05, 0.01])
    options = dict(zip(("inner", "adjoint", "outer"), map(jnp.asarray, sizes), strict=True))
    norms = squared_norms(aid, MU, jnp.asarray(L), M, options, steps=50)
    by_hand = [aid_by_hand(*lane, steps=50) for lane in zip(L, *sizes, strict=True)]
    np.testing.assert_allclose(norms, by_hand, rtol=1e-12)


@pytest.mark.slow
def test_itd_runs_end_at_the_closed_form():
    kappa = np.array([2.0, 5.0, 10.0])
    L = jnp.asarray(kappa * MU)
    norms = squared_norms(itd, MU, L, M, {"inner": 1 / L, "outer": 1 / L}, steps=500)
    np.testing.assert_allclose(norms[:, -1], M**2 * (kappa - 1) ** 2, rtol=1e-8)
    norms = squared_norms(itd, MU, L, M, {"inner": 2 / (L + MU), "outer": 1 / L}, steps=500)
    np.testing.assert_allclose(norms[:, -1], with_the_longer_step(kappa), rtol=1e-8)


def with_the_longer_step(kappa: np.ndarray) -> np.ndarray:
    """‖∇Φ‖² where ITD with α = 2/(L + μ) ends: ∇Φ = LM(1/L − α, 1/μ − α) there."""
    return M**2 * ((kappa - 1) / (kappa + 1)) ** 2 * (kappa**2 + 1)


def test_means_start_with_x0():
    np.testing.assert_allclose(means(np.array([[4.0, 2.0, 0.0, 9.0]])), [[4.0, 3.0, 2.0]])


@pytest.mark.slow
def test_start_gives_the_gap_and_the_adjoint_error():
    gap, error = start(MU, np.array([0.4]), M)
    z, x0 = np.array([0.4, MU]), np.ones(2)
    solution = -0.4 * M / z**2
    phi = lambda x: 0.5 * np.sum(z * x * x) + M * np.sum((0.4 * x - 1) / z)
    np.testing.assert_allclose(gap[0], phi(x0) - phi(solution))
    np.testing.assert_allclose(error[0], np.linalg.norm(M / z))  # v* = Z⁻¹∇_y f, from v₀ = 0


@pytest.mark.slow
@pytest.mark.parametrize("analysis", ["earlier", "paper", "sharp", "tight", "star"])
@pytest.mark.parametrize("file", ["fig1_kappa.csv", "fig1_steps.csv", "fig2_kappa.csv"])
def test_no_run_is_above_its_valid_bound(tables, file, analysis):
    rows = select(tables[file], M_is="valid", analysis=analysis)
    assert len(rows["bound"]) >= 3
    assert np.all(rows["measured"] <= rows["bound"])
    assert np.all(np.isfinite(rows["bound"]))


@pytest.mark.slow
def test_runs_take_the_certified_inner_steps(tables):
    rows = tables["fig1_kappa.csv"]
    L = MU * rows["kappa"]
    star = rows["analysis"] == "star"
    np.testing.assert_allclose(rows["alpha"], np.where(star, 2 / (L + MU), 1 / L))
    # η is too, but for the earlier analysis, which needs μ²/(4L³).
    np.testing.assert_allclose(
        rows["eta"], np.where(rows["analysis"] == "earlier", MU**2 / (4 * L**3), rows["alpha"])
    )


@pytest.mark.slow
def test_star_is_the_lowest_bound_on_aid_and_the_gap_to_the_paper_widens_with_kappa(tables):
    bound = {
        name: select(tables["fig1_kappa.csv"], M_is="valid", analysis=name)["bound"]
        for name in ("earlier", "paper", "sharp", "tight", "star")
    }
    assert np.all(np.diff(list(bound.values()), axis=0) < 0)
    assert np.all(np.diff(bound["paper"] / bound["star"]) > 0)


@pytest.mark.slow
def test_figure_2_measures_the_limit_and_knows_its_closed_form(tables):
    rows = tables["fig2_limit.csv"]
    expected = M**2 * (rows["kappa"] - 1) ** 2
    np.testing.assert_allclose(rows["measured_limit"], expected, rtol=1e-8)
    np.testing.assert_allclose(rows["closed_form"], expected, rtol=1e-12)
    np.testing.assert_allclose(rows["lower_bound"], expected, rtol=1e-12)
    np.testing.assert_allclose(rows["measured_limit_star"], with_the_longer_step(rows["kappa"]), rtol=1e-8)
    np.testing.assert_allclose(rows["closed_form_star"], with_the_longer_step(rows["kappa"]), rtol=1e-12)
    assert np.all(rows["lower_bound_strict"] < rows["lower_bound"])


@pytest.mark.slow
def test_figure_2_factor_is_the_geometric_mean_of_the_ratios(tables):
    inherent = select(tables["fig2_kappa.csv"], M_is="paper", analysis="paper")["inherent"]
    ratio = tables["fig2_limit.csv"]["measured_limit"] / inherent
    factors = tables["fig2_factors.csv"]
    assert factors["curve"][0] == "measured_limit"
    np.testing.assert_allclose(factors["factor"][0], np.prod(ratio) ** (1 / len(ratio)))
    np.testing.assert_allclose((factors["low"][0], factors["high"][0]), (ratio.min(), ratio.max()))


@pytest.mark.slow
def test_setup_shows_the_missing_coefficient(tables):
    table = tables["fig1_setup.csv"]
    # At κ = 2: ∇Φ(1) = (L + M, μ + Mκ) = (0.3, 0.3).
    np.testing.assert_allclose(table["ours"][0], 0.3 * np.sqrt(2))
    np.testing.assert_allclose(table["ours"][2], 0.1 * np.sqrt(2))


@pytest.mark.slow
def test_exponents_of_the_bounds_are_the_papers(tables):
    table = tables["table1_exponents.csv"]
    claimed, found = np.array(table["paper_exponent"]), np.array(table["exponent"])
    known = ~np.isnan(claimed)
    assert known.sum() == 12
    np.testing.assert_allclose(found[known], claimed[known], atol=0.05)


@pytest.mark.slow
def test_star_gains_a_factor_kappa(tables):
    rows = select(tables["table1_exponents.csv"], method="AID", analysis="star")
    found = dict(zip(rows["quantity"], rows["exponent"], strict=True))
    assert found == pytest.approx({"rate": 4, "beta": -4, "eta": 0}, abs=0.05)


@pytest.mark.slow
def test_calls_are_counted_per_step(tables):
    calls = {
        (method, of): tuple(row)
        for method, of, *row in zip(*tables["table1_calls.csv"].values(), strict=True)
    }
    assert calls["AID", "iteration"] == (2, 1, 1, 1, 3, 2)
    assert calls["ITD", "iteration"] == (2, 1, 0, 1, 3, 1)
    assert calls["AID", "warm-up"] == calls["ITD", "warm-up"] == (0, 1, 0, 0, 1, 0)


def test_start_of_table_1_has_gap_one():
    q = Quadratic(0.25, 1.0, 1 / np.sqrt(2))
    np.testing.assert_allclose(q.value(table1.start(q)) - q.value(q.solution), 1.0, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("analysis", "step"), [("sharp", 1.0), ("star", 4 / 3)])
def test_steps_to_epsilon_agree_with_a_plain_loop(tables, analysis, step):
    runs = select(tables["table1_runs.csv"], analysis=analysis, kappa=2.0)
    certificate = theory.analyses(theory.Constants(0.5, 1.0, 1.0, 1.0), "AID")[analysis]
    beta = certificate.best_beta(1e9, 1.0, y_error=0.5)
    m, z = 1 / np.sqrt(2), np.array([1.0, 0.5])
    x = -m / z**2 + 1 / np.sqrt(z)
    y, v = (x - 1) / z + 0.5 * np.array([0.0, 1.0]), np.zeros(2)
    total, needed, k = 0.0, {}, 0
    while len(needed) < 2:
        total, k = total + np.sum((z * x + m / z) ** 2), k + 1
        for epsilon in (0.6, 0.4):
            if total / k <= epsilon:
                needed.setdefault(epsilon, k)
        y = y - step * (z * y - x + 1)
        v = v - step * (z * v - m)
        x = x - beta * (z * x + v)
    assert dict(zip(runs["epsilon"].tolist(), runs["steps"].tolist(), strict=True)) == needed


@pytest.mark.slow
def test_costs_are_calls_times_steps_and_certified(tables):
    runs = tables["table1_runs.csv"]
    np.testing.assert_array_equal(runs["Gc"], 3 * runs["steps"] + runs["warmup_steps"])
    np.testing.assert_array_equal(runs["Mv"], 2 * runs["steps"])
    assert np.all(runs["steps"] <= runs["certified_steps"])
    counts = {name: select(runs, analysis=name) for name in ("paper", "star")}
    for count in ("steps", "certified_steps"):
        assert np.all(counts["star"][count] < 0.1 * counts["paper"][count])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fig1", "fig2", "table1"])
def test_same_settings_same_bytes(run, tables, name):
    again = run(name)
    assert {file: as_csv(table) for file, table in again.items()} == {
        file: as_csv(tables[file]) for file in again
    }
