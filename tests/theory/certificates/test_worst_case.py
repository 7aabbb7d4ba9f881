"""The semidefinite program for the exact worst case, and the tables of docs/theory/worst-case.md that come from it."""

from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest
from measured import MEASURED, Record
from worst_case import shown, worst_case

from bilevel import theory

solved = pytest.mark.skipif(
    not (find_spec("cvxpy") and find_spec("clarabel")), reason="needs pip install 'bilevel[worst-case]'"
)


def case(kappa, share=0.9):
    constants = theory.Constants(1 / kappa, 1.0, 1.0, 1.0)
    certificate = theory.star.aid(constants)
    return constants.blocks, certificate, share * certificate.beta_max


@solved
def test_one_exact_step_is_a_step_of_gradient_descent():
    """Φ(x₀) − Φ(x₁) ≥ β(1 − βL_Φ/2)‖∇Φ(x₀)‖², and Φ(x₀) − inf Φ ≥ ‖∇Φ(x₀)‖²/2L_Φ: both with equality."""
    blocks, c, beta = case(3.0)
    one = lambda **to: worst_case(blocks, c.alpha, c.eta, beta, steps=1, gap=2.0, **to)
    assert one() == pytest.approx(2 / (beta * (1 - beta * blocks.L_Phi / 2)), rel=1e-4)
    assert one(gap_to="infimum") == pytest.approx(2 * 2 * blocks.L_Phi, rel=1e-4)


@solved
def test_one_step_from_a_wrong_adjoint():
    """‖h₀ − ∇Φ(x₀)‖ ≤ E = L_xy·t·‖v₀ − v*‖, and Δ ≥ β⟨∇Φ, h⟩ − ½β²L_Φ‖h‖² is least for the shortest h, along ∇Φ."""
    blocks, c, beta = case(3.0)
    v_error, smooth = 0.5, beta * blocks.L_Phi
    E = blocks.L_xy * (1 - c.eta * blocks.mu) * v_error
    # With h = G − E and G > E the descent is β(G − E)(G − ½βL_Φ(G − E)): solve for the G at which it is the gap.
    gap = 1.0
    G = max(np.roots([1 - smooth / 2, smooth * E - E, -smooth * E**2 / 2 - gap / beta]).real)
    assert G > E
    found = worst_case(blocks, c.alpha, c.eta, beta, steps=1, gap=gap, v_error=v_error)
    assert found == pytest.approx(G**2, rel=1e-4)


@solved
def test_from_a_wrong_start_star_is_above_it_too():
    blocks, c, beta = case(4.0)
    start = {"y_error": 0.05, "v_error": 0.3}
    worst = worst_case(blocks, c.alpha, c.eta, beta, 3, 1.0, **start)
    assert worst_case(blocks, c.alpha, c.eta, beta, 3, 1.0) < worst
    assert worst <= c.bound(3, 1.0, **start, beta=beta) * (1 + 1e-4)


def test_an_unknown_gap_is_refused():
    blocks, c, beta = case(2.0)
    with pytest.raises(ValueError, match='"run" or "infimum", got \'lowest\''):
        worst_case(blocks, c.alpha, c.eta, beta, 1, 1.0, gap_to="lowest")


# The tables, as far as they do without the program


def rows(name):
    (table,) = Record(MEASURED / f"{name}.md").tables
    return [dict(zip(table.head, row, strict=True)) for row in table.rows]


def constants(row):
    return theory.Constants(1 / float(row["κ"]), 1.0, 1.0, 1.0), int(row["K"])


def in_order(row, *names):
    """Each is at most the next, as far as the digits shown and the tolerance of the program tell."""
    values = [float(row[name]) for name in names]
    return all(small <= 1.001 * large for small, large in pairwise(values))


@pytest.mark.parametrize(("name", "far"), [("worst-case-star", 0.0), ("worst-case-no-adjoint", 1.0)])
def test_bounds_at_the_best_step_are_what_the_tables_say(name, far):
    for row in rows(name):
        k, K = constants(row)
        c, v_error = theory.star.aid(k), far * k.kappa
        beta = c.best_beta(K, 1.0, 0.0, v_error, slack=0.0)
        assert shown(beta, c.bound(K, 1.0, 0.0, v_error, beta)) == [row["β"], row["star"]]
        ratio = float(row["star"]) / float(row["worst case"])
        assert ratio == pytest.approx(float(row["star/worst case"]), abs=2e-3)
        assert in_order(row, "worst case", "star")


def test_found_is_below_the_worst_case_and_a_gap_to_the_infimum_allows_less():
    for row in rows("worst-case-star"):
        assert in_order(row, "found", "worst case")
        assert in_order(row, "to the infimum", "worst case")
        assert in_order(row, "worst case there", "worst case")
        assert float(row["found"]) >= 0.65 * float(row["worst case"])  # the search is worth its name
        k, K = constants(row)
        if K == 1:  # gradient descent: Δ = β(1 − βL_Φ/2)‖∇Φ‖²
            beta = float(row["β"])
            exact = 1 / (beta * (1 - beta * k.L_Phi_blockwise / 2))
            assert [float(row[name]) for name in ("found", "worst case")] == pytest.approx(
                [exact] * 2, rel=1e-3
            )


def test_bounds_at_the_papers_step_are_what_the_table_says():
    for row in rows("worst-case-paper"):
        k, K = constants(row)
        made = theory.star.aid(k, 1.0, 1.0), theory.tight.aid(k), theory.sharp.aid(k), theory.aid(k)
        beta = 1 / (32 * (1 + k.kappa) * k.kappa**2 * (k.kappa**2 + (k.kappa + 1) / 4))  # μ/8C₂L²
        bounds = shown(beta, *(c.bound(K, 1.0, 0.0, 0.0, beta) for c in made))
        assert bounds == [row[name] for name in ("β", "star", "tight", "sharp", "paper")]
        assert in_order(row, "found", "worst case", "star", "tight", "sharp", "paper")
