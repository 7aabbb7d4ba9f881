"""Bad values, extreme numbers and odd shapes; and what must hold whatever the numbers are, such as change of units."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from bilevel import theory
from bilevel.cli import app
from bilevel.theory import Blocks, Constants, Noise, limit, momentum, recursions, star, stochastic

CONSTANTS = Constants(0.1, 1.0, 1.0, 0.5)
FIELDS = ("mu", "L_yy", "L_xy", "f_xx", "f_xy", "f_yy", "M_y", "rho_xxy", "rho_xyy", "rho_yyy")
ONES = dict(
    mu=0.3, L_yy=2.0, L_xy=1.2, f_xx=0.7, f_xy=0.4, f_yy=1.5, M_y=0.8, rho_xxy=0.2, rho_xyy=0.5, rho_yyy=0.9
)
NOISE = Noise(0.1, 0.2, 0.3, 0.05, 0.07)

pytestmark = pytest.mark.filterwarnings("error")


def random_blocks(rng, shape=(), sparse=False):
    """Blocks of many sizes, with some of them zero if they may be."""
    size = {name: 10 ** rng.uniform(-2, 2, shape) for name in FIELDS}
    if sparse:
        size |= {name: size[name] * rng.integers(0, 2, shape) for name in FIELDS[2:]}
    return Blocks(**size | {"L_yy": size["mu"] * 10 ** rng.uniform(0, 3, shape)})


# Units: with x' = a·x, y' = b·y, f' = c·f and g' = d·g every constant, step size and bound is known from the old one.


def in_units(k, a, b, c, d):
    scale = {
        "mu": d / b**2,
        "L_yy": d / b**2,
        "L_xy": d / (a * b),
        "f_xx": c / a**2,
        "f_xy": c / (a * b),
        "f_yy": c / b**2,
        "M_y": c / b,
        "rho_xxy": d / (a * a * b),
        "rho_xyy": d / (a * b * b),
        "rho_yyy": d / b**3,
    }
    return Blocks(**{name: getattr(k, name) * factor for name, factor in scale.items()})


UNITS = [(3.0, 0.2, 7.0, 0.5), (1e-6, 1e5, 1e-7, 1e8)]
QUADRATIC = {"rho_xyy": 0.0, "rho_yyy": 0.0}


@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize("sparse", [False, True])
def test_star_does_not_depend_on_units(units, sparse):
    a, b, c, d = units
    k = random_blocks(np.random.default_rng(1), (6,), sparse)
    k = replace_fields(k, f_xx=np.maximum(k.f_xx, 1e-2))
    moved, makes = in_units(k, *units), (star.aid, star.soba, star.itd)
    makes = (*makes, lambda k: star.aid(k, inner_steps=3, adjoint_steps=5))
    for make in makes:
        old, new = make(k), make(moved)
        np.testing.assert_allclose(new.alpha, old.alpha * b**2 / d, rtol=1e-12)
        np.testing.assert_allclose(new.beta_max, old.beta_max * a**2 / c, rtol=1e-9)
        np.testing.assert_allclose(new.inherent_error, old.inherent_error * (c / a) ** 2, rtol=1e-9)
        start, other = (0.7, 0.3, 0.2), (0.7 * c, 0.3 * b, 0.2 * b * c / d)
        for K in (1, 40):
            beta = 0.9 * old.beta_max
            bounds = old.bound(K, *start, beta), new.bound(K, *other, beta * a**2 / c)
            np.testing.assert_allclose(bounds[1], bounds[0] * (c / a) ** 2, rtol=1e-8)
        if old.method != "ITD":
            m = 0.3 * k.L_Phi
            np.testing.assert_allclose(
                new.linear_beta(m * c / a**2), old.linear_beta(m) * a**2 / c, rtol=1e-6
            )
            last = old.last_value(5, start[0], m, *start[1:], beta / 2)
            also = new.last_value(5, other[0], m * c / a**2, *other[1:], beta / 2 * a**2 / c)
            np.testing.assert_allclose(also, last * c, rtol=1e-8)


def replace_fields(k, **changes):
    return Blocks(**{name: changes.get(name, getattr(k, name)) for name in FIELDS})


@pytest.mark.slow
@pytest.mark.parametrize("units", UNITS)
def test_limits_and_momentum_do_not_depend_on_units(units):
    a, b, c, d = units
    k = random_blocks(np.random.default_rng(2), (4,))
    for make in (limit.aid, limit.soba):
        old, new = make(k), make(in_units(k, *units))
        np.testing.assert_allclose(new.beta, old.beta * a**2 / c, rtol=1e-6)
        np.testing.assert_allclose(new.rate(9, 2.0 * c), old.rate(9, 2.0) * (c / a) ** 2, rtol=1e-6)
    k = replace_fields(k, **QUADRATIC)
    for make in (momentum.aid, momentum.heavy_ball):
        old, new = make(k), make(in_units(k, *units))
        np.testing.assert_allclose(new.beta_max, old.beta_max * a**2 / c, rtol=1e-5)
        beta = 0.8 * old.beta_max
        bounds = old.bound(9, 1.0, 0.3, 0.2, beta), new.bound(9, c, 0.3 * b, 0.2 * b * c / d, beta * a**2 / c)
        np.testing.assert_allclose(bounds[1], bounds[0] * (c / a) ** 2, rtol=1e-4)


@pytest.mark.parametrize("v_bend", [None, 0.4])
def test_stochastic_bounds_do_not_depend_on_units(v_bend):
    a, b, c, d = units = 3.0, 0.2, 7.0, 0.5
    k, n = Blocks(**ONES), NOISE
    moved = Noise(
        n.inner * d / b, n.adjoint * c / b, n.outer * c / a, n.hessian * d / b**2, n.cross * d / (a * b)
    )
    bend = None if v_bend is None else v_bend * b * c / (d * a**2)
    for make in (stochastic.aid, stochastic.soba):
        old, new = make(k, n, v_bend), make(in_units(k, *units), moved, bend)
        sizes = np.array(old.step_sizes(50, 0.7, 0.3, 0.2))
        changed = sizes * np.array([b**2 / d, b**2 / d, a**2 / c])
        start, other = (0.7, 0.3, 0.2), (0.7 * c, 0.3 * b, 0.2 * b * c / d)
        expected = old.bound(50, *start, sizes=tuple(sizes)) * (c / a) ** 2
        assert np.isfinite(expected)
        assert new.bound(50, *other, sizes=tuple(changed)) == pytest.approx(expected, rel=1e-9)
        long = lambda sizes: tuple(np.full(6, size) for size in sizes)
        expected = old.schedule_bound(long(sizes), *start) * (c / a) ** 2
        assert new.schedule_bound(long(changed), *other) == pytest.approx(expected, rel=1e-9)


def test_the_papers_analyses_do_not_depend_on_units():
    a, c = 3.0, 7.0  # one unit of length and one of height: a single L does not allow more
    k = CONSTANTS
    moved = Constants(k.mu * c / a**2, k.L * c / a**2, k.M * c / a, k.rho * c / a**3)
    pairs = [
        (old, new)
        for method in ("AID", "ITD", "SOBA")
        for old, new in zip(
            theory.analyses(k, method).values(), theory.analyses(moved, method).values(), strict=True
        )
    ]
    pairs.append((recursions.weighted_squares(k), recursions.weighted_squares(moved)))
    for old, new in pairs:
        beta = 0.9 * old.beta_max
        # The paper's L_Φ has M² where M belongs, and its radius of ITD is a slope and no length.
        if old.analysis == "paper" or (old.method == "ITD" and old.analysis in ("earlier", "sharp")):
            continue
        assert new.beta_max == pytest.approx(old.beta_max * a**2 / c, rel=1e-9)
        bound = new.bound(30, c, 0.01 * a, 0.02 * a, beta * a**2 / c)
        assert bound == pytest.approx(old.bound(30, 1.0, 0.01, 0.02, beta) * (c / a) ** 2, rel=1e-8), (
            old.analysis
        )


# Order: nothing gets better with a worse start or larger constants, at a fixed step.


def every_certificate():
    k = CONSTANTS
    quadratic = Constants(k.mu, k.L, k.M, 0.0)
    every = [c for method in ("AID", "ITD", "SOBA") for c in theory.analyses(k, method).values()]
    return [*every, recursions.weighted_squares(k), momentum.aid(quadratic), momentum.heavy_ball(quadratic)]


def test_a_worse_start_never_has_a_smaller_bound_and_longer_runs_never_a_smaller_sum():
    grow = np.concatenate([[0.0], np.geomspace(1e-8, 1e8, 9)])
    for certificate in every_certificate():
        beta = certificate.beta_max * np.array([[1e-6], [0.3], [0.999]])
        rising = lambda values: np.all(values[:, 1:] >= values[:, :-1] * (1 - 1e-9))
        assert rising(certificate.bound(20, grow, 0.1, 0.1, beta)), certificate.analysis
        assert rising(certificate.bound(20, 1.0, grow, 0.1, beta)), certificate.analysis
        assert rising(certificate.bound(20, 1.0, 0.1, grow, beta)), certificate.analysis
        K = np.array([1, 2, 3, 5, 100, 1e6, 1e18, 1e100])
        assert rising(K * certificate.bound(K, 1.0, 0.1, 0.1, beta)), certificate.analysis


@pytest.mark.parametrize(("start", "rounding"), [((0.0, 0.0), 1e-9), ((0.3, 0.2), 1e-2)])
def test_larger_blocks_never_have_a_smaller_bound_at_a_fixed_step(start, rounding):
    """From an inexact start up to what is lost by trying three ω and one θ."""
    rng = np.random.default_rng(3)
    k = random_blocks(rng, (40,), sparse=True)
    k = replace_fields(k, f_xx=k.f_xx + 0.01)
    alpha = 1 / (2 * k.L_yy)
    for make in (star.aid, star.soba):
        small = make(k, alpha, alpha)
        beta = 0.7 * small.beta_max
        before = small.bound(30, 1.0, *start, beta)
        for name in FIELDS[2:]:
            larger = replace_fields(k, **{name: 1.3 * getattr(k, name) + 1e-3})
            after = make(larger, alpha, alpha).bound(30, 1.0, *start, beta)
            assert np.all(after >= before * (1 - rounding)), name


@pytest.mark.slow
def test_arrays_agree_with_scalar_calls_and_constants_with_their_blocks():
    k = Constants(np.array([[1.0], [0.1]]), 1.0, np.array([0.0, 0.5, 2.0]), 0.3)
    for make in (star.aid, star.soba, star.itd):
        whole, blocks = make(k), make(k.blocks)
        y_error = np.array([0.0, 0.1, 3.0])
        bounds, steps = whole.bound(20, 1.0, y_error), whole.best_beta(20, 1.0, y_error)
        assert np.array_equal(bounds, blocks.bound(20, 1.0, y_error))
        for i, mu in enumerate((1.0, 0.1)):
            for j, M in enumerate((0.0, 0.5, 2.0)):
                one = make(Constants(mu, 1.0, M, 0.3))
                assert bounds[i, j] == pytest.approx(one.bound(20, 1.0, y_error[j]), rel=1e-9)
                assert steps[i, j] == pytest.approx(one.best_beta(20, 1.0, y_error[j]), rel=1e-6)


@pytest.mark.slow
def test_the_best_step_is_within_its_slack_of_the_lowest_bound():
    shares = np.geomspace(1e-12, 1.0, 400)
    for certificate in every_certificate():
        if not hasattr(certificate, "beta"):
            for y_error in (0.0, 10.0):
                cap = getattr(getattr(certificate, "system", certificate), "beta_cap", certificate.beta_max)
                lowest = np.min(certificate.bound(30, 1.0, y_error, 0.1, shares * cap))
                if np.isinf(lowest):  # a start that the analysis does not cover
                    continue
                slack = np.array([0.0, 0.1, 1e300])
                found = certificate.bound(
                    30, 1.0, y_error, 0.1, certificate.best_beta(30, 1.0, y_error, 0.1, slack)
                )
                assert np.all(np.isfinite(found))
                assert np.all(found[:2] <= (1 + slack[:2]) * lowest * (1 + 1e-9))


# Extremes.


def test_a_linear_phi_admits_every_step_and_none_is_best():
    for zero in ({"L_xy": 0.0, "f_xx": 0.0, "rho_xxy": 0.0}, dict.fromkeys(FIELDS[2:], 0.0)):
        k = Blocks(**ONES | zero)
        for make in (star.aid, star.soba, star.itd):
            certificate = make(k)
            assert certificate.beta_max == np.inf
            assert np.isfinite(certificate.bound(10, 1.0, 0.1, beta=1e6))
            for ask in (certificate.bound, certificate.best_beta, certificate.step_sizes):
                with pytest.raises(ValueError, match="every outer step is certified"):
                    ask(10, 1.0)
        for make in (stochastic.aid, stochastic.soba):
            with pytest.raises(ValueError, match="every outer step is certified"):
                make(k, NOISE).step_sizes(10, 1.0)
        with pytest.raises(ValueError, match="every outer step is certified"):
            theory.cheapest(k, 0.1, 1.0)
        assert limit.aid(k).beta == np.inf
        with pytest.raises(ValueError, match="no outer step is too large"):
            limit.aid(k).instance()


@pytest.mark.slow
def test_large_condition_numbers_have_finite_bounds():
    k = Constants(1.0, np.array([1.0, 1e6, 1e12]), 1.0, 1.0)
    every = [c for method in ("AID", "ITD", "SOBA") for c in theory.analyses(k, method).values()]
    every.append(momentum.aid(Constants(k.mu, k.L, k.M, 0.0)))  # the heavy ball takes seconds at 1e12
    for certificate in every:
        bound, beta = certificate.bound(100, 1.0), certificate.best_beta(100, 1.0)
        assert np.all((bound > 0) & np.isfinite(bound)), (certificate.method, certificate.analysis)
        assert np.all(np.diff(bound) > 0)
        assert np.all(certificate.bound(100, 1.0, beta=beta) <= 1.1 * bound * (1 + 1e-9))


def test_momentum_next_to_the_limit_of_stability_ends():
    with pytest.raises(ValueError, match="is not stable for curvature"):
        momentum.heavy_ball(Constants(0.1, 1.0, 1.0, 0.0), alpha=2 * (1 - 1e-12), m=0.0)


def test_runs_of_any_length_end_and_have_finite_bounds():
    for certificate in (star.aid(CONSTANTS), star.soba(CONSTANTS), star.itd(CONSTANTS)):
        beta = 0.9 * certificate.beta_max
        long, longest = certificate.bound(np.array([1e30, 1e300]), 1.0, 0.1, beta=beta)
        assert certificate.inherent_error <= longest <= long < np.inf
        if certificate.method != "ITD":
            assert longest * 1e270 == pytest.approx(long, rel=1e-9)
    assert (
        star.aid(CONSTANTS, adjoint_steps=10**12, inner_steps=10**12).beta_max > star.aid(CONSTANTS).beta_max
    )


@pytest.mark.slow
def test_numbers_out_of_range_have_an_infinite_bound_never_a_wrong_one():
    for certificate in every_certificate():
        beta = 0.5 * certificate.beta_max
        for start in ((1e308,), (1.0, 1e308), (1.0, 0.0, 1e308)):
            assert not np.isnan(certificate.bound(5, *start, beta=beta))
        assert certificate.bound(5, 1e308, beta=beta) == np.inf
        assert certificate.bound(5, 1.0, beta=1e308) == np.inf
        assert certificate.bound(1, 1.0, beta=1e-310) == np.inf
    with pytest.raises(ValueError, match="no number of steps that float64 holds"):
        theory.cheapest(CONSTANTS, 1e-310, 1.0)


# Bad values.

MASKED = np.ma.masked_array([1.0, 2.0], mask=[True, False])
NEITHER = "a real number or an array of them"


@pytest.mark.parametrize(
    "value", [MASKED, np.ma.masked, "1.5", None, True, 1j, [[1, 2], [3]], 10**400, {}, len]
)
def test_what_is_not_a_number_is_named(value):
    with pytest.raises(TypeError, match=f"L_xy must be {NEITHER}"):
        Blocks(**ONES | {"L_xy": value})
    with pytest.raises(TypeError, match=f"gap must be {NEITHER}"):
        star.aid(CONSTANTS).bound(10, value, beta=1e-3)


@pytest.mark.parametrize("value", [np.float32(2), np.longdouble(2), np.array(2), 2, np.int8(2)])
def test_numbers_of_every_kind_are_numbers(value):
    assert star.aid(CONSTANTS).bound(10, value, beta=1e-4) == star.aid(CONSTANTS).bound(10, 2.0, beta=1e-4)
    assert star.aid(CONSTANTS).bound([10**30, 10], 1.0, beta=1e-4)[0] == star.aid(CONSTANTS).bound(
        1e30, 1.0, beta=1e-4
    )


def test_empty_arrays_have_empty_answers():
    for shape in ((0,), (0, 3)):
        nothing = np.ones(shape)
        certificate = star.aid(Blocks(**ONES | {"M_y": nothing}))
        assert np.shape(certificate.beta_max) == shape
        assert np.shape(certificate.bound(10, 1.0, beta=1e-3)) == shape
        assert np.shape(star.aid(CONSTANTS).linear_beta(nothing)) == shape


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (lambda: Blocks(**ONES | {"L_xy": 1e300}), ValueError, "beyond what float64 holds"),
        (lambda: Constants(1e-200, 1.0, 1.0, 1.0), ValueError, "beyond what float64 holds"),
        (lambda: Constants(1.0, 1.0, np.longdouble("1e4000"), 1.0), ValueError, "M must be finite"),
        (
            lambda: Blocks(**ONES | {"mu": np.array([1.0, 9.0, 3.0]), "L_yy": np.array([1.0, 9.5, 2.0])}),
            ValueError,
            "mu = 3.0 exceeds L_yy = 2.0",
        ),
        (lambda: theory.aid(Blocks(**ONES)), TypeError, "stated for theory.Constants.*star takes blocks"),
        (lambda: theory.itd(3.0), TypeError, "stated for theory.Constants.*not float"),
        (lambda: theory.tight.itd(None), TypeError, "stated for theory.Constants"),
        (lambda: theory.lower_bound(None), TypeError, "stated for theory.Constants"),
        (lambda: recursions.weighted_squares("k"), TypeError, "stated for theory.Constants"),
        (lambda: theory.analyses(CONSTANTS, []), ValueError, "no certificate is known for"),
        (lambda: theory.aid(Constants(1e-14, 1.0, 1.0, 1.0)), ValueError, "condition number is 1e\\+14"),
        (lambda: star.aid(Constants(1e-14, 1.0, 1.0, 1.0)), ValueError, "condition number is 1e\\+14"),
        (lambda: star.aid(CONSTANTS, alpha=1e-300), ValueError, "alpha = 1e-300 does not contract"),
        (lambda: star.aid(CONSTANTS, alpha=1e308), ValueError, "alpha = 1e\\+308 does not contract"),
        (lambda: star.aid(CONSTANTS, adjoint_steps=10**400), ValueError, "adjoint_steps must be at most"),
        (lambda: star.aid(CONSTANTS).bound([1, 2, 3], [1.0, 2.0]), ValueError, r"steps \(3,\), gap \(2,\)"),
        (lambda: theory.aid(CONSTANTS).bound(1, 1.0, [1, 2], [1, 2, 3]), ValueError, r"y_error \(2,\)"),
        (lambda: star.aid(CONSTANTS).best_beta([1, 2], 1.0, slack=[1, 2, 3]), ValueError, r"slack \(3,\)"),
        (lambda: star.aid(CONSTANTS).last_value([1, 2], [1, 2, 3], 0.1), ValueError, r"gap \(3,\)"),
        (lambda: star.aid(CONSTANTS).bound_from(1, 1.0, 0.5), TypeError, "errors must be a pair"),
        (
            lambda: theory.aid(CONSTANTS).bound_from(1, 1.0, (-1, 0)),
            ValueError,
            "initial error must be at least 0",
        ),
        (lambda: limit.first_unstable_beta((1, 1, 1), 1, -1, 1, 1), ValueError, "curvature must be positive"),
        (
            lambda: limit.first_unstable_beta((1, 1, 1), 1, 1, 1, 1, "ITD"),
            ValueError,
            "no limit is known for 'ITD'",
        ),
        (lambda: limit.aid(CONSTANTS).instance([1, 2]), TypeError, "beta must be one number"),
        (lambda: theory.cheapest(CONSTANTS, 0.1, 1.0, -1), ValueError, "y_error must be at least 0"),
        (lambda: theory.cheapest(CONSTANTS, 0.1, [1, 2]), TypeError, "gap must be one number"),
        (lambda: theory.cheapest(CONSTANTS, 0.1, 1.0, most=0.5), ValueError, "most must be a whole number"),
        (lambda: NOISE.of_batches(-np.inf), ValueError, "rows must be a whole number"),
        (lambda: NOISE.of_batches("4"), ValueError, "rows must be a whole number"),
        (
            lambda: stochastic.aid(CONSTANTS, NOISE).bound(9, 1.0, sizes=0.1),
            TypeError,
            "step sizes must be three",
        ),
        (
            lambda: stochastic.aid(CONSTANTS, NOISE).schedule_bound(None, 1.0),
            TypeError,
            "step sizes must be three",
        ),
        (
            lambda: stochastic.aid(CONSTANTS, NOISE).decreasing(1e300, 1.0),
            ValueError,
            "too many to search over",
        ),
        (lambda: stochastic.measure_noise(None, 1.0, 1.0, None), TypeError, "problem must be a bl.Problem"),
    ],
)
@pytest.mark.usefixtures("as_users_see_it")
def test_bad_input(wrong, error, words):
    with pytest.raises(error, match=words):
        wrong()


# The command line.


@pytest.mark.slow
@pytest.mark.parametrize("more", [["--gap", "1e308"], ["--M", "0", "--y-distance", "1"]])
def test_certify_prints_valid_json_whatever_the_numbers(more):
    out = CliRunner().invoke(
        app, ["certify", "--mu", "1", "--L", "4", "--M", "1", "--rho", "1", "--json", *more]
    )
    assert out.exit_code == 0, out.output
    refuse = lambda name: pytest.fail(f"{name} is not JSON")
    report = json.loads(out.stdout, parse_constant=refuse)
    assert (report["aid"]["star"]["bound"] is None) == ("1e308" in more)


@pytest.mark.slow
def test_certify_prints_on_a_terminal_without_greek_letters(monkeypatch):
    import io
    import sys

    from bilevel.cli import main

    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(
        sys, "argv", ["bilevel", "certify", "--mu", "1", "--L", "1", "--M", "1", "--rho", "1"]
    )
    with pytest.raises(SystemExit) as end:
        main()
    screen.flush()
    assert end.value.code == 0
    shown = screen.buffer.getvalue().decode("ascii")
    assert "Single-loop AID" in shown
    assert "?" not in shown
    assert "mu = 1, L = 1, M = 1, rho = 1: kappa = 1, L_Phi = " in shown
    steps = [line for line in shown.splitlines() if " step " in line]
    assert {line.split("|")[1].strip() for line in steps} == {
        *("inner step alpha", "adjoint step eta", "outer step beta"),
    }
    assert {line.index("|", 1) for line in steps} == {steps[0].index("|", 1)}  # as wide as the names
