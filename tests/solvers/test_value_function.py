"""BOME, PBGD, F2SA-p, accelerated F²BA and PZOBO: their recurrences in NumPy, their limits in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from implicit_reference import last_x, ridge
from test_penalty import ABOVE_L, EYE, QUADRATIC, TAU, X0, Y0, B, C, H, L, penalized_solution, true_solution

import bilevel as bl
from bilevel import itd
from bilevel.counting import Counts, oracle_calls
from bilevel.solvers import acc_f2ba, bome, f2ba, f2sa_p, g_pbgd, pzobo, v_pbgd
from bilevel.solvers.algorithms.f2sa_p import difference
from bilevel.solvers.algorithms.pzobo import gaussian

A, XI, LAMBDA = 1 / ABOVE_L, 0.04, 5.0
START = X, Y = np.asarray(X0), np.asarray(Y0)


# The quadratic's derivatives, by hand.
def f_x(x, y):
    return TAU * x


def f_y(x, y):
    return y - C


def g_x(x, y):
    return -B.T @ y


def g_y(x, y):
    return H @ y - B @ x


def g(x, y):
    return 0.5 * y @ H @ y - y @ B @ x


def descended(x, y, step_size, steps, share=0.0):
    """Steps on g + share · f."""
    for _ in range(steps):
        y = y - step_size * (g_y(x, y) + share * f_y(x, y))
    return y


def bome_step(x, y, barrier):
    """Algorithm 1, in the order of benchmark_bilevel's solvers/bome.py."""
    z = descended(x, y, 1 / L, 3)
    q_y, q_x = g_y(x, y), g_x(x, y) - g_x(x, z)
    square = q_y @ q_y + q_x @ q_x
    phi = 0.5 * (square if barrier == "gradient" else g(x, y) - g(x, z))
    penalty = max(phi - (f_y(x, y) @ q_y + f_x(x, y) @ q_x), 0) / square
    return x - XI * (f_x(x, y) + penalty * q_x), y - 2 * XI * (f_y(x, y) + penalty * q_y)


def v_pbgd_step(x, y, z):
    """The authors' data_hyper_clean.py: lr_decay = 1/λ times the gradient of f + λ (g − v)."""
    z = descended(x, z, 0.3, 2)
    for_x = (f_x(x, y) + LAMBDA * (g_x(x, y) - g_x(x, z))) / LAMBDA
    return x - XI * for_x, y - A * (f_y(x, y) + LAMBDA * g_y(x, y)) / LAMBDA, z


def g_pbgd_step(x, y):
    """The authors' data_hyper_clean_gpbgd.py: the same of f + (λ/2) ‖∇_y g‖²."""
    r = g_y(x, y)
    return x - XI * (f_x(x, y) - LAMBDA * B.T @ r) / LAMBDA, y - 0.1 * (f_y(x, y) + LAMBDA * H @ r) / LAMBDA


# The weights of the authors' l2reg.py, by j.
AUTHORS = {
    2: {1: 1 / 2, -1: -1 / 2},
    3: {1: 1, 2: -1 / 6, 0: -1 / 2, -1: -1 / 3},
    5: {1: 1, 2: -1 / 4, 3: 1 / 30, 0: -1 / 3, -1: -1 / 2, -2: 1 / 20},
    8: {s * j: s * a / 840 for s in (1, -1) for j, a in ((1, 672), (2, -168), (3, 32), (4, -3))},
}


def f2sa_p_step(x, copies, p):
    """A step of theirs without averaging the copies before it or normalizing it after; their f does not contain x."""
    copies = {j: descended(x, y, A, 2, j / LAMBDA) for j, y in copies.items()}
    h = LAMBDA * sum(a * g_x(x, copies[j]) for j, a in AUTHORS[p].items()) + f_x(x, None)
    return x - XI * h, copies


def test_the_weights_are_the_authors():
    for p, weights in AUTHORS.items():
        shares, found = difference(p)
        assert shares[0] == 1  # y
        np.testing.assert_allclose(found, [weights[int(j)] for j in shares], rtol=1e-15)
        assert set(shares) == set(weights)


def followed(solver, step, variables, steps=5):
    """The solver's iterates beside those of the reference."""
    state, advance = solver.init(X0, Y0), jax.jit(solver.step)
    for _ in range(steps):
        variables = step(*variables)
        state, _ = advance(state)
        yield state, variables


def same(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.mathematics("bome")
@pytest.mark.parametrize("barrier", ["gradient", "value"])
def test_bome_step_for_step(barrier):
    solver = bome(QUADRATIC, inner=2 * XI, outer=XI, inner_steps=3, auxiliary=1 / L, barrier=barrier)
    for state, (x, y) in followed(solver, lambda x, y: bome_step(x, y, barrier), START):
        same(state.x, x)
        same(state.y, y)


@pytest.mark.mathematics("v_pbgd", "g_pbgd")
def test_pbgd_step_for_step():
    solver = v_pbgd(QUADRATIC, inner=A, outer=XI, penalty=LAMBDA, inner_steps=2, auxiliary=0.3)
    for state, (x, y, z) in followed(solver, v_pbgd_step, (X, Y, Y)):
        same(state.x, x)
        same(state.y, y)
        same(state.z, z)
    for state, (x, y) in followed(g_pbgd(QUADRATIC, inner=0.1, outer=XI, penalty=LAMBDA), g_pbgd_step, START):
        same(state.x, x)
        same(state.y, y)


@pytest.mark.mathematics("f2sa_p")
@pytest.mark.parametrize("p", [2, 3])
def test_f2sa_p_step_for_step(p):
    solver, shares = (
        f2sa_p(QUADRATIC, inner=A, outer=XI, penalty=LAMBDA, order=p, inner_steps=2),
        difference(p)[0],
    )
    start = X, dict.fromkeys(AUTHORS[p], Y)
    for state, (x, copies) in followed(solver, lambda x, copies: f2sa_p_step(x, copies, p), start):
        same(state.x, x)
        same(state.y, copies[1])
        same(state.z, [copies[int(j)] for j in shares[1:]])


def test_f2sa_p_of_order_one_is_f2ba():
    a, b = (
        f2ba(QUADRATIC, inner=A, outer=XI, penalty=LAMBDA),
        f2sa_p(QUADRATIC, inner=A, outer=XI, penalty=LAMBDA, order=1),
    )
    same(last_x(b, X0, Y0, steps=20), last_x(a, X0, Y0, steps=20))


@pytest.mark.mathematics("acc_f2ba")
def test_accelerated_f2ba_step_for_step():
    radius, theta, restarts = 0.2, 0.8, []

    def step(x, last, y, z, n, moved):
        y, z = descended(x, y, A, 2, 1 / LAMBDA), descended(x, z, A, 2)
        point = x - XI * (f_x(x, y) + LAMBDA * (g_x(x, y) - g_x(x, z)))
        n, moved = n + 1, moved + np.sum((point - last) ** 2)
        restarts.append(n * moved > radius**2)
        if restarts[-1]:
            return point, point, y, z, 0, 0.0
        return point + theta * (point - last), point, y, z, n, moved

    solver = acc_f2ba(
        QUADRATIC, inner=A, outer=XI, penalty=LAMBDA, radius=radius, lookahead=theta, inner_steps=2
    )
    start = X, X, Y, Y, 0, 0.0
    for state, (x, last, y, z, n, moved) in followed(solver, step, start, steps=30):
        same(state.x, x)
        same(state.last, last)
        same(state.y, y)
        same(state.z, z)
        assert state.since == n
        same(state.moved, moved)
    assert 2 < sum(restarts) < 28  # both branches were taken


@pytest.mark.slow
def test_accelerated_f2ba_is_faster_and_between_f2ba_with_and_without_nesterov_s_momentum():
    common = dict(penalty=20.0, inner_steps=5)
    plain = f2ba(QUADRATIC, inner=A, outer=XI, **common)
    at_once = acc_f2ba(
        QUADRATIC, inner=A, outer=XI, radius=1e-12, **common
    )  # drops its momentum at every step
    same(last_x(at_once, X0, Y0, steps=20), last_x(plain, X0, Y0, steps=20))
    nesterov = f2ba(QUADRATIC, inner=A, outer=optax.sgd(XI, momentum=0.8, nesterov=True), **common)
    for_ever = acc_f2ba(QUADRATIC, inner=A, outer=XI, radius=1e9, lookahead=0.8, **common)  # never does
    same(last_x(for_ever, X0, Y0, steps=20), last_x(nesterov, X0, Y0, steps=20))
    error = lambda solver: jnp.linalg.norm(last_x(solver, X0, Y0, steps=120) - penalized_solution(20.0))
    assert error(acc_f2ba(QUADRATIC, inner=A, outer=XI, radius=0.1, **common)) < error(plain) / 50


def gradient_penalized_solution(penalty):
    """y − c + λH(Hy − Bx) = 0 and τx − λBᵀ(Hy − Bx) = 0."""
    rows = [
        [TAU * np.eye(2) + penalty * B.T @ B, -penalty * B.T @ H],
        [-penalty * H @ B, EYE + penalty * H @ H],
    ]
    return np.linalg.solve(np.block(rows), np.concatenate([np.zeros(2), C]))[:2]


def difference_solution(p, penalty):
    """τx − λ Σ_j a_j Bᵀy_j = 0 with (λH + j)y_j = λBx + jc."""
    shares, weights = difference(p)
    slope, constant = TAU * np.eye(2), np.zeros(2)
    for j, a in zip(shares, weights, strict=True):
        solve = lambda b, j=j: np.linalg.solve(penalty * H + j * EYE, b)
        slope = slope - penalty * a * B.T @ solve(penalty * B)
        constant = constant - penalty * a * B.T @ solve(j * C)
    return np.linalg.solve(slope, -constant)


LIMITS = {
    "v_pbgd": (
        v_pbgd(QUADRATIC, inner=A, outer=0.3, penalty=20.0, inner_steps=2),
        penalized_solution(20.0),
        10_000,
    ),
    "g_pbgd": (
        g_pbgd(QUADRATIC, inner=0.5 / L**2, outer=0.2, penalty=20.0),
        gradient_penalized_solution(20.0),
        40_000,
    ),
    "acc_f2ba": (
        acc_f2ba(QUADRATIC, inner=A, outer=0.1, penalty=20.0, radius=0.1, inner_steps=5),
        penalized_solution(20.0),
        2000,
    ),
} | {
    f"f2sa_p, p = {p}": (
        f2sa_p(QUADRATIC, inner=A, outer=0.1, penalty=10.0, order=p, inner_steps=5),
        difference_solution(p, 10.0),
        2000,
    )
    for p in (2, 3, 4)
}


@pytest.mark.slow
@pytest.mark.parametrize(("solver", "solution", "steps"), LIMITS.values(), ids=LIMITS)
def test_the_limit_on_the_quadratic(solver, solution, steps):
    x = last_x(solver, X0, Y0, steps=steps)
    np.testing.assert_allclose(x, solution, rtol=1e-8)
    assert np.linalg.norm(x - true_solution()) > 1e-5  # and that is not the true one


def test_the_order_of_the_bias():
    """1/λ for a price on the gradient's square, λ^−p for a difference of order p."""
    penalties = np.array([20.0, 40.0, 80.0])
    order = lambda of: (
        -np.polyfit(
            np.log(penalties), [np.log(np.linalg.norm(of(c) - true_solution())) for c in penalties], 1
        )[0]
    )
    assert abs(order(gradient_penalized_solution) - 1) < 0.05
    for p in (1, 2, 3, 4):
        assert abs(order(lambda c, p=p: difference_solution(p, c)) - p) < 0.05


def test_the_bias_of_order_two_on_ridge_logistic():
    """‖∇Φ‖ where it ends falls fourfold as the penalty doubles; with data, and where y*(x) is no linear function."""
    p, dense = ridge()

    @jax.jit
    def end(solver, data):
        start = solver.init(jnp.zeros(5), jnp.zeros(5), data)
        return bl.scan(solver, start, data, steps=1500)[0].x

    make = lambda c: f2sa_p(p.problem, inner=0.5 / p.L, outer=1.0, penalty=c, inner_steps=5)
    coarse, fine = (jnp.linalg.norm(dense.hypergradient(end(make(c), p.data))) for c in (20.0, 40.0))
    assert 3.6 < coarse / fine < 4.4


def test_bome_ends_near_the_solution_in_proportion_to_its_steps():
    def error(xi):
        x = last_x(bome(QUADRATIC, inner=xi, outer=xi, auxiliary=1 / L), X0, Y0, steps=int(100 / xi))
        return jnp.linalg.norm(x - true_solution())

    large, small = error(0.05), error(0.005)
    assert small < 0.01
    assert 7 < large / small < 13


class TestPZOBO:
    """On the quadratic the end of the inner loop is affine in x, so a difference is exact whatever μ is."""

    Q, N, BETA = 3, 4, 0.1
    solver = pzobo(QUADRATIC, inner=A, outer=BETA, displacement=0.5, directions=Q, inner_steps=N)

    @pytest.mark.mathematics("pzobo")
    def test_step_for_step(self):
        """benchmark_bilevel's solvers/pzobo.py, with the directions that this solver draws."""
        number, start = iter(range(5)), self.solver.init(X0, Y0)

        def step(x, y):
            key = self.solver.key(start._replace(k=jnp.int32(next(number))), None)
            U = np.asarray(gaussian(key, X0, self.Q))
            old, y = y, descended(x, y, A, self.N)
            deltas = np.array([descended(x + 0.5 * u, old, A, self.N) - y for u in U]) / 0.5
            estimator = U.T @ (deltas @ f_y(x, y)) / self.Q
            return x - self.BETA * (estimator + f_x(x, y)), y

        for state, (x, y) in followed(self.solver, step, START):
            same(state.x, x)
            same(state.y, y)

    def test_its_mean_is_itd_and_its_variance_as_stated(self):
        """Of M estimates: their mean is off by 5 standard deviations with probability below 1e-5 (n = 2 entries)."""
        M, n = 4000, 2
        state = self.solver.init(X0, Y0)
        estimate = lambda key: self.solver.step(state, bl.Batch(key=key))[1].hypergradient
        drawn = jax.jit(jax.vmap(estimate))(jax.random.split(jax.random.key(0), M))
        exact = itd(QUADRATIC, inner=A, outer=self.BETA, inner_steps=self.N)
        expected = jax.jit(exact.step)(exact.init(X0, Y0))[1].hypergradient
        implicit = expected - TAU * X0
        variance = (n + 1) * jnp.sum(implicit**2) / self.Q
        assert jnp.linalg.norm(jnp.mean(drawn, 0) - expected) < 5 * jnp.sqrt(variance / M)
        assert jnp.linalg.norm(implicit) > 10 * jnp.sqrt(variance / M)  # so that the above says something
        np.testing.assert_allclose(jnp.sum(jnp.var(drawn, 0)), variance, rtol=0.2)

    def test_a_full_orthogonal_set_of_directions_is_itd(self, monkeypatch):
        """(1/Q) Σ uuᵀ = I for the n directions √n e_i."""
        monkeypatch.setattr(
            "bilevel.solvers.algorithms.pzobo.gaussian", lambda key, x, count: jnp.sqrt(2.0) * jnp.eye(2)
        )
        full = pzobo(QUADRATIC, inner=A, outer=self.BETA, directions=2, inner_steps=self.N)
        exact = itd(QUADRATIC, inner=A, outer=self.BETA, inner_steps=self.N)
        same(last_x(full, X0, Y0, steps=10), last_x(exact, X0, Y0, steps=10))

    def test_the_run_s_seed_draws_the_directions(self):
        run = lambda seed: bl.run(self.solver, X0, Y0, steps=3, seed=seed).x
        np.testing.assert_array_equal(run(1), run(1))
        assert np.all(run(1) != run(2))


def test_counts_of_an_odd_order():
    """One copy of y more than the order; docs/test_counts.py has the even ones."""
    coupled = bl.Problem(outer=lambda x, y: jnp.sum((y - C) ** 2) * jnp.sum(x**2), inner=QUADRATIC.inner)
    solver = f2sa_p(coupled, inner=0.1, outer=0.1, penalty=5.0, order=3, inner_steps=3)
    assert oracle_calls(solver, solver.init(X0, Y0)) == Counts(4 * 4, 4 * 4, 0, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: bome(p, inner=0.1, outer=0.1, rate=-1.0), "rate must be a positive number, not -1.0"),
        (
            lambda p: bome(p, inner=0.1, outer=0.1, barrier="log"),
            'must be "gradient" or "value", not \'log\'',
        ),
        (
            lambda p: bome(p, inner=0.1, outer=0.1, auxiliary=0.0),
            "auxiliary step size must be a positive number",
        ),
        (
            lambda p: v_pbgd(p, inner=0.1, outer=0.1, penalty=0.0),
            "penalty must be a positive number, not 0.0",
        ),
        (
            lambda p: v_pbgd(p, inner=0.1, outer=0.1, penalty=1.0, inner_steps=0),
            "inner_steps must be a whole number",
        ),
        (
            lambda p: g_pbgd(p, inner=0.1, outer=0.1, penalty=-1.0),
            "penalty must be a positive number, not -1.0",
        ),
        (
            lambda p: f2sa_p(p, inner=0.1, outer=0.1, penalty=1.0, order=0),
            "order must be a whole number of at least 1",
        ),
        (
            lambda p: acc_f2ba(p, inner=0.1, outer=0.1, penalty=1.0, radius=0.0),
            "radius must be a positive number",
        ),
        (
            lambda p: acc_f2ba(p, inner=0.1, outer=0.1, penalty=1.0, radius=1.0, lookahead=1.0),
            "lookahead must be below 1, not 1.0",
        ),
        (
            lambda p: pzobo(p, inner=0.1, outer=0.1, displacement=0.0),
            "displacement must be a positive number, not 0.0",
        ),
        (
            lambda p: pzobo(p, inner=0.1, outer=0.1, directions=0),
            "directions must be a whole number of at least 1",
        ),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make(QUADRATIC)
