"""The κ⁴ certificates: the storage function against brute force, the numbers they promise, and what they imply."""

from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import bilevel as bl
from bilevel import theory
from bilevel.theory import Blocks, Constants, star
from bilevel.theory.certificates.storage import Driven

unit, size = st.floats(0, 0.95), st.floats(0.01, 5)
systems = st.builds(
    Driven, r0=unit, r1=unit, p=size, q0=size, q1=size, C5=st.just(0.0), beta_cap=size, c0=st.floats(0, 2)
)
seeds = st.integers(0, 2**32 - 1)


def matrices(system):
    P = np.array([[system.r0, 0], [system.p, system.r1]])
    return P, np.array([system.q0, system.q1]), np.array([system.c0, 1.0])


def respond(system, beta, n, w):
    """e_k for k = 0..K−1 from w₀ under the steps β·n_k, the recursion with equality."""
    (P, q, c), errors = matrices(system), []
    for size in n:
        errors.append(c @ w)
        w = P @ w + beta * q * size
    return np.array(errors)


def toeplitz(system, beta, K):
    """The lower triangular map from n to e, and the free response of both states."""
    (P, q, c), powers = matrices(system), [np.eye(2)]
    for _ in range(K):
        powers.append(P @ powers[-1])
    G = np.zeros((K, K))
    for k in range(K):
        for j in range(k):
            G[k, j] = beta * c @ powers[k - 1 - j] @ q
    return G, np.array([c @ power for power in powers[:K]])


@pytest.mark.slow
@given(system=systems, share=st.floats(0.05, 0.99), w=st.tuples(size, size), K=st.integers(1, 24))
def test_the_storage_is_the_largest_surplus_of_any_input(system, share, w, K):
    """sup_n Σe² − γΣn² with e = Gn + f is fᵀ(I + G(γI − GᵀG)⁻¹Gᵀ)f, by completing the square: a K × K solve."""
    beta, w = share * system.beta_max, np.array(w)
    price = 1 - beta / system.beta_cap
    G, free = toeplitz(system, beta, K)
    f = free @ w
    expected = f @ f + (G.T @ f) @ np.linalg.solve(price * np.eye(K) - G.T @ G, G.T @ f)
    assert K * system.storage(beta, price, float(K), *w) == pytest.approx(expected, rel=1e-7)


@pytest.mark.slow
@given(system=systems, K=st.integers(2, 24))
def test_beyond_the_gain_of_its_horizon_nothing_is_certified(system, K):
    """Finite exactly while the norm of the K × K map is below √γ; for short horizons that is beyond beta_max."""
    beta = np.geomspace(0.5, 40, 30) * system.beta_max
    beta = beta[beta < system.beta_cap * (1 - 1e-9)]
    norms = np.array([np.linalg.norm(toeplitz(system, b, K)[0], 2) ** 2 for b in beta])
    price = 1 - beta / system.beta_cap
    clear = np.abs(norms / price - 1) > 1e-6
    found = np.isfinite(system.bound(beta, float(K), 1.0, 0.0, 0.0))
    np.testing.assert_array_equal(found[clear], (norms < price)[clear])


@pytest.mark.slow
@given(
    system=systems, share=st.floats(0.05, 0.99), w=st.tuples(size, size), gap=st.floats(0.01, 10), seed=seeds
)
def test_bound_covers_every_sequence_of_vectors_that_obeys_the_descent_lemma(system, share, w, gap, seed):
    """Random g_k, e_k in the plane with h = g + e, the errors at their bounds; scaled until descent is used up."""
    rng, K, beta = np.random.default_rng(seed), 30, share * system.beta_max
    P, q, c = matrices(system)
    price = 1 - beta / system.beta_cap
    turn, shape = rng.choice([0.0, np.pi, 0.5], K) * rng.random(K), rng.random(K) ** 3

    def spent(t):
        state, total, squares = np.array(w), 0.0, 0.0
        for g, angle in zip(t * shape, turn, strict=True):
            e = c @ state
            h = np.sqrt(max(g**2 + e**2 + 2 * g * e * np.cos(angle), 0))
            total += g**2 + price * h**2 - e**2
            squares += g**2
            state = P @ state + beta * q * h
        return total - 2 * gap / beta, squares / K

    high = 1.0
    while spent(high)[0] < 0 and high < 1e9:
        high *= 2
    low = 0.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if spent(middle)[0] <= 0 else (low, middle)
    if spent(low)[0] <= 0:
        assert spent(low)[1] <= system.bound(beta, float(K), gap, *w) * (1 + 1e-9)


@pytest.mark.slow
@given(
    kappa=st.fractions(1, 500, max_denominator=20),
    rho=st.fractions(0, 5, max_denominator=20),
    M=st.fractions(0, 5, max_denominator=20),
)
def test_unit_gains_in_closed_form(kappa, rho, M):
    """AID 2λκ(κ² − 1), half of it for α = η = 2/(L + μ); SOBA 2λκ²(κ + 1) and λκ(κ + 1)²; exact rationals."""
    L = Fraction(3, 2)
    lam = L + rho * M * kappa / L
    k = Constants(float(L / kappa), float(L), float(M), float(rho))
    short = 1 / k.L
    exact = (
        (star.aid(k, short, short), 2 * lam * kappa * (kappa**2 - 1)),
        (star.aid(k), lam * kappa * (kappa**2 - 1)),
        (star.soba(k, short, short), 2 * lam * kappa**2 * (kappa + 1)),
        (star.soba(k), lam * kappa * (kappa + 1) ** 2),
    )
    for certificate, value in exact:
        scale = 1e-12 * float(lam * kappa**3)
        assert certificate.system.unit_gain == pytest.approx(float(value), rel=1e-9, abs=scale)
        u, L_Phi, beta = certificate.system.unit_gain, k.L_Phi_blockwise, certificate.beta_max
        assert (beta * u) ** 2 + beta * L_Phi == pytest.approx(1, rel=1e-6)


@pytest.mark.slow
def test_the_numbers_of_the_headline():
    """L = M = ρ = 1, gap 1, y₀ = y*, v₀ = 0: `tight` and Theorem 5.9 over star with the paper's α = η = 1/L."""
    K = 10**12
    for kappa, tight, paper in ((2, 3.1, 40), (10, 16.4, 174), (100, 189, 1875), (1000, 1967, 19385)):
        k = Constants(1 / kappa, 1.0, 1.0, 1.0)
        bound = star.aid(k, 1.0, 1.0).bound(K, 1.0)
        assert theory.tight.aid(k).bound(K, 1.0) / bound >= tight
        assert theory.aid(k).bound(K, 1.0) / bound >= paper
        assert star.aid(k).bound(K, 1.0) <= bound


@pytest.mark.slow
def test_the_table_of_the_page():
    """ "Against the others": every entry, to the digits that are printed."""
    page = (Path(__file__).parents[3] / "docs/theory/star.md").read_text().split("## Against the others")[1]
    head, _, *rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("|")]
    k = Constants(1 / np.array([float(kappa) for kappa in head[1:]]), 1.0, 1.0, 1.0)
    bounds = {name: certificate.bound(10**12, 1.0) for name, certificate in theory.analyses(k).items()}
    assert len(rows) == len(bounds) == 5
    for (_, *printed), name in zip(rows, bounds, strict=True):
        ratios = bounds[name] / star.aid(k, 1.0, 1.0).bound(10**12, 1.0)
        for text, ratio in zip(printed, ratios, strict=True):
            digits = len(text.split("e")[0].replace(".", "").lstrip("0"))
            assert float(f"{ratio:.{digits - 1}e}") == float(text), (name, text)


@pytest.mark.slow
@pytest.mark.parametrize(("rho", "order", "stated"), [(1.0, 4.0, "3.99"), (0.0, 3.0, "3.00")])
def test_orders_in_kappa(rho, order, stated):
    kappa = np.geomspace(50, 800, 12)
    k = Constants(1 / kappa, 1.0, 1.0, rho)
    slope = lambda values: np.polyfit(np.log(kappa), np.log(values), 1)[0]
    assert f"{slope(star.aid(k, 1.0, 1.0).bound(10**12, 1.0)):.2f}" == stated  # on the page
    for certificate in (star.aid(k, 1.0, 1.0), star.aid(k), star.soba(k)):
        assert order - 0.1 < slope(certificate.bound(10**12, 1.0)) < order + 0.001
        assert slope(1 / certificate.beta_max) == pytest.approx(order, abs=0.05)


@pytest.mark.slow
def test_itd_forgets_its_excess_faster():
    k, K = Constants(0.1, 1.0, 1.0, 1.0), np.geomspace(1e8, 1e12, 9).round()
    excess = lambda c: np.array([c.bound(float(n), 1.0) - c.inherent_error for n in K])
    order = lambda values: np.polyfit(np.log(K), np.log(values), 1)[0]
    assert order(excess(star.itd(k, 1.0))) == pytest.approx(-2 / 3, abs=0.02)
    assert order(excess(theory.tight.itd(k))) == pytest.approx(-1 / 2, abs=0.02)
    assert star.itd(k, 1.0).inherent_error == pytest.approx(theory.lower_bound(k).value)
    T = star.itd(k, 1.0).system.unit_gain * 1e-4
    limit = star.itd(k, 1.0).limit(1e-4)
    assert limit <= star.itd(k, 1.0).inherent_error / (1 - T**2 / (1 - 1e-4 * k.L_Phi_blockwise)) * (1 + 1e-9)


@pytest.mark.slow
def test_star_is_never_worse_than_tight():
    """Provable for the gain ((κ² + 3)/(2(κ + 1)) ≥ 1) and for the sum; over constants and starts of all kinds."""
    rng = np.random.default_rng(0)
    kappa, M, rho = 10 ** rng.uniform(0, 3, 60), 10 ** rng.uniform(-2, 1, 60), 10 ** rng.uniform(-2, 1, 60)
    k = Constants(1 / kappa, 1.0, M, rho)
    for y_error, gap in ((0.0, 1.0), (1.0, 1.0), (3.0, 0.01)):
        for ours, theirs in ((star.aid(k), theory.tight.aid(k)), (star.itd(k), theory.tight.itd(k))):
            assert np.all(ours.bound(10**6, gap, y_error) <= theirs.bound(10**6, gap, y_error) * (1 + 1e-9))


@pytest.mark.slow
def test_the_papers_constants_are_a_special_case_of_blocks():
    k = Constants(0.2, 1.5, 0.7, 0.3)
    lam = 1.5 + 0.3 * 0.7 / 0.2
    b = k.blocks
    assert (b.Lambda_xx, b.Lambda_xy, b.Lambda_yy) == pytest.approx((lam, lam, lam))
    assert b.y_slope == b.kappa == k.kappa
    assert b.v_slope == pytest.approx(lam / 0.2 * (1 + k.kappa))
    assert b.L_Phi == pytest.approx(k.L_Phi_blockwise)
    assert star.aid(b).bound(100, 1.0, 0.1) == star.aid(k).bound(100, 1.0, 0.1)


def test_smaller_blocks_certify_larger_steps():
    """Linear f in y and a weak coupling, as a validation loss over few hyperparameters has them."""
    full = Constants(0.1, 1.0, 1.0, 0.5).blocks
    weak = Blocks(0.1, 1.0, 0.05, 1.0, 0.0, 0.2, 1.0, 0.0, 0.1, 0.5)
    assert star.aid(weak).beta_max > 50 * star.aid(full).beta_max
    assert star.aid(Blocks(0.1, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0)).beta_max == pytest.approx(
        1.0
    )  # y does not matter
    with pytest.raises(ValueError, match=r"L_xy must be at least 0, got -1\.0"):
        Blocks(0.1, 1.0, -1.0, 1.0, 0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match=r"mu = 2\.0 exceeds L_yy = 1\.0"):
        Blocks(2.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0)
    with pytest.raises(TypeError, match=r"theory\.Constants or theory\.Blocks, not Array"):
        Blocks.of(jnp.zeros(3))


def scalar_quadratics(rng, n, kappa_max=50.0):
    """f = ½px² + qxy + ½sy² + my, g = ½hy² − ℓxy with |p|, |q|, |s| ≤ 1 and Φ strongly convex: PL with m = Φ''."""
    kappa = rng.uniform(1.2, kappa_max, n)
    h = 1 / kappa ** rng.choice([0.0, 0.5, 1.0], n)
    ell, p, q, s = rng.choice([0.3, 1.0], n), *rng.uniform(-1, 1, (3, n))
    curvature = p + 2 * q * ell / h + s * (ell / h) ** 2
    keep = curvature > 1e-3
    return (kappa[keep], h[keep], ell[keep], p[keep], q[keep], s[keep], curvature[keep])


@pytest.mark.slow
def test_last_values_under_polyak_lojasiewicz():
    """Φ(x_K) − min Φ of the real solvers, from exact and from wrong starts, on quadratics whose modulus is Φ''."""
    rng = np.random.default_rng(5)
    kappa, h, ell, p, q, s, m = scalar_quadratics(rng, 400)
    b = Blocks(1 / kappa, 1.0, np.abs(ell), np.abs(p), np.abs(q), np.abs(s), 0.0)
    y_slope, steps = ell / h, 400
    v_slope = (q + s * y_slope) / h
    offset = {"exact": 0.0, "wrong": rng.uniform(-1, 1, len(h))}

    def g(x, y, data):
        return 0.5 * data["h"] * y**2 - data["ell"] * x * y

    def f(x, y, data):
        return 0.5 * data["p"] * x**2 + data["q"] * x * y + 0.5 * data["s"] * y**2

    problem = bl.Problem(inner=g, outer=f)
    data = {"h": h, "ell": ell, "p": p, "q": q, "s": s}
    for make, certificate in ((bl.aid, star.aid(b)), (bl.soba, star.soba(b))):
        beta = certificate.linear_beta(m)
        assert np.all(beta <= certificate.beta_max)

        @jax.jit
        @jax.vmap
        def last(data, alpha, beta, y0, v0, make=make):
            solver, batch = (
                make(problem, inner=alpha, adjoint=alpha, outer=beta),
                bl.Batch(inner=data, outer=data),
            )
            state = solver.init(jnp.asarray(1.0), y0, batch)
            state, _ = bl.scan(solver, state._replace(v=v0), batch, steps=steps)
            return state.x

        for wrong in offset.values():
            y_error, v_error = np.abs(wrong) + 0 * h, np.abs(0.5 * wrong) + 0 * h
            alpha = np.broadcast_to(certificate.alpha, h.shape)
            x = last(data, alpha, beta, y_slope + wrong, v_slope + 0.5 * wrong)
            value = certificate.last_value(steps, m / 2, m, y_error, v_error)
            assert np.all(0.5 * m * np.asarray(x) ** 2 <= value * (1 + 1e-9))
            if not np.any(wrong):
                np.testing.assert_allclose(value, (1 - beta * m) ** steps * m / 2, rtol=1e-9)


def test_linear_rates_are_refused_where_there_are_none():
    k = Constants(0.1, 1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="ITD does not converge"):
        star.itd(k).linear_beta(0.1)
    with pytest.raises(ValueError, match="times L_Φ, the largest curvature"):
        star.aid(k).last_value(10, 1.0, modulus=1e6)
    with pytest.raises(ValueError, match="modulus must be positive"):
        star.aid(k).linear_beta(0.0)


@pytest.mark.parametrize(("N", "Q"), [(1, 3), (4, 1), (3, 5)])
def test_several_steps_contract_as_their_product(N, Q):
    """The rows of the system with N and Q steps hold on runs with N and Q steps, and they are worth it."""
    rng = np.random.default_rng(N + 10 * Q)
    H = np.diag([0.2, 0.7, 1.0])
    C, F = rng.uniform(-0.5, 0.5, (3, 3)), 0.3 * np.eye(3)
    norm = lambda A: np.linalg.norm(A, 2)
    b = Blocks(0.2, 1.0, norm(C), 1.0, 0.0, 0.3, 2.0)
    certificate = star.aid(b, inner_steps=N, adjoint_steps=Q)
    assert certificate.beta_max > star.aid(b).beta_max
    x, y, v, beta = np.ones(3), np.zeros(3), np.zeros(3), 0.9 * certificate.beta_max
    slope = np.array([1.0, -0.5, 0.2])
    star_of = lambda x: (
        np.linalg.solve(H, C.T @ x),
        np.linalg.solve(H, F @ np.linalg.solve(H, C.T @ x) + slope),
    )
    system, (weight, L_xy), before = certificate.system, certificate.weights, None
    for _ in range(60):
        for _ in range(N):
            y = y - certificate.alpha * (H @ y - C.T @ x)
        for _ in range(Q):
            v = v - certificate.eta * (H @ v - F @ y - slope)
        y_star, v_star = star_of(x)
        h = x + C @ v  # ∇_x f = x, ∇²_xy g = −C
        error = np.linalg.norm(h - x - C @ v_star)
        w = weight * np.linalg.norm(y - y_star), L_xy * np.linalg.norm(v - v_star)
        assert error <= (system.c0 * w[0] + w[1]) * (1 + 1e-9) + 1e-12
        if before is not None:
            (w0, w1), d = before
            assert w[0] <= (system.r0 * w0 + system.q0 * d) * (1 + 1e-9) + 1e-12
            assert w[1] <= (system.p * w0 + system.r1 * w1 + system.q1 * d) * (1 + 1e-9) + 1e-12
        before = w, beta * np.linalg.norm(h)
        x = x - beta * h


@pytest.mark.slow
def test_the_cheapest_plan_is_the_best_of_all():
    """Against every (N, Q) of a small grid, and α, η off their best."""
    k = Constants(0.1, 1.0, 1.0, 0.5)
    plan, eps = theory.cheapest(k, 0.01, 1.0, 0.2), 0.01

    def calls(N, Q, alpha=None, eta=None):
        bound = star.aid(k, alpha, eta, N, Q).bound(2.0**60, 1.0, 0.2)
        return np.ceil(2.0**60 * bound / eps) * (N + Q + 3)

    assert plan.calls == pytest.approx(calls(plan.inner_steps, plan.adjoint_steps))
    others = [calls(N, Q) for N, Q in ((1, 1), (4, 8), (8, 4))]
    assert plan.calls <= min(others) * 1.01
    for factor in (0.5,):
        other = calls(plan.inner_steps, plan.adjoint_steps, factor * plan.alpha, plan.eta)
        assert plan.calls <= other * (1 + 1e-9)
    with pytest.raises(ValueError, match="pass scalars"):
        theory.cheapest(Constants([0.1, 0.2], 1.0, 1.0, 1.0), 0.1, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["AID", "ITD", "SOBA"])
def test_blocks_have_the_analyses_that_take_them_apart(method):
    k = theory.Constants(0.1, 1.0, 0.5, 0.3)
    found = theory.analyses(k.blocks, method)
    assert list(found) == ["star"]
    assert found["star"].bound(1000, 1.0) == theory.analyses(k, method)["star"].bound(1000, 1.0)
