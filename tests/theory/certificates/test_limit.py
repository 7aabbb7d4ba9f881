"""Where κ⁴ ends: the first unstable outer step, and the slope that no smaller step outruns, by real runs."""

import re
from fractions import Fraction
from functools import partial, reduce
from math import comb

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from measured import tables
from pages import ROOT

import bilevel as bl
from bilevel import theory
from bilevel.batch import Batch
from bilevel.theory import Blocks, Constants, limit

STEPS = {"1/L": lambda mu, L: 1 / L, "2/(L + μ)": lambda mu, L: 2 / (L + mu)}
METHODS = {"AID": (limit.aid, bl.aid, theory.star.aid), "SOBA": (limit.soba, bl.soba, theory.star.soba)}


def made_of(numbers):
    H, coupling, f_x, f_y = numbers[:4]
    return limit.UnstableInstance(
        H, coupling, (f_x, f_y), limit.Hessian(*numbers[4:7]), limit.Hessian(*numbers[7:]), np.inf
    )


# The instance is the batch, so that one compiled program serves them all.
PROBLEM = bl.Problem(inner=lambda x, y, b: made_of(b).g(x, y), outer=lambda x, y, b: made_of(b).f(x, y))


def numbers_of(instance):
    return jnp.array(
        [instance.curvature, instance.coupling, *instance.slope, *instance.hessian, *instance.third]
    )


@partial(jax.jit, static_argnums=0)
def jacobian(method, sizes, numbers, rest):
    """Derivative of one step of the real solver in (x, y, v) at `rest`, and where that step leads."""
    inner, adjoint, outer = sizes
    solver = METHODS[method][1](PROBLEM, inner=inner, adjoint=adjoint, outer=outer)
    state = solver.init(rest[0], rest[1], Batch(numbers, numbers))

    def step(z):
        after, _ = solver.step(
            eqx.tree_at(lambda s: (s.x, s.y, s.v), state, tuple(z)), Batch(numbers, numbers)
        )
        return jnp.stack([after.x, after.y, after.v])

    return jax.jacobian(step)(rest), step(rest)


def eigenvalues(method, instance, alpha, eta, beta):
    """Of the solver's own Jacobian at the minimum, which has to be a fixed point."""
    rest = jnp.array([0.0, 0.0, instance.v_star])
    matrix, after = jacobian(method, jnp.array([alpha, eta, beta]), numbers_of(instance), rest)
    np.testing.assert_allclose(after, rest, atol=1e-14)
    return np.linalg.eigvals(np.asarray(matrix))


def radius(*arguments):
    return np.abs(eigenvalues(*arguments)).max()


def quadratic(curvature, *hessian):
    return limit.UnstableInstance(
        curvature, 1.0, (0.0, 0.0), limit.Hessian(*hessian), limit.Hessian(0.0, 0.0, 0.0), np.inf
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rho", [0.0, 0.3])
def test_the_solver_itself_becomes_unstable_there(method, rho):
    """Independent of the characteristic polynomial: eigenvalues of the Jacobian of one step of the solver."""
    for kappa, which in [(1.3, "1/L"), (1.8, "1/L"), (6.0, "1/L"), (2.0, "2/(L + μ)"), (30.0, "2/(L + μ)")]:
        k = Constants(1 / kappa, 1.0, 0.4, rho)
        alpha = STEPS[which](k.mu, k.L)
        found = METHODS[method][0](k, alpha, alpha)
        for larger in (1.0, 3.0):
            beta = larger * found.beta
            instance = found.instance(beta)
            assert radius(method, instance, alpha, alpha, 0.999 * beta) < 1
            assert radius(method, instance, alpha, alpha, 1.001 * beta) > 1
            assert max(np.abs(instance.lagrangian)) <= Blocks.of(k).Lambda_yy * (1 + 1e-12)
            assert max(np.abs(instance.hessian)) <= k.L * (1 + 1e-12)


@pytest.mark.slow
@settings(max_examples=10)
@given(
    kappa=st.floats(1.1, 40.0),
    shares=st.tuples(st.floats(0.1, 0.95), st.floats(0.1, 0.95)),
    hessian=st.tuples(st.floats(-1, 1), st.floats(-1, 1), st.floats(0.1, 1)),
    method=st.sampled_from(["AID", "SOBA"]),
)
def test_any_quadratic_is_stable_exactly_up_to_its_first_unstable_step(kappa, shares, hessian, method):
    """Any Hessian of f and α ≠ η: stable at every tried smaller step, unstable just beyond."""
    mu, (alpha, eta) = 1 / kappa, (2 * shares[0], 2 * shares[1])
    hessian = limit.Hessian(*hessian)
    beta = limit.first_unstable_beta(hessian, 1.0, mu, alpha, eta, method)
    instance = quadratic(mu, *hessian)
    if not np.isfinite(beta):
        curvature = hessian.xx + 2 * hessian.xy * kappa + hessian.yy * kappa**2
        assert curvature <= 1e-8 * kappa**2 or radius(method, instance, alpha, eta, 1.0) < 1
        return
    for share in (0.2, 0.6, 0.9, 0.99):
        assert radius(method, instance, alpha, eta, share * beta) < 1
    assert radius(method, instance, alpha, eta, 1.01 * beta) > 1


@pytest.mark.parametrize("which", STEPS)
@pytest.mark.parametrize("rho", [0.0, 50.0])
def test_proposition_no_step_of_larger_order(which, rho):
    """β < 2/(λκ³), or 4/(λκ³), and that is the limit as κ grows."""
    kappa = np.concatenate([np.linspace(1, 3, 2001), np.geomspace(3, 1e4, 500)])
    k = Constants(1 / kappa, 1.0, 1.0, rho)
    alpha = STEPS[which](k.mu, k.L)
    scaled = limit.aid(k, alpha, alpha).beta * Blocks.of(k).Lambda_yy * kappa**3
    top = 2 if which == "1/L" else 4
    stated = (kappa >= 4 ** (1 / 3)) | (rho == 0) | (which != "1/L")
    assert np.all(scaled[stated] < top)
    assert scaled[-1] == pytest.approx(top, rel=2e-4)
    soba = limit.soba(k, alpha, alpha).beta * Blocks.of(k).Lambda_yy * kappa**3
    assert np.all(soba < 2 * alpha)
    assert soba[-1] == pytest.approx(top, rel=2e-3)


def bernstein(coefficients, low, high):
    """Exact Bernstein coefficients on [low, high] of a polynomial given by rising powers."""
    n = len(coefficients) - 1
    taylor = [
        (high - low) ** j * sum(comb(i, j) * c * low ** (i - j) for i, c in enumerate(coefficients) if i >= j)
        for j in range(n + 1)
    ]
    return [sum(Fraction(comb(i, j), comb(n, j)) * taylor[j] for j in range(i + 1)) for i in range(n + 1)]


def pair_condition(method, alpha, eps, *hessian, b):
    """The product of 1 − z_iz_j over the eigenvalues of the solver's own Jacobian; negative only if one is outside."""
    z = eigenvalues(method, quadratic(eps, *hessian), alpha, alpha, b)
    return ((1 - z[0] * z[1]) * (1 - z[0] * z[2]) * (1 - z[1] * z[2])).real


@pytest.mark.slow
def test_the_polynomials_of_the_proof():
    """The page's F₁ to F₄ are what they are said to be, and negative where they have to be."""
    F1 = [Fraction(c, 25) for c in (-49, 124, -103, -45, 300, -404, 302, -100)]
    found = bernstein(F1, Fraction(2, 5), Fraction(63, 100))
    assert [float(min(found)), float(max(found))] == pytest.approx([-0.566, -0.036], abs=0.0005)
    assert 0.4 < 1 / (1 + np.sqrt(2)) < 4 ** (-1 / 3) < 0.63
    value = lambda F, eps: float(sum(c * eps**i for i, c in enumerate(F)))
    for mu in (0.42, 0.5, 0.6):  # α = 1/L: ε = μ
        found = pair_condition("AID", 1.0, mu, -1.0, -0.49 * (1 / mu - mu), 1.0, b=2 * mu**3)
        assert found / mu**3 == pytest.approx(value(F1, mu))
    for mu in (0.05, 0.2, 0.4):
        found = pair_condition("AID", 1.0, mu, -1.0, -1.0, 1.0, b=2 * mu**3)
        expected = -mu - 6 * mu**2 + 16 * mu**3 - 4 * mu**4 - 4 * mu**5 * (2 - mu) ** 2
        assert found / mu**3 == pytest.approx(expected)
        assert expected < 0
    for mu in (0.05, 0.2, 0.4):  # α = 2/(L + μ): ε = 2/(κ + 1)
        eps = 2 * mu / (1 + mu)
        found = pair_condition("AID", eps / mu, mu, -1.0, -1.0, 1.0, b=4 * mu**3)
        expected = eps**2 * (-10 + 11 * eps + 32 * (eps * (1 - eps)) ** 2 / (2 - eps) ** 3)
        assert found / ((2 - eps) * eps**3) == pytest.approx(expected / (2 - eps) ** 3)
    c, e, r = np.array([2, -1], dtype=object), np.array([0, 1], dtype=object), np.array([1, -1], dtype=object)
    power = lambda a, n: reduce(np.convolve, [a] * n, np.array([1], dtype=object))
    times = lambda scale, *factors: Fraction(scale).limit_denominator(100) * reduce(np.convolve, factors)
    terms = [
        times(1, power(c, 7)),
        times(-4, power(c, 5), power(r, 2)),
        times(-15.68, power(c, 3), power(r, 2)),
        times(-8, power(c, 4), power(e, 2), r),
        times(16, power(e, 4), power(r, 2), c),
        times(62.72, power(e, 2), power(r, 3)),
        times(-16, power(e, 3), power(r, 2), power(c, 2)),
    ]
    F4 = [sum(term[i] for term in terms if i < len(term)) for i in range(8)]
    assert max(bernstein(F4, Fraction(58, 100), Fraction(67, 100))) < 0
    mu = 1 / 2.2
    eps = 2 * mu / (1 + mu)
    found = pair_condition("AID", eps / mu, mu, -1.0, -0.49 * (1 / mu - mu), 1.0, b=4 * mu**3)
    assert found / eps**3 == pytest.approx(value(F4, eps) / (2 - eps) ** 6)
    for mu, alpha in ((0.05, 1.0), (0.5, 1.0), (0.9, 1.3)):  # SOBA: f = λy²/2, ε = αμ
        eps = alpha * mu
        found = pair_condition("SOBA", alpha, mu, 0.0, 0.0, 1.0, b=2 * eps**3 / alpha**2)
        assert found / eps**3 == pytest.approx(-5 * eps + 4 * eps**2 - 4 * eps**3)


@pytest.mark.slow
def test_runs_converge_just_below_and_diverge_just_above():
    k = Constants(0.2, 1.0, 0.0, 0.0)
    found = limit.aid(k, 1.0, 1.0)
    instance = found.instance()
    problem = bl.Problem(inner=instance.g, outer=instance.f)
    ends = {}
    for share in (0.95, 1.05):
        solver = bl.aid(problem, inner=1.0, adjoint=1.0, outer=share * found.beta)
        ends[share] = abs(float(bl.run(solver, jnp.array(1.0), jnp.array(5.0), steps=4000).x))
    assert ends[0.95] < 1e-3
    assert not ends[1.05] < 1e3  # or not a number any more


@pytest.mark.slow
def test_a_larger_curvature_makes_room_for_third_derivatives():
    """ρM > 0: the constants hold in the box, and the limit is approached as the box shrinks."""
    k = Constants(0.1, 1.0, 0.5, 2.0)
    found = limit.aid(k)
    lags = []
    for size in (1e-2, 1e-4):
        instance = found.instance(radius=size)
        corners = jnp.array([(x, y) for x in (-size, size) for y in (-size, size)])
        hessian = jax.hessian(lambda z, g=instance.g: g(z[0], z[1]))
        curvature = jax.jit(jax.vmap(hessian))(corners)[:, 1, 1]
        assert curvature.min() >= k.mu * (1 - 1e-12)
        assert curvature.max() <= k.L
        assert jnp.abs(jax.jit(jax.jacobian(hessian))(jnp.zeros(2))).max() <= k.rho * (1 + 1e-12)
        assert instance.v_star <= k.M / k.mu
        assert jax.grad(instance.f, argnums=1)(0.0, 0.0) == k.M
        own = limit.first_unstable_beta(
            instance.lagrangian, instance.coupling, instance.curvature, found.alpha, found.eta
        )
        assert radius("AID", instance, found.alpha, found.eta, 1.001 * own) > 1
        assert own >= found.beta
        lags.append(own / found.beta - 1)
    assert lags[1] < 0.02 * lags[0]
    assert limit.aid(Constants(0.1, 1.0, 0.5, 0.0)).beta / found.beta == pytest.approx(
        11
    )  # λ = 1 + 2·0.5/0.1


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_constant_slope_has_the_mean_that_is_stated(method):
    k = Constants(0.25, 1.0, 1.0, 0.0)
    gap, steps = 0.8, 40
    bound, solve, star = METHODS[method]
    found, certificate = bound(k), star(k)
    for beta in (0.5 * certificate.beta_max, 0.9 * found.beta):
        instance = found.slope_instance(steps, gap, beta)
        h = jax.jit(lambda x, instance=instance: instance.f(x, 0.0))
        problem = bl.Problem(inner=instance.g, outer=instance.f)
        inner, adjoint = float(found.alpha), float(found.eta)
        solver = solve(problem, inner=inner, adjoint=adjoint, outer=float(beta))
        walk = lambda state, _, solver=solver: (solver.step(state)[0], state.x)
        _, xs = jax.lax.scan(walk, solver.init(jnp.array(0.0), jnp.array(0.0)), length=steps)
        slopes = jax.vmap(jax.grad(h))(xs)
        mean = np.mean(np.square(slopes))
        assert mean == pytest.approx(gap / (beta * (steps - 1) + 0.5))
        assert mean >= found.rate(steps, gap)
        far = jnp.linspace(instance.X - 5, instance.X + 5, 2001)
        assert h(0.0) - jax.vmap(h)(far).min() == pytest.approx(gap)
        curvature = jnp.diff(jax.vmap(jax.grad(h))(far)) / jnp.diff(far)
        assert -1e-9 < curvature.min() <= curvature.max() < k.L + 1e-9
    beta = 0.5 * certificate.beta_max
    assert gap / (beta * (steps - 1) + 0.5) <= certificate.bound(steps, gap, 0.0, 0.0, beta)


@pytest.mark.slow
def test_the_factors_that_the_page_states():
    """docs/theory/limit.md, "How far the certificate is from it": to the digits that are printed."""
    (page,) = [t for t in tables((ROOT / "docs/theory/limit.md").read_text()) if t.head[-1] == "largest"]
    kappa = np.array(page.head[1:-1], float)
    fine = np.concatenate([np.geomspace(1, 1e4, 2000), np.linspace(1.5, 1.65, 500)])
    made = {
        "1/L": lambda k: limit.aid(k, 1.0, 1.0).beta / theory.star.aid(k, 1.0, 1.0).beta_max,
        "2/(L + μ)": lambda k: limit.aid(k).beta / theory.star.aid(k).beta_max,
        "SOBA": lambda k: limit.soba(k).beta / theory.star.soba(k).beta_max,
    }
    for (_, *printed, largest), factor in zip(page.rows, made.values(), strict=True):
        found = factor(Constants(1 / kappa, 1.0, 1.0, 0.0))
        assert [f"{value:.2f}" for value in found] == printed
        everywhere = factor(Constants(1 / fine, 1.0, 1.0, 0.0))
        most, at = (f"{everywhere.max():.2f}", fine[np.argmax(everywhere)])
        stated = re.match(r"([\d.]+), (?:at ([\d.]+)|as)", largest)
        assert float(most) == float(stated[1])
        assert at == pytest.approx(float(stated[2]), rel=0.01) if stated[2] else at == fine[1999]
    # Rate: from an exact start the certificate is within 4·2 of what some problem needs.
    steps, gap, k = 1e24, 1.0, Constants([1.0, 0.5, 0.1, 1e-2, 1e-3], 1.0, 1.0, 1.0)
    ratio = theory.star.aid(k).bound(steps, gap, 0.0, 0.0) / limit.aid(k).rate(steps, gap)
    assert 1 < ratio.min() < ratio.max() < 8.2
    assert ratio[-1] == pytest.approx(8, rel=1e-2)
    # At a given β the certificate is within 1 + T of the constant slope.
    star = theory.star.aid(Constants(1e-3, 1.0, 1.0, 0.0))
    for T in (0.05, 0.5):
        beta = T / star.system.unit_gain
        bound = beta * 1e12 * star.bound(1e12, gap, 0.0, 0.0, beta) / gap
        assert bound == pytest.approx(1 + T, rel=2e-2)


def test_bad_input_is_refused_with_the_fix():
    k = Constants(0.1, 1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match=r"alpha = 2.5 does not contract.*below 2/L_yy = 2"):
        limit.aid(k, alpha=2.5)
    with pytest.raises(ValueError, match="below the limit"):
        limit.aid(k).instance(beta=1e-9)
    with pytest.raises(ValueError, match=r"radius = 10 leaves no curvature.*reduce it"):
        limit.aid(k).instance(radius=10.0)
    with pytest.raises(ValueError, match="pass scalars"):
        limit.aid(Constants([0.1, 0.2], 1.0, 1.0, 1.0)).instance()
    with pytest.raises(ValueError, match="f_xx = 0"):
        limit.aid(Blocks(0.1, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0)).slope_instance(10, 1.0, 0.1)
