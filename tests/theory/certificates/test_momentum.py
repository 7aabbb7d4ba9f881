"""Momentum on y and v: gains against brute force and the real optax rule, bounds against real runs.

And what docs/theory/momentum.md says of large κ.
"""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from measured import MEASURED, Record, tables
from pages import ROOT

import bilevel as bl
from bilevel.theory import Blocks, Constants, momentum, star
from bilevel.theory.certificates.momentum_gains import MomentumLoop

RULES = pytest.mark.parametrize("nesterov", [True, False], ids=["Nesterov", "heavy ball"])


def loops(nesterov, count=25):
    rng = np.random.default_rng(nesterov)
    for _ in range(count):
        kappa, L = 10 ** rng.uniform(0, 3), 10 ** rng.uniform(-1, 1)
        m = max(0.0, 1 - rng.uniform(0.3, 4) / np.sqrt(kappa))
        limit = 2 * (1 + m) / (1 + 2 * m if nesterov else 1)
        yield MomentumLoop(rng.uniform(0.1, 0.98) * limit / L, m, L / kappa, L, nesterov)


def responses(loop, h, omega):
    """|e/δ| and |e/φ| from the difference equations themselves, with yₖ = Y·zᵏ: a linear system per frequency."""
    z = np.exp(1j * omega)
    one, zero = np.ones_like(h * z), np.zeros_like(h * z)
    # Unknowns e, t (the trace). With p = e/z − δ: t − m t/z = h p − φ;  e = p − α(h p − φ + m t), or e = p − αt.
    direct = loop.alpha if loop.nesterov else 0.0
    via = loop.alpha * (loop.m if loop.nesterov else 1.0)
    rows = [[-h / z, one - loop.m / z], [one - (one - direct * h) / z, via * one]]
    matrix = np.moveaxis(np.array([[one * entry for entry in row] for row in rows]), (0, 1), (-2, -1))
    drift = np.stack([-h * one, -(one - direct * h)], axis=-1)
    force = np.stack([-one, direct * one + zero], axis=-1)
    return (np.abs(np.linalg.solve(matrix, side[..., None])[..., 0, 0]) for side in (drift, force))


@pytest.mark.slow
@RULES
def test_gains_are_the_largest_response_over_spectrum_and_frequency(nesterov):
    omega = np.concatenate([[0.0], np.geomspace(1e-4, np.pi, 400)])
    for loop in loops(nesterov):
        h = np.geomspace(loop.mu, loop.L, 41)[:, None]
        drift, force = responses(loop, h, omega)
        assert 0.99 * loop.drift <= np.max(drift / h) <= loop.drift
        assert 0.99 * loop.force <= np.max(force) <= loop.force * (1 + 1e-9)


@pytest.mark.slow
@RULES
def test_the_enclosure_finds_a_peak_inside_the_spectrum(nesterov):
    """With 1 − m = αμ the slowest mode has no lag at all, and the worst one lies between the ends."""
    loop = MomentumLoop(1.0, 0.99, 0.01, 1.0, nesterov)
    omega = np.concatenate([[0.0], np.geomspace(1e-3, np.pi, 4000)])
    at = lambda h: np.max(next(responses(loop, np.atleast_1d(h)[:, None], omega)) / np.atleast_1d(h)[:, None])
    assert (
        at(np.geomspace(loop.mu, loop.L, 101)) <= loop.drift <= 1.01 * at(np.geomspace(loop.mu, loop.L, 101))
    )
    assert at(loop.L) < loop.drift


def follow(loop, targets, forces, y):
    """The error of the real optax rule, one mode a column, that follows `targets` under `forces`, from `y`."""
    rule = optax.sgd(loop.alpha, momentum=loop.m, nesterov=loop.nesterov)
    h = jnp.linspace(loop.mu, loop.L, targets.shape[1])

    def step(carry, at):
        y, memory = carry
        target, force = at
        updates, memory = rule.update(h * (y - target) - force, memory)
        y = optax.apply_updates(y, updates)
        return (y, memory), y - target

    return np.asarray(jax.lax.scan(step, (y, rule.init(y)), (targets, forces))[1])


@pytest.mark.slow
@RULES
def test_gains_bound_what_the_optax_rule_does(nesterov):
    rng = np.random.default_rng(3)
    for loop in loops(nesterov, 3):
        steps, modes, norm = 300, 7, np.linalg.norm
        zero, still = np.zeros((steps, modes)), np.zeros(modes)
        pushes = np.cumsum(rng.standard_normal((steps, modes)), axis=0) * rng.random(modes) ** 4
        errors = follow(loop, jnp.asarray(pushes / np.linspace(loop.mu, loop.L, modes)), zero, pushes[0] * 0)
        increments = np.diff(pushes, axis=0, prepend=0)  # h·(y*ₖ − y*ₖ₋₁)
        assert norm(errors) <= loop.drift * norm(increments) * (1 + 1e-9)
        errors = follow(loop, zero, jnp.asarray(pushes), still)
        assert norm(errors) <= loop.force * norm(pushes) * (1 + 1e-9)
        start = rng.standard_normal(modes)
        errors = follow(loop, zero, zero, jnp.asarray(start))
        assert norm(errors) <= loop.free * norm(start) * (1 + 1e-9)


@RULES
def test_the_free_response_is_attained_at_an_end_of_the_spectrum(nesterov):
    for loop in loops(nesterov, 8):
        h, m = np.linspace(loop.mu, loop.L, 301), loop.m
        e, t, energy = np.ones(301), np.zeros(301), np.zeros(301)
        while np.max(e**2 + (loop.alpha * t) ** 2) > 1e-14:
            t = h * e + m * t
            e = e - loop.alpha * (h * e + m * t if nesterov else t)
            energy += e**2
        assert loop.free == pytest.approx(np.sqrt(np.max(energy)), rel=1e-5)


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("left", [1e-2, 1e-5, 1e-7])
def test_gains_close_to_the_largest_stable_step(nesterov, left):
    """There the fastest mode, at z = −1, has them all: |E| = 2(1 + m)·left, |n| = 1 + 2m (or 1), and D is known."""
    m = 0.4
    n, E = (1 + 2 * m if nesterov else 1.0), 2 * (1 + m) * left
    loop = MomentumLoop((1 - left) * 2 * (1 + m) / n, m, 0.5, 1.0, nesterov)
    lag = abs(1 + m - loop.alpha * n)
    assert loop.force == pytest.approx(loop.alpha * n / E, rel=1e-8)
    assert lag / E <= loop.drift * (1 + 1e-8)
    assert loop.drift == pytest.approx(lag / E, rel=1e-6)


def test_closed_forms():
    for kappa in [1.0, 1.001, 1.3, 2, 5, 30, 1e3, 1e5]:
        root, mu, L = np.sqrt(kappa), 0.3, 0.3 * kappa
        nesterov = MomentumLoop(1 / L, (root - 1) / (root + 1), mu, L)
        polyak = MomentumLoop(
            4 / (np.sqrt(L) + np.sqrt(mu)) ** 2, ((root - 1) / (root + 1)) ** 2, mu, L, nesterov=False
        )
        assert nesterov.drift * mu == pytest.approx((1 - nesterov.m) * kappa - 1, rel=1e-6, abs=1e-12)
        assert polyak.drift * mu == pytest.approx(root - 1, rel=1e-6, abs=1e-12)
        assert [loop.force * mu for loop in (nesterov, polyak)] == pytest.approx([1, 1], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("L_xy", "f_xy", "f_yy"), [(2.0, 2.0, 2.0), (0.1, 3.0, 0.5), (5.0, 0.0, 1.0)])
def test_without_momentum_it_is_the_certificate_of_plain_steps(L_xy, f_xy, f_yy):
    k = Blocks(0.2, 2.0, L_xy, 1.0, f_xy, f_yy, 1.0)
    plain = star.aid(k)
    for make in (momentum.aid, momentum.heavy_ball):
        same = make(k, alpha=plain.alpha, eta=plain.eta, m=0.0)
        assert same.unit_gain == pytest.approx(plain.system.unit_gain, rel=1e-6)
        assert same.beta_max == pytest.approx(plain.beta_max, rel=1e-6)
        assert same.bound(1000, 1.0, 0.0, 0.0) == pytest.approx(plain.bound(1000, 1.0, 0.0, 0.0), rel=1e-3)


@pytest.mark.slow
def test_orders_in_kappa():
    kappa = np.array([1e2, 1e3, 1e4])
    constants = Constants(1 / kappa, 1.0, 1.0, 0.0)
    slope = lambda values: np.diff(np.log(values)) / np.diff(np.log(kappa))
    m = momentum.aid(constants).m
    u = 2 * kappa * (kappa + 1) * ((1 - m) * kappa - 1)
    assert momentum.aid(constants).unit_gain == pytest.approx(u, rel=1e-6)
    for certificate in (momentum.aid(constants), momentum.heavy_ball(constants)):
        assert slope(1 / certificate.beta_max) == pytest.approx([2.5, 2.5], abs=0.05)
        assert slope(certificate.bound(10**6, 1.0)) == pytest.approx([2.5, 2.5], abs=0.06)
    assert np.all(slope(1 / star.aid(constants).beta_max) > 2.98)
    gained = momentum.heavy_ball(constants).beta_max / star.aid(constants).beta_max
    assert gained == pytest.approx(0.56 * np.sqrt(kappa), rel=0.06)


def one_step(k, alpha, m, nesterov, p, f):
    """(x, y, t, v, w) after a step as a matrix: g = ½μ(y − px)², f = ½(f_xx x² + 2f_xy xy + f_yy y²)."""

    def step(state):
        x, y, t, v, w = state
        r = k.mu * (y - p * x)
        t = r + m * t
        y = y - alpha * (r + m * t if nesterov else t)
        r = k.mu * v - (f[1] * x + f[2] * y)
        w = r + m * w
        v = v - alpha * (r + m * w if nesterov else w)
        return x, y, t, v, w, f[0] * x + f[1] * y + p * k.mu * v

    columns = np.array([step(e) for e in np.eye(5)]).T
    keep, estimate = columns[:5], columns[5]
    return lambda beta: keep - beta * np.outer(np.eye(5)[0], estimate)


def test_the_nesterov_rule_is_unstable_from_the_stated_multiple_on():
    """8(√2 − 1)³/κ^2.5 for large κ, with f = ½y²: the eigenvalues of a step."""
    kappa, stated = 1e4, 8 * (np.sqrt(2) - 1) ** 3
    k = Constants(1 / kappa, 1.0, 1.0, 0.0).blocks
    c = momentum.aid(k)
    at = one_step(k, c.alpha, c.m, True, kappa, (0.0, 0.0, 1.0))
    below, above = (
        np.abs(np.linalg.eigvals(at(share * stated / kappa**2.5))).max() for share in (1.01, 1.03)
    )
    assert below < 1 < above
    assert (stated, stated / 0.25) == pytest.approx((0.57, 2.27), abs=0.005)  # over β = 0.25/κ^2.5


@pytest.mark.parametrize(("make", "share"), [(momentum.aid, 2.6), (momentum.heavy_ball, 1.8)])
def test_the_order_of_beta_is_exact(make, share):
    """On quadratics in one dimension no certified β is unstable, and a little above some are."""
    for kappa in (10.0, 50.0, 300.0):
        k = Constants(1 / kappa, 1.0, 1.0, 0.0).blocks
        c, radius = make(k), lambda matrix: np.max(np.abs(np.linalg.eigvals(matrix)))
        maps = [
            one_step(k, c.alpha, c.m, c.nesterov, kappa, f)
            for f in itertools.product((-1.0, 0.0, 1.0), repeat=3)
            if f[0] + 2 * f[1] * kappa + f[2] * kappa**2 > 0
        ]
        assert all(radius(at(c.beta_max)) < 1 for at in maps)
        assert any(radius(at((share + 0.6 * (kappa < 20)) * c.beta_max)) > 1 for at in maps)


# What the page has in its first table, for L = 1: the lag, its leading term, and what κ does to β.
LAGS = {
    r"$\frac{\kappa-1}2$": lambda kappa, m: (kappa - 1) / 2,
    r"$(1-m)\kappa-1\approx2\sqrt\kappa$": lambda kappa, m: 2 * np.sqrt(kappa),
    r"$\approx\sqrt{2\kappa}$": lambda kappa, m: np.sqrt(2 * kappa),
    r"$\approx0.9\sqrt\kappa$": lambda kappa, m: 0.9 * np.sqrt(kappa),
    r"$\sqrt\kappa-1$": lambda kappa, m: np.sqrt(kappa) - 1,
}


def rules_of_the_page(k):
    root = np.sqrt(k.kappa)
    polyak = 4 / (1 + 1 / root) ** 2
    return [
        star.aid(k),
        momentum.aid(k),
        momentum.aid(k, m=1 - np.sqrt(1.5 / k.kappa)),
        momentum.heavy_ball(k),
        momentum.heavy_ball(k, polyak, polyak, ((root - 1) / (root + 1)) ** 2),
    ]


def test_the_rules_of_the_page():
    """The lags by brute force over frequencies, for the slowest mode; β at a κ where its order is all there is."""
    first = tables((ROOT / "docs/theory/momentum.md").read_text())[0]
    kappa, omega = 1e8, np.concatenate([[0.0], np.geomspace(1e-7, np.pi, 20_000)])
    certificates = rules_of_the_page(Constants(1 / kappa, 1.0, 1.0, 0.0).blocks)
    for row, c in zip(first.rows, certificates, strict=True):
        m, nesterov = float(getattr(c, "m", 0.0)), getattr(c, "nesterov", False)
        loop = MomentumLoop(float(c.alpha), m, 1 / kappa, 1.0, nesterov)
        lag = np.max(next(responses(loop, loop.mu, omega)))
        assert lag == pytest.approx(LAGS[row[3]](kappa, m), rel=0.01)
        factor, power = re.fullmatch(r"\$(\d\.\d\d)/L\\kappa\^\{?(3|2\.5)\}?\$", row[4]).groups()
        assert c.beta_max * kappa ** float(power) == pytest.approx(float(factor), abs=0.005)
        free = 0.35 * kappa**0.75 if "Polyak" in row[0] else kappa**0.25
        assert loop.free == pytest.approx(free, rel=0.2) or m == 0
    less = MomentumLoop(1.0, float(certificates[2].m), 1 / kappa, 1.0)
    assert less.force * less.mu == pytest.approx(1.033, abs=0.0005)


def test_where_momentum_is_worth_it():
    kappa = np.array([2.0, 3.0, 5.0, 6.0, 10.0])
    k = Constants(1 / kappa, 1.0, 1.0, 0.0)
    plain = star.aid(k).beta_max
    assert list(momentum.aid(k).beta_max > plain) == [False, False, False, True, True]
    assert list(momentum.heavy_ball(k).beta_max > plain) == [False, True, True, True, True]


def test_curvature_that_is_not_constant_breaks_momentum_and_not_plain_steps():
    """Of what `benchmarks/momentum.py` wrote; it runs the first row again among the tests of the pages."""
    (table,) = Record(MEASURED / "momentum-half-parabola.md").tables
    for row in np.array(table.rows, float):
        assert row[1] < 1 < min(row[2:4])
    kappa, lowest, norm, free, lag = np.array(table.rows, float).T[[0, 4, 5, 6, 7]]
    assert lowest[-1] == pytest.approx(-0.34 * np.sqrt(kappa[-1]), rel=0.02)
    assert norm[-1] > lag[-1] > free[-1]


def test_how_far_a_push_from_the_steep_side_goes_for_large_kappa():
    """−√κ/e, as a kink leaves φ″ + 2φ′ + φ = 0 from φ = 0 and φ′ = 1, in units of √κ steps and √κ."""
    root = 1e3
    m, y, t, lowest = (root - 1) / (root + 1), 1.0, 0.0, 0.0
    for _ in range(int(2 * root)):
        slope = y if y > 0 else y / root**2
        t = slope + m * t
        y -= slope + m * t
        lowest = min(lowest, y)
    assert lowest == pytest.approx(-root / np.e, rel=0.002)


PROBLEM = bl.Problem(
    outer=lambda x, y, f: 0.5 * (f[0] * x * x + f[2] * y @ y) + f[1] * x * y[0] + f[3] * x + f[4:] @ y,
    inner=lambda x, y, g: 0.5 * g[:2] @ (y * y) - x * (g[2:] @ y),
)


@pytest.mark.slow
@pytest.mark.parametrize("make", [momentum.aid, momentum.heavy_ball])
def test_no_run_exceeds_its_bound(make):
    """Quadratics with every block at its bound and starts from exact to far off, through the real solver."""
    kappa, count, steps = 40.0, 60, 1500
    rng = np.random.default_rng(11)
    k = Constants(1 / kappa, 1.0, 0.0, 0.0).blocks
    c = make(k)
    h, turn = np.array([1 / kappa, 1.0]), rng.choice([0.0, 0.1, 1.5], count)
    coupling = np.stack([np.cos(turn), np.sin(turn)], axis=-1) * rng.choice([-1, 1], (count, 1))
    f = np.concatenate(
        [rng.choice([-1.0, 0.0, 0.7, 1.0], (count, 2)), np.ones((count, 1)), rng.normal(size=(count, 3))], 1
    )
    slope = coupling / h
    # Φ'' and Φ' at 0 in closed form; flat and concave Φ are left out, for they have no least value
    curvature = f[:, 0] + 2 * f[:, 1] * slope[:, 0] + np.sum(slope**2, axis=1)
    linear = f[:, 3] + np.sum(f[:, 4:] * slope, axis=1)
    x0, use = rng.normal(size=count), curvature > 0
    y_off = rng.choice([0.0, 1.0, 30.0], (count, 1)) * rng.normal(size=(count, 2))
    v_off = rng.choice([0.0, 1.0, 300.0], (count, 1)) * rng.normal(size=(count, 2))
    y0 = slope * x0[:, None] + y_off
    v0 = np.stack([f[:, 1], 0 * x0], -1) * x0[:, None] + slope * x0[:, None] + f[:, 4:]
    v0 = v0 / h + v_off
    shares = rng.choice([0.2, 0.6, 0.98], count)
    rules = c.step_sizes(steps, 1.0)

    def squared_slopes(x, y, v, f, g, beta, curvature, linear):
        solver = bl.aid(PROBLEM, inner=rules.inner, adjoint=rules.adjoint, outer=beta)
        state = solver.init(x, y, bl.Batch(g, f))._replace(v=v)
        record = lambda after, info: (linear + curvature * after.x) ** 2
        first = (linear + curvature * x) ** 2
        return jnp.append(first, bl.scan(solver, state, bl.Batch(g, f), steps=steps - 1, record=record)[1])

    g = np.concatenate([np.broadcast_to(h, (count, 2)), coupling], axis=1)
    run = jax.jit(jax.vmap(squared_slopes))
    found = np.asarray(run(x0, y0, v0, f, g, shares * c.beta_max, curvature, linear))[use]
    gap = ((linear + curvature * x0) ** 2 / (2 * curvature))[use]
    K = np.arange(1, steps + 1)
    bound = c.bound(
        K[:, None],
        gap,
        np.linalg.norm(y_off, axis=1)[use],
        np.linalg.norm(v_off, axis=1)[use],
        (shares * c.beta_max)[use],
    )
    ratio = np.cumsum(found, axis=1).T / K[:, None] / bound
    assert use.sum() > 25
    assert 0.3 < np.max(ratio) <= 1  # never exceeded, and not idle


@pytest.mark.slow
def test_no_run_exceeds_its_bound_with_an_outer_objective_that_is_not_quadratic():
    steps, off, K = 400, np.sqrt(3), np.arange(1, 401)
    q = bl.problems.random_quadratic(5, mu=0.02, kappa=30.0, M=2.0, m=2, n=3)
    c = momentum.aid(Constants(q.mu, q.L, q.M, q.rho))
    inner, adjoint, beta = c.step_sizes(steps, 1.0, off)

    @jax.jit
    def run(x):
        phi = lambda x: q.problem.f(x, q.inner_solution(x), q.data)
        solver = bl.aid(q.problem, inner=inner, adjoint=adjoint, outer=beta)
        state = solver.init(x, q.inner_solution(x) + 1.0, q.data)
        xs = bl.scan(solver, state, q.data, steps=steps - 1, record=lambda state, info: state.x)[1]
        return phi(x), jnp.sum(jax.vmap(jax.grad(phi))(jnp.concatenate([x[None], xs])) ** 2, axis=1)

    gap, squares = run(jnp.ones(2))  # f ≥ 0, so Φ(x₀) bounds what there is to descend
    assert np.all(np.cumsum(np.asarray(squares)) / K <= c.bound(K, np.asarray(gap), off, beta=beta))


@pytest.mark.slow
def test_what_is_refused():
    with pytest.raises(ValueError, match=r"rho_xyy = 1: .*constant .*theory\.star\.aid"):
        momentum.aid(Constants(0.1, 1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match=r"rho_yyy = 0\.5"):
        momentum.heavy_ball(Blocks(0.1, 1, 1, 1, 1, 1, 1, rho_xxy=3.0, rho_yyy=0.5))
    quadratic = Blocks(0.1, 1, 1, 1, 1, 1, 1, rho_xxy=3.0)
    assert momentum.aid(quadratic).beta_max < momentum.aid(Blocks(0.1, 1, 1, 1, 1, 1, 1)).beta_max
    with pytest.raises(ValueError, match=r"not stable.*take one below 1\.33"):
        momentum.aid(quadratic, alpha=1.4, m=1.0 - 1e-6)
    with pytest.raises(ValueError, match="momentum must be at least 0 and below 1, not 1"):
        momentum.aid(quadratic, m=1.0)
    with pytest.raises(ValueError, match=r"one problem, not for a grid of shape \(2,\)"):
        momentum.aid(Constants([0.1, 0.2], 1.0, 1.0, 0.0)).step_sizes(100, 1.0)
    c = momentum.aid(quadratic)
    assert (
        c.bound(100, 1.0, beta=1.01 * c.beta_max) == np.inf > c.bound(100, 1.0, 1.0, 1.0, 0.99 * c.beta_max)
    )
