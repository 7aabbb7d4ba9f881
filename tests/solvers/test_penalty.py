"""First-order methods against the closed-form stationary points of what they minimize, biased as theory says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from implicit_reference import last_x, ridge

import bilevel as bl
from bilevel import f2sa
from bilevel.batch import Draws
from bilevel.solvers import f2ba, f2sa_p, f3sa, meha, v_pbgd
from marks import slow

# f has curvature in y (with f linear in y, as in the paper's quadratic, the penalty has no bias at all):
#   f(x, y) = ½‖y − c‖² + ½ τ‖x‖²        g(x, y) = ½ yᵀHy − yᵀBx
H = np.array([[2.0, 0.3, 0.0], [0.3, 1.0, 0.2], [0.0, 0.2, 0.7]])
B = np.array([[1.0, 0.2], [0.1, -0.8], [0.5, 0.4]])
C = np.array([1.0, -2.0, 0.5])
TAU, L, EYE = 0.5, 2.1, np.eye(3)
QUADRATIC = bl.Problem(
    outer=lambda x, y: 0.5 * jnp.sum((y - C) ** 2) + 0.5 * TAU * jnp.sum(x**2),
    inner=lambda x, y: 0.5 * y @ H @ y - y @ (B @ x),
)
X0, Y0 = jnp.array([0.5, -1.0]), jnp.zeros(3)
ABOVE_L = 1.5 * L  # step sizes are 1/ABOVE_L: f adds its own curvature to that of g


def stationary(jacobian, constant):
    return np.linalg.solve(jacobian, -constant)


def true_solution():
    """τx + BᵀH⁻¹(H⁻¹Bx − c) = 0."""
    K = np.linalg.solve(H, B)
    return stationary(TAU * np.eye(2) + K.T @ K, -K.T @ C)


def penalized_solution(penalty):
    """τx − λBᵀ(y − z) = 0 with (I + λH)y = c + λBx and Hz = Bx."""
    y_x, y_0 = np.linalg.solve(EYE + penalty * H, penalty * B), np.linalg.solve(EYE + penalty * H, C)
    return stationary(TAU * np.eye(2) - penalty * B.T @ (y_x - np.linalg.solve(H, B)), -penalty * B.T @ y_0)


def moreau_solution(penalty, proximal):
    """τx/c − Bᵀ(y − θ) = 0, (y − c)/c + Hy − Bx − (y − θ)/γ = 0 and Hθ − Bx + (θ − y)/γ = 0."""
    rows = [
        [TAU / penalty * np.eye(2), -B.T, B.T],
        [-B, EYE / penalty + H - EYE / proximal, EYE / proximal],
        [-B, -EYE / proximal, H + EYE / proximal],
    ]
    return stationary(np.block(rows), np.concatenate([np.zeros(2), -C / penalty, np.zeros(3)]))[:2]


METHODS = {  # how to build each for a penalty, and where it must end
    "f2sa": (
        lambda c: f2sa(QUADRATIC, inner=1 / ABOVE_L, outer=c / 10, penalty=c, inner_steps=2),
        penalized_solution,
    ),
    "f3sa": (lambda c: f3sa(QUADRATIC, inner=1 / ABOVE_L, outer=c / 10, penalty=c), penalized_solution),
    "f2ba": (
        lambda c: f2ba(QUADRATIC, inner=1 / ABOVE_L, outer=0.1, penalty=c, inner_steps=5),
        penalized_solution,
    ),
    "meha": (
        lambda c: meha(
            QUADRATIC, inner=1 / (2 * L), outer=0.2, penalty=c, proximal_step=0.5, auxiliary=1 / (L + 2)
        ),
        lambda c: moreau_solution(c, 0.5),
    ),
}


@pytest.mark.mathematics("f2sa", "f3sa", "f2ba", "meha")
@pytest.mark.parametrize("penalty", [2.0, slow(20.0)])
@pytest.mark.parametrize("method", METHODS)
def test_the_limit_on_the_quadratic_is_the_penalized_one(method, penalty):
    make, solution = METHODS[method]
    steps = 2000 if method != "meha" else 400 * int(20 + 20 * penalty)  # its x and y move at the pace of 1/c
    x = last_x(make(penalty), X0, Y0, steps=steps)
    np.testing.assert_allclose(x, solution(penalty), rtol=1e-8)
    assert np.linalg.norm(x - true_solution()) > 1e-4  # and that is not the true one


@pytest.mark.parametrize(
    "solution", [penalized_solution, lambda c: moreau_solution(c, 0.5)], ids=["penalty", "moreau"]
)
def test_the_bias_is_inversely_proportional_to_the_penalty(solution):
    penalties = np.array([1e2, 1e3, 1e4])
    errors = [np.linalg.norm(solution(c) - true_solution()) for c in penalties]
    assert abs(np.polyfit(np.log(penalties), np.log(errors), 1)[0] + 1) < 0.02


def test_a_growing_penalty_leaves_no_bias():
    solver = f2sa(QUADRATIC, inner=1 / ABOVE_L, outer=1.0, penalty=lambda k: 10.0 + 0.1 * k.astype(float))
    errors = [jnp.linalg.norm(last_x(solver, X0, Y0, steps=n) - true_solution()) for n in (4_000, 40_000)]
    assert errors[1] < errors[0] / 8  # λ has grown tenfold, and the bias with 1/λ
    assert errors[1] < 3 * np.linalg.norm(penalized_solution(4010.0) - true_solution())


def test_the_paper_s_quadratic_is_solved_exactly_by_any_penalty():
    """f is linear in y there, and λ(∇_x g(x, y_λ) − ∇_x g(x, y*)) does not depend on λ."""
    q = bl.problems.quadratic(kappa=4.0)
    x = last_x(
        f2ba(q.problem, inner=1 / q.L, outer=0.5 / q.L, penalty=3.0, inner_steps=5),
        jnp.ones(2),
        jnp.zeros(2),
        steps=1000,
    )
    np.testing.assert_allclose(x, q.solution, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["f2sa", "f2ba"])
def test_the_limit_on_ridge_logistic(method):
    """∇L_λ vanishes there, with both inner problems solved by Newton's method; so does ∇Φ up to O(1/λ)."""
    p, dense = ridge()
    penalty = 50.0
    make = {
        "f2sa": lambda: f2sa(p.problem, inner=0.5 / p.L, outer=penalty, penalty=penalty, inner_steps=2),
        "f2ba": lambda: f2ba(p.problem, inner=0.5 / p.L, outer=1.0, penalty=penalty, inner_steps=5),
    }[method]
    x = last_x(make(), jnp.zeros(5), jnp.zeros(5), p.data, steps=1500)

    def penalized(y):
        return p.f(x, y, p.valid) / penalty + p.g(x, y, p.train)

    z = dense.inner_solution(x)
    y = z
    newton = jax.jit(lambda y: y - jnp.linalg.solve(jax.hessian(penalized)(y), jax.grad(penalized)(y)))
    for _ in range(20):
        y = newton(y)
    g_x = jax.grad(p.g, 0)
    gradient = jax.grad(p.f, 0)(x, y, p.valid) + penalty * (g_x(x, y, p.train) - g_x(x, z, p.train))
    assert jnp.linalg.norm(gradient) < 1e-10
    assert 1e-7 < jnp.linalg.norm(dense.hypergradient(x)) < 1 / penalty


@pytest.mark.slow
def test_meha_on_ridge_logistic_is_stationary_for_the_penalized_envelope():
    p, dense = ridge()
    penalty, gamma = 20.0, 0.5
    solver = meha(p.problem, inner=0.25 / p.L, outer=2.0, penalty=penalty, proximal_step=gamma)
    x = last_x(solver, jnp.zeros(5), jnp.zeros(5), p.data, steps=40_000)

    def residual(unknown):  # of y and θ at this x
        y, theta = unknown
        g_y = lambda y: jax.grad(p.g, 1)(x, y, p.train)
        return jnp.stack(
            [
                jax.grad(p.f, 1)(x, y, p.valid) / penalty + g_y(y) - (y - theta) / gamma,
                g_y(theta) + (theta - y) / gamma,
            ]
        )

    pair = jnp.stack([dense.inner_solution(x)] * 2)

    @jax.jit
    def newton(pair):
        jacobian = jax.jacobian(residual)(pair).reshape(10, 10)
        return pair - jnp.linalg.solve(jacobian, residual(pair).reshape(10)).reshape(2, 5)

    for _ in range(20):
        pair = newton(pair)
    g_x = lambda y: jax.grad(p.g, 0)(x, y, p.train)
    gradient = jax.grad(p.f, 0)(x, pair[0], p.valid) + penalty * (g_x(pair[0]) - g_x(pair[1]))
    assert jnp.linalg.norm(gradient) < 1e-9
    assert jnp.linalg.norm(dense.hypergradient(x)) < 10 / penalty


def test_f3sa_on_full_batches_is_f2sa():
    left, right = (make(QUADRATIC, inner=1 / ABOVE_L, outer=0.3, penalty=5.0) for make in (f2sa, f3sa))
    a, b = left.init(X0, Y0), right.init(X0, Y0)
    of_left, of_right = jax.jit(left.step), jax.jit(right.step)
    for _ in range(8):
        (a, of_a), (b, of_b) = of_left(a), of_right(b)
        for name in ("x", "y", "z"):
            np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(of_a.hypergradient, of_b.hypergradient, rtol=1e-9)


@pytest.mark.slow
def test_f3sa_averages_noise_away():
    """On minibatches the estimate of ∇_y g that moves z scatters far less than the gradient itself, as in F2SA."""
    p = bl.problems.ridge_logistic(train=200, valid=200)
    stream = bl.iid(p.data, size=10, seed=0)
    some = bl.Batch(*(jax.tree.map(lambda a: a[:10], d) for d in (p.train, p.valid)))

    def scatter(solver, keep):
        start = solver.init(jnp.zeros(5), jnp.zeros(5), some)
        _, kept = jax.jit(lambda: bl.scan(solver, start, stream, steps=1000, record=keep))()
        return jnp.sum(jnp.var(kept[500:], axis=0))

    plain, averaging = (make(p.problem, inner=0.02, outer=1e-3, penalty=5.0) for make in (f2sa, f3sa))
    gradient = lambda state, info: info.inner_gradient  # of the batch, in both
    estimate = scatter(averaging, lambda state, info: state.lower.g_z)
    assert estimate < 0.3 * scatter(plain, gradient)
    assert estimate < 0.3 * scatter(averaging, gradient)


def test_f2sa_takes_a_draw_for_every_gradient():
    """Algorithm 1 written out: the t-th step on z and on y, and for x one at y and one at z."""
    p, _ = ridge()
    T, penalty, gamma, beta = 2, 3.0, 0.4, 0.7
    solver = f2sa(p.problem, inner=gamma, outer=beta, penalty=penalty, inner_steps=T)
    assert solver.draws == 2 * T + 2
    assert (
        f2sa(p.problem, inner=gamma, outer=beta, penalty=penalty, inner_steps=T, batches="shared").draws == 1
    )
    part = lambda examples, i: jax.tree.map(lambda a: a[9 * i : 9 * i + 9], examples)
    draw = [bl.Batch(part(p.train, i), part(p.valid, i)) for i in range(2 * T + 2)]
    together = Draws(jax.tree.map(lambda *leaves: jnp.stack(leaves), *draw), bl.Batch())
    f = lambda x, y, i: jax.grad(p.f, (0, 1))(x, y, draw[i].outer)
    g = lambda x, y, i: jax.grad(p.g, (0, 1))(x, y, draw[i].inner)

    x, y, z = jnp.linspace(-0.5, 1.0, 5), jnp.linspace(0.3, -0.3, 5), jnp.linspace(0.3, -0.3, 5)
    state, step = solver.init(x, y, together), jax.jit(solver.step)
    for _ in range(3):
        first = g(x, z, 0)[1]
        for t in range(T):
            z = z - gamma * g(x, z, 2 * t)[1]
            y = y - gamma / penalty * (f(x, y, 2 * t + 1)[1] + penalty * g(x, y, 2 * t + 1)[1])
        h = f(x, y, 2 * T)[0] + penalty * (g(x, y, 2 * T)[0] - g(x, z, 2 * T + 1)[0])
        x = x - beta / penalty * h
        state, info = step(state, together)
        np.testing.assert_allclose(info.inner_gradient, first, rtol=1e-11)
        np.testing.assert_allclose(info.hypergradient, h, rtol=1e-10)
        for name, expected in (("x", x), ("y", y), ("z", z)):
            np.testing.assert_allclose(getattr(state, name), expected, rtol=1e-11)


@pytest.mark.parametrize("make", [f2sa, f2ba], ids=["f2sa", "f2ba"])
def test_a_constant_schedule_is_the_constant(make):
    left, right = (make(QUADRATIC, inner=1 / ABOVE_L, outer=0.1, penalty=c) for c in (5.0, lambda k: 5.0))
    np.testing.assert_allclose(last_x(left, X0, Y0, steps=20), last_x(right, X0, Y0, steps=20), rtol=1e-13)
    growing = make(QUADRATIC, inner=1 / ABOVE_L, outer=0.1, penalty=lambda k: 5.0 + k.astype(float))
    _, trace = bl.scan(growing, growing.init(X0, Y0), steps=4)
    np.testing.assert_allclose(trace["penalty"], [5.0, 6.0, 7.0, 8.0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: f2sa(QUADRATIC, inner=0.1, outer=0.1, penalty=0.0),
            "penalty must be a positive number, not 0.0",
        ),
        (
            lambda: f2sa(QUADRATIC, inner=0.1, outer=0.1, penalty=1.0, inner_steps=0),
            "inner_steps must be a whole number of at least 1",
        ),
        (
            lambda: f2sa(QUADRATIC, inner=-1.0, outer=0.1, penalty=1.0),
            "inner step size must be a positive number, not -1.0",
        ),
        (lambda: f3sa(QUADRATIC, inner=0.1, outer=0.1, penalty=1.0, momentum=1.5), "at most 1, not 1.5"),
        (
            lambda: f3sa(QUADRATIC, inner=0.1, outer=0.1, penalty=1.0, momentum=0.0),
            "momentum must be a positive number, not 0.0",
        ),
        (
            lambda: f2ba(QUADRATIC, inner=0.1, outer=0.1, penalty=-2.0),
            "penalty must be a positive number, not -2.0",
        ),
        (
            lambda: meha(QUADRATIC, inner=0.1, outer=0.1, penalty=1.0, proximal_step=0.0),
            "proximal step must be a positive number, not 0.0",
        ),
        (
            lambda: meha(QUADRATIC, inner=0.1, outer=0.1, penalty=1.0, proximal_step=1.0, auxiliary=-1.0),
            "auxiliary step size must be a positive number",
        ),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# f curves downwards by 3 in y, g upwards by H's eigenvalues, of which the smallest is 0.586: λ must be above 5.12.
CONCAVE = bl.Problem(
    outer=lambda x, y: -1.5 * jnp.sum(y**2) + jnp.sum(y) + 20 * jnp.sum(x**2),
    inner=QUADRATIC.inner,
)


def assert_found_out(message):
    assert "f + 1·g is not convex in y" in message
    assert "curvature of f is -3 " in message
    bound = float(message.rpartition("raise the penalty well above ")[2].removesuffix("."))
    assert 3 / 2.09 < bound < 3 / 0.585


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda c: f2sa(CONCAVE, inner=0.2, outer=0.02 * c, penalty=c),
        lambda c: f2ba(CONCAVE, inner=0.2, outer=0.01, penalty=c),
        lambda c: v_pbgd(CONCAVE, inner=0.2, outer=0.02 * c, penalty=c),
        lambda c: f2sa_p(CONCAVE, inner=0.2, outer=0.01, penalty=c),
    ],
    ids=["f2sa", "f2ba", "v_pbgd", "f2sa_p"],
)
def test_a_penalty_too_small_for_f_is_found_out(make):
    diverged = bl.run(make(1.0), X0, Y0, steps=3000).status
    assert diverged.code == bl.Code.DIVERGED
    assert_found_out(diverged.message)
    fine = bl.run(make(20.0), X0, Y0, steps=200).status
    assert fine.code == bl.Code.COMPLETED
    assert "convex" not in fine.message


def test_it_is_found_out_while_the_run_is_finite_or_in_the_warm_up():
    solver = f2sa(CONCAVE, inner=0.2, outer=0.02, penalty=1.0)
    early = bl.run(solver, X0, Y0, steps=200).status
    assert early.code == bl.Code.COMPLETED
    assert_found_out(early.message)
    assert_found_out(bl.run(solver, X0, Y0, steps=1, warmup=5000).status.message)


@pytest.mark.slow
def test_a_step_too_large_is_not_taken_for_it():
    result = bl.run(f2ba(QUADRATIC, inner=3.0, outer=0.1, penalty=10.0), X0, Y0, steps=1000)
    assert result.status.code == bl.Code.DIVERGED
    assert "convex" not in result.status.message
    assert "the inner step size 3" in result.status.message


def test_f2sa_p_asks_for_more_where_f_is_convex():
    """There the copy of −f + λg runs away: f curves upwards by 1, and λ must be above 1/0.6."""
    solver = f2sa_p(QUADRATIC, inner=1 / ABOVE_L, outer=0.1, penalty=1.0)
    assert "−f + 1·g is not convex in y" in bl.run(solver, X0, Y0, steps=3000).status.message
