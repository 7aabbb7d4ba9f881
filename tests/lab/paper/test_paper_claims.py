"""Every verdict can come out every way it is meant to: tables made up for the purpose."""

import numpy as np
import pytest

from bilevel.lab.paper.claims import QUESTIONS, Verdict, aid, itd, judge, real
from bilevel.lab.paper.fig3_features import MAIN
from bilevel.lab.paper.registry import Results
from bilevel.lab.paper.tables import Table

KAPPA = np.array([2.0, 4.0, 8.0])


def results(tables: dict[str, Table], **settings) -> Results:
    """Tables whose experiments had the full number of steps unless said otherwise."""
    steps = {"fig3-features": 10_000, "fig3-reweighting": 3_000} | settings
    return Results(
        tables, {name: {"origin": {"settings": {"steps": count}}} for name, count in steps.items()}
    )


def bounds(file: str, paper: dict[str, float], earlier: float = 10.0) -> Results:
    """Multiples of a measured curve of ones as bounds: `paper[M]` for Theorem 5.9 or 5.17, and the earlier one."""
    parts = [(M, name, factor) for M in paper for name, factor in (("paper", paper[M]), ("earlier", earlier))]
    n = len(KAPPA)
    table = {
        "M_is": np.repeat([part[0] for part in parts], n),
        "analysis": np.repeat([part[1] for part in parts], n),
        "kappa": np.tile(KAPPA, len(parts)),
        "bound": np.repeat([part[2] for part in parts], n),
        "inherent": np.repeat([part[2] for part in parts], n),
        "measured": np.ones(n * len(parts)),
    }
    limit = {"kappa": KAPPA, "measured_limit": np.ones(n), "closed_form": np.ones(n)}
    return results({file: table, "fig2_limit.csv": limit})


@pytest.mark.parametrize(
    ("paper", "verdict"),
    [
        ({"paper": 2.0, "valid": 3.0}, Verdict.HOLDS),
        ({"paper": 0.9, "valid": 3.0}, Verdict.CAVEAT),
        ({"paper": 2.0, "valid": 0.9}, Verdict.DIFFERS),
    ],
)
@pytest.mark.parametrize(("module", "file"), [(aid, "fig1_kappa.csv"), (itd, "fig2_kappa.csv")])
def test_bound_above_measured(module, file, paper, verdict):
    assert module.above_measured(bounds(file, paper)).verdict is verdict


@pytest.mark.parametrize(("earlier", "verdict"), [(10.0, Verdict.HOLDS), (1.5, Verdict.DIFFERS)])
def test_aid_bound_below_earlier(earlier, verdict):
    found = bounds("fig1_kappa.csv", {"paper": 2.0, "valid": 2.0}, earlier)
    assert aid.below_earlier(found).verdict is verdict


@pytest.mark.parametrize(
    ("earlier", "verdict"),
    [([3, 5, 9], Verdict.HOLDS), ([1, 5, 9], Verdict.CAVEAT), ([1, 1, 1], Verdict.DIFFERS)],
)
def test_itd_bound_below_earlier_maybe_only_for_large_kappa(earlier, verdict):
    found = bounds("fig2_kappa.csv", {"paper": 2.0, "valid": 2.0})
    inherent = found["fig2_kappa.csv"]["inherent"].astype(float)
    inherent[3:6] = earlier  # the rows of (M as in the paper, earlier)
    answer = itd.below_earlier(results({"fig2_kappa.csv": found["fig2_kappa.csv"] | {"inherent": inherent}}))
    assert answer.verdict is verdict
    if verdict is Verdict.CAVEAT:
        assert "from κ = 4" in answer.why


@pytest.mark.parametrize(("last", "verdict"), [([3, 2, 1], Verdict.HOLDS), ([3, 1, 2], Verdict.DIFFERS)])
def test_curve_must_fall(last, verdict):
    table = {
        "M_is": ["paper"] * 6,
        "analysis": ["earlier"] * 3 + ["paper"] * 3,
        "bound": np.array([9.0] * 3 + [5.0] * 3),
        "measured": np.ones(6),
        "last": np.array([*last, *last], dtype=float),
    }
    assert aid.decreasing(results({"fig1_steps.csv": table})).verdict is verdict


@pytest.mark.parametrize(
    ("printed", "true", "verdict"),
    [(2.4, 2.4, Verdict.HOLDS), (2.4, 0.4, Verdict.DIFFERS), (2.4, 0.7, Verdict.DIFFERS)],
)
def test_printed_gradient(printed, true, verdict):
    table = {
        "quantity": ["gradient_of_Phi_printed", "gradient_of_Phi_corrected", "M"],
        "paper": np.array([printed, 0.4, 0.1]),
        "ours": np.array([true, true, 0.1]),
    }
    answer = aid.gradient_of_phi(results({"fig1_setup.csv": table}))
    assert answer.verdict is verdict
    assert ("our runs use that" in answer.why) == (true == 0.4)
    assert aid.lipschitz_constant(results({"fig1_setup.csv": table})).verdict is Verdict.HOLDS


def test_too_small_an_M_differs():
    table = {"quantity": ["M"], "paper": np.array([0.1]), "ours": np.array([0.1414])}
    assert aid.lipschitz_constant(results({"fig1_setup.csv": table})).verdict is Verdict.DIFFERS


def exponents(rows: list[tuple[str, str, str, float]]) -> Results:
    columns = dict(
        zip(
            ("method", "analysis", "quantity", "exponent"),
            map(np.array, zip(*rows, strict=True)),
            strict=True,
        )
    )
    return results({"table1_exponents.csv": columns})


@pytest.mark.parametrize(("paper", "verdict"), [(5.1, Verdict.HOLDS), (5.6, Verdict.DIFFERS)])
def test_aid_rate(paper, verdict):
    by_analysis = {"earlier": 6.0, "paper": paper, "sharp": 5.0, "star": 4.0}
    answer = aid.rate(exponents([("AID", name, "rate", value) for name, value in by_analysis.items()]))
    assert answer.verdict is verdict
    assert "star: κ^4.00/K" in answer.ours


@pytest.mark.parametrize(("star", "less"), [(4.0, True), (5.0, False)])
def test_aid_rate_says_that_less_is_possible_only_if_it_is(star, less):
    by_analysis = {"earlier": 6.0, "paper": 5.0, "sharp": 5.0, "star": star}
    answer = aid.rate(exponents([("AID", name, "rate", value) for name, value in by_analysis.items()]))
    assert ("not the end" in answer.why) is less


@pytest.mark.parametrize(("eta", "verdict"), [(0.0, Verdict.HOLDS), (-1.0, Verdict.DIFFERS)])
def test_step_sizes(eta, verdict):
    rows = [("AID", "earlier", "beta", -6.0), ("AID", "paper", "beta", -5.0)]
    rows += [("AID", "earlier", "eta", -2.0), ("AID", "paper", "eta", eta), ("AID", "star", "beta", -4.0)]
    assert aid.step_sizes(exponents(rows)).verdict is verdict


@pytest.mark.parametrize(("paper", "verdict"), [(2.0, Verdict.HOLDS), (2.9, Verdict.DIFFERS)])
def test_inherent_error_and_vanishing_part(paper, verdict):
    rows = [
        ("ITD", name, "inherent", value)
        for name, value in (("earlier", 3.0), ("paper", paper), ("lower bound", 2.0))
    ]
    rows += [("ITD", "paper", "rate", paper + 1), ("ITD", "paper", "beta", -3.0)]
    assert itd.matches_lower_bound(exponents(rows)).verdict is verdict
    assert itd.vanishing_part(exponents(rows)).verdict is verdict


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        (lambda k, e: 10 * k**4 / e, Verdict.HOLDS),
        (lambda k, e: 10 * k**2 / e, Verdict.CAVEAT),  # certified, but of another order
        (lambda k, e: 10 * k**4 / e**2, Verdict.DIFFERS),  # not in proportion to 1/ε
        (lambda k, e: 1000 * k**4 / e, Verdict.DIFFERS),  # more than certified
    ],
)
def test_complexity(steps, verdict):
    kappa, epsilon = (grid.ravel() for grid in np.meshgrid(KAPPA, [0.4, 0.1]))
    runs = {
        "analysis": ["paper"] * 6,
        "kappa": kappa,
        "epsilon": epsilon,
        "steps": steps(kappa, epsilon),
        "certified_steps": 100 * kappa**4.2 / epsilon,
        "Gc": 3 * steps(kappa, epsilon),
    }
    calls = {"method": ["AID"], "of": ["iteration"], "Gc": np.array([3.0]), "Mv": np.array([2.0])}
    answer = aid.complexity(results({"table1_runs.csv": runs, "table1_calls.csv": calls}))
    assert answer.verdict is verdict
    assert "Gc = 3K, Mv = 2K" in answer.ours


@pytest.mark.parametrize(("off", "verdict"), [(0.0, Verdict.HOLDS), (1e-3, Verdict.DIFFERS)])
def test_itd_ends_at_the_closed_form(off, verdict):
    table = {"measured_limit": (1 + off) * KAPPA, "closed_form": KAPPA}
    assert itd.non_vanishing(results({"fig2_limit.csv": table})).verdict is verdict


@pytest.mark.parametrize(
    ("factor", "low", "high", "of_curve", "of_lower"),
    [
        (0.33, 0.32, 0.34, Verdict.HOLDS, Verdict.DIFFERS),
        (0.33, 0.25, 0.36, Verdict.CAVEAT, Verdict.DIFFERS),
        (0.50, 0.49, 0.51, Verdict.DIFFERS, Verdict.DIFFERS),
        (0.39, 0.38, 0.40, Verdict.DIFFERS, Verdict.HOLDS),
    ],
)
def test_factors(factor, low, high, of_curve, of_lower):
    table = {"curve": ["measured_limit", "lower_bound"]}
    table |= {
        name: np.array([value] * 2) for name, value in (("factor", factor), ("low", low), ("high", high))
    }
    assert itd.factor_of_true_curve(results({"fig2_factors.csv": table})).verdict is of_curve
    assert itd.factor_of_lower_bound(results({"fig2_factors.csv": table})).verdict is of_lower


def features(exponent: float, low: float, high: float, variant: float, **settings) -> Results:
    fits = {
        "variant": [MAIN, "another"],
        "exponent": np.array([exponent, variant]),
        "low": np.array([low, variant]),
        "high": np.array([high, variant]),
        "exponent_of_actual_kappa": np.array([exponent, variant]),
        "seeds": np.array([10.0, 4.0]),
    }
    runs = {
        "variant": [MAIN],
        "kappa": np.array([3.0]),
        "kappa_lowest": np.array([2.5]),
        "kappa_highest": np.array([4.5]),
    }
    points = {"variant": [MAIN], "mean": np.array([2.0]), "fit": np.array([1.0])}
    tables = {"fig3_exponents.csv": fits, "fig3_features.csv": runs, "fig3_features_mean.csv": points}
    return results(tables, **settings)


@pytest.mark.parametrize(
    ("case", "value", "nearer"),
    [
        (features(2.2, 2.0, 2.4, variant=2.1), Verdict.HOLDS, Verdict.HOLDS),
        (features(2.2, 2.0, 2.4, variant=0.7), Verdict.CAVEAT, Verdict.CAVEAT),
        (features(2.2, 2.0, 2.7, variant=2.1), Verdict.HOLDS, Verdict.CAVEAT),
        (features(2.8, 2.6, 3.0, variant=2.7), Verdict.DIFFERS, Verdict.DIFFERS),
        (features(1.2, 1.1, 1.3, variant=1.2), Verdict.DIFFERS, Verdict.CAVEAT),
        (
            features(2.2, 2.0, 2.4, variant=2.1, **{"fig3-features": 100}),
            Verdict.NOT_JUDGED,
            Verdict.NOT_JUDGED,
        ),
    ],
)
def test_feature_learning(case, value, nearer):
    assert real.exponent(case).verdict is value
    assert real.nearer_to_two(case).verdict is nearer


def test_feature_learning_says_what_the_exponent_depends_on():
    why = real.exponent(features(2.2, 2.0, 2.4, variant=0.7)).why
    assert "variants of ours give 0.70 to 2.20" in why
    assert "within a factor 2.00 of the fitted line" in why
    assert "drifts by up to a factor 1.50" in why  # κ = 3 went from 2.5 to 4.5


def reweighting(itd_ends: list[float], aid_end: float, fall: float = 0.001, **settings) -> Results:
    ends = np.array([*itd_ends, aid_end])
    table = {
        "method": ["ITD"] * len(itd_ends) + ["AID"],
        "plateau": ends,
        "fall_in_last_third": np.full(len(ends), fall),
        "lowest_weight": np.full(len(ends), 0.49),
        "highest_weight": np.full(len(ends), 0.52),
    }
    return results({"fig3_plateau.csv": table}, **settings)


@pytest.mark.parametrize(
    ("case", "value", "inherent"),
    [
        (reweighting([0.65, 0.66], 0.5), Verdict.HOLDS, Verdict.HOLDS),
        (reweighting([0.65, 0.66], 0.8), Verdict.HOLDS, Verdict.CAVEAT),
        (reweighting([0.61, 0.60], 0.61), Verdict.CAVEAT, Verdict.DIFFERS),
        (reweighting([0.65, 0.66], 0.65, fall=0.1), Verdict.CAVEAT, Verdict.DIFFERS),
        (reweighting([0.40, 0.42], 0.2), Verdict.DIFFERS, Verdict.HOLDS),
        (reweighting([0.65], 0.5, **{"fig3-reweighting": 150}), Verdict.NOT_JUDGED, Verdict.NOT_JUDGED),
    ],
)
def test_plateau(case, value, inherent):
    assert real.plateau(case).verdict is value
    assert real.plateau_is_inherent(case).verdict is inherent


def test_the_spread_over_seeds_is_shown():
    assert real.plateau(reweighting([0.60, 0.62], 0.61)).ours == "0.610 ± 0.014 over 2 seeds"
    assert real.plateau(reweighting([0.60], 0.61)).ours == "0.600 (one seed)"


def test_without_results_nothing_is_judged_and_every_claim_is_listed():
    claims = judge(Results({}, {}))
    assert len(claims) == len(QUESTIONS)
    assert {claim.verdict for claim in claims} == {Verdict.NOT_JUDGED}
    assert all("has not been run" in claim.why for claim in claims)
