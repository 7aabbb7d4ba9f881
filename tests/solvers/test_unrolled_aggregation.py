"""BDA, IAPTT-GM and MAML: their hypergradients against autodiff through everything, their limits by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel import itd, maml
from bilevel.counting import Counts, oracle_calls
from bilevel.solvers import bda, iaptt
from marks import slow

X0, Y0 = jnp.array([0.4, -0.8]), jnp.array([1.1, -0.3])


def outer(x, y):
    return jnp.sum(jnp.sin(x) * y**2) + 0.5 * jnp.sum(y * jnp.cos(x[::-1]))


def inner(x, y):
    return jnp.sum(jnp.cosh(y) + 0.5 * (1 + x**2) * y**2 - jnp.sin(x) * y) + 0.1 * y[0] * y[1]


NONLINEAR = bl.Problem(outer=outer, inner=inner)
RMSPROP = optax.rmsprop(0.1)
RULES = {"gradient_descent": optax.sgd(0.1), "momentum": optax.sgd(0.1, momentum=0.9)}


def trajectory(x, y, rule, steps, gradient):
    """y_1, …, y_N in plain Python."""
    memory, visited = rule.init(y), []
    for t in range(steps):
        updates, memory = rule.update(gradient(x, y, t), memory, y)
        y = optax.apply_updates(y, updates)
        visited.append(y)
    return visited


def last_state(solver, x0, y0, steps, data=None):
    return jax.jit(lambda data: bl.scan(solver, solver.init(x0, y0, data), data, steps=steps)[0])(data)


@pytest.mark.mathematics("bda")
@pytest.mark.parametrize(
    "rule", [slow(RULES["gradient_descent"]), RULES["momentum"]], ids=["gradient_descent", "momentum"]
)
def test_bda_is_autodiff_through_the_aggregated_loop(rule):
    def aggregated(x, y, t):
        a = 0.6 / (t + 1)
        return (1 - a) * jax.grad(inner, 1)(x, y) + a * 0.7 * jax.grad(outer, 1)(x, y)

    solver = bda(NONLINEAR, inner=rule, outer=0.05, inner_steps=4, mixing=0.6, outer_share=0.7)
    state, info = jax.jit(solver.step)(solver.init(X0, Y0))
    whole = lambda x: outer(x, trajectory(x, Y0, rule, 4, aggregated)[-1])
    np.testing.assert_allclose(info.hypergradient, jax.jit(jax.grad(whole))(X0), rtol=1e-10)
    np.testing.assert_allclose(state.y, trajectory(X0, Y0, rule, 4, aggregated)[-1], rtol=1e-12)
    np.testing.assert_allclose(info.inner_gradient, jax.grad(inner, 1)(X0, Y0), rtol=1e-12)


@pytest.mark.usefixtures("as_users_see_it")
def test_bda_fades_as_it_is_told():
    """BOAT's way, a_t = a cᵗ."""

    def aggregated(x, y, t):
        a = 0.6 * 0.9**t
        return (1 - a) * jax.grad(inner, 1)(x, y) + a * jax.grad(outer, 1)(x, y)

    solver = bda(NONLINEAR, inner=0.1, outer=0.05, inner_steps=3, mixing=0.6, fading=lambda t: 0.9**t)
    _, info = jax.jit(solver.step)(solver.init(X0, Y0))
    whole = lambda x: outer(x, trajectory(x, Y0, optax.sgd(0.1), 3, aggregated)[-1])
    np.testing.assert_allclose(info.hypergradient, jax.jit(jax.grad(whole))(X0), rtol=1e-10)
    with pytest.raises(TypeError, match=r"fading must be a function of the step number, not 0\.9"):
        bda(NONLINEAR, inner=0.1, outer=0.1, inner_steps=3, fading=0.9)


def test_bda_chooses_among_inner_solutions_where_itd_cannot():
    """The publication's counterexample: g leaves y₂ free, the answer is x = y₁ = y₂ = 1.

    f = ½(x − y₂)² + ½(y₁ − 1)², g = ½y₁² − x y₁. With an inner loop on g alone y₂ stays at its start s, and the
    N-step derivative of y₁ is D = 1 − (1 − α)^N, so that x ends where (x − s) + D(x − 1) = 0.
    """
    problem = bl.Problem(
        outer=lambda x, y: 0.5 * (x - y[1]) ** 2 + 0.5 * (y[0] - 1) ** 2,
        inner=lambda x, y: 0.5 * y[0] ** 2 - x * y[0],
    )
    x0, y0 = jnp.array(0.3), jnp.array([0.0, -2.0])
    blended = last_state(bda(problem, inner=0.3, outer=0.1, inner_steps=4), x0, y0, 3000)
    np.testing.assert_allclose(blended.x, 1.0, rtol=1e-9)
    np.testing.assert_allclose(blended.y, [1.0, 1.0], rtol=1e-9)
    plain = last_state(itd(problem, inner=0.3, outer=0.1, inner_steps=4), x0, y0, 3000)
    D = 1 - 0.7**4
    np.testing.assert_allclose(plain.x, (-2.0 + D) / (1 + D), rtol=1e-9)


def test_bda_s_bias_on_the_quadratic():
    """f is linear in y, so y_{t+1} = y_t − α((1 − a_t)(Zy_t − Lx + 1) + a_t m) and dy/dx is a product of diagonals."""
    q = bl.problems.quadratic(kappa=3.0)
    alpha, steps = 1 / q.L, 6
    z, a = np.array([q.L, q.mu]), 0.5 / np.arange(1, steps + 1)
    through = np.zeros(2)  # dy_N/dx with y_0 held fixed
    for weight in a:
        through = (1 - alpha * (1 - weight) * z) * through + alpha * (1 - weight) * q.L
    state = last_state(
        bda(q.problem, inner=alpha, outer=0.5 / q.L, inner_steps=steps), jnp.ones(2), jnp.zeros(2), 2000
    )
    np.testing.assert_allclose(state.x, -0.1 * through / z, rtol=1e-9)


@pytest.mark.mathematics("iaptt")
@pytest.mark.parametrize(
    ("rule", "start"),
    [
        slow(RULES["momentum"], [1.1, -0.3]),
        slow(RULES["gradient_descent"], [0.1, 0.2]),
        (RULES["momentum"], [-2.0, 2.0]),
    ],
    ids=["momentum", "gradient_descent", "momentum_from_afar"],
)
def test_iaptt_is_autodiff_of_the_worst_value_along_the_loop(rule, start):
    start = jnp.array(start)
    gradient = lambda x, y, t: jax.grad(inner, 1)(x, y)
    solver = iaptt(NONLINEAR, inner=rule, outer=0.05, inner_steps=5, start=0.02)

    def worst(x, z):
        values = jnp.stack([outer(x, y) for y in trajectory(x, z, rule, 5, gradient)])
        return jnp.max(values), values

    state, info = jax.jit(solver.step)(solver.init(X0, start))
    (value, values), (by_x, by_z) = jax.jit(jax.value_and_grad(worst, (0, 1), has_aux=True))(X0, start)
    np.testing.assert_allclose(info.outer_value, value, rtol=1e-12)
    np.testing.assert_allclose(info.hypergradient, by_x, rtol=1e-10)
    np.testing.assert_allclose(state.z, start - 0.02 * by_z, rtol=1e-10)
    np.testing.assert_allclose(info.inner_gradient, gradient(X0, start, 0), rtol=1e-12)
    assert int(info.metrics["truncated_at"]) == 1 + np.argmax(values)


@pytest.mark.slow
def test_iaptt_truncates_at_different_lengths():
    """Which step is the worst depends on the start: the loop is not always walked back whole."""
    solver = iaptt(NONLINEAR, inner=0.1, outer=0.05, inner_steps=5)
    starts = jnp.linspace(-2.0, 2.0, 9)
    lengths = jax.vmap(
        lambda s: solver.step(solver.init(X0, jnp.array([1.0, -1.0]) * s))[1].metrics["truncated_at"]
    )(starts)
    assert len(set(lengths.tolist())) > 1


def test_iaptt_finds_the_solution_where_it_can_be_reached():
    """f = ½‖y − c‖² and y*(x) can be c: then x, y and the start z must all come to agree with that."""
    H, B, c = np.array([[2.0, 0.3], [0.3, 1.0]]), np.array([[1.0, 0.2], [0.1, -0.8]]), np.array([1.0, -2.0])
    problem = bl.Problem(
        outer=lambda x, y: 0.5 * jnp.sum((y - c) ** 2), inner=lambda x, y: 0.5 * y @ H @ y - y @ (B @ x)
    )
    state = last_state(iaptt(problem, inner=0.4, outer=1.0, inner_steps=6), jnp.zeros(2), jnp.zeros(2), 4000)
    np.testing.assert_allclose(state.x, np.linalg.solve(B, H @ c), rtol=1e-8)
    np.testing.assert_allclose(state.y, c, rtol=1e-8)
    np.testing.assert_allclose(state.z, c, rtol=1e-8)


def test_iaptt_projects_its_start():
    solver = iaptt(
        NONLINEAR, inner=0.1, outer=0.05, inner_steps=2, start=50.0, project=lambda z: jnp.clip(z, -0.5, 0.5)
    )
    state, _ = solver.step(solver.init(X0, Y0))
    assert jnp.max(jnp.abs(state.z)) == 0.5


# Eight regression tasks: support and query sets drawn around different slopes.
def tasks():
    rng = np.random.default_rng(5)
    slopes = rng.normal(size=(8, 1, 3))
    supports, queries = (rng.normal(size=(8, rows, 3)) for rows in (10, 6))
    pair = lambda a: (jnp.asarray(a), jnp.asarray(np.sum(a * slopes, axis=2) + 0.1))
    return bl.Batch(inner=pair(supports), outer=pair(queries))


def loss(x, y, examples):
    a, b = examples
    return 0.5 * jnp.mean((a @ y["w"] + y["b"] - b) ** 2)


SUPPORT_QUERY = bl.Problem(outer=loss, inner=loss)
START = {"w": jnp.array([0.1, -0.2, 0.3]), "b": jnp.array(0.5)}


@pytest.mark.mathematics("maml")
@pytest.mark.parametrize("rule", [slow(0.1), RULES["momentum"]], ids=["float", "momentum"])
@pytest.mark.parametrize("steps", [1, slow(3)])
def test_maml_is_autodiff_through_the_adaptation_of_every_task(rule, steps):
    data = tasks()
    optax_rule = optax.sgd(rule) if isinstance(rule, float) else rule

    @jax.jit
    def meta_loss(x):
        def one_task(support, query):
            adapted = trajectory(x, x, optax_rule, steps, lambda x, y, t: jax.grad(loss, 1)(x, y, support))[
                -1
            ]
            return loss(x, adapted, query)

        return jnp.mean(jax.vmap(one_task)(data.inner, data.outer))

    solver = maml(SUPPORT_QUERY, inner=rule, outer=0.05, inner_steps=steps)
    state, info = jax.jit(solver.step)(solver.init(START, START, data), data)
    value, expected = jax.value_and_grad(meta_loss)(START)
    np.testing.assert_allclose(info.outer_value, value, rtol=1e-12)
    for name in START:
        np.testing.assert_allclose(info.hypergradient[name], expected[name], rtol=1e-10)
        np.testing.assert_allclose(state.x[name], START[name] - 0.05 * expected[name], rtol=1e-10)
    assert state.y["w"].shape == (8, 3)


def test_maml_reaches_the_best_initialization_of_quadratic_tasks():
    """f_i = g_i = ½(y − c_i)ᵀA_i(y − c_i): with P_i = I − αA_i the best x solves Σ P_iA_iP_i (x − c_i) = 0."""
    rng = np.random.default_rng(6)
    roots = rng.normal(size=(5, 2, 2))
    A, c = roots @ roots.transpose(0, 2, 1) + 0.5 * np.eye(2), rng.normal(size=(5, 2))
    task = lambda x, y, batch: 0.5 * (y - batch[1]) @ batch[0] @ (y - batch[1])
    data = bl.Batch(inner=(jnp.asarray(A), jnp.asarray(c)), outer=(jnp.asarray(A), jnp.asarray(c)))
    alpha = 0.05
    M = np.stack([(np.eye(2) - alpha * a) @ a @ (np.eye(2) - alpha * a) for a in A])
    best = np.linalg.solve(M.sum(0), np.einsum("ijk,ik->j", M, c))
    result = bl.run(
        maml(bl.Problem(outer=task, inner=task), inner=alpha, outer=0.2),
        jnp.zeros(2),
        jnp.zeros(2),
        data=data,
        steps=500,
    )
    np.testing.assert_allclose(result.x, best, rtol=1e-9)
    np.testing.assert_allclose(result.y, best - alpha * np.einsum("ijk,ik->ij", A, best - c), rtol=1e-9)


@pytest.mark.slow
def test_maml_draws_minibatches_of_tasks_and_keeps_its_state_s_type():
    data = tasks()
    solver = maml(SUPPORT_QUERY, inner=0.1, outer=0.05)
    result = bl.run(
        solver,
        START,
        START,
        data=bl.iid(data, size=4, seed=0),
        steps=200,
        options=bl.RunOptions(every=200),
        warmup=2,
    )
    assert result.state.y["w"].shape == (4, 3)
    meta_loss = jax.jit(lambda x: solver.step(solver.init(x, x, data), data)[1].outer_value)
    assert meta_loss(result.x) < meta_loss(START)
    with jax.enable_x64(False):
        single = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), (START, data))
        state = solver.init(single[0], single[0], single[1])
        after, _ = jax.eval_shape(solver.step, state, single[1])
    describe = lambda tree: jax.tree.map(lambda a: (a.shape, a.dtype), tree)
    assert describe(after) == describe(state)


@pytest.mark.slow
def test_maml_averages_metrics_and_state_over_tasks_with_a_key_for_each():
    data = tasks()

    def support(x, y, examples, *, key, rows, state):
        noise = jax.random.normal(key)
        return (
            loss(x, y, examples),
            {"noise": noise, "task": rows.astype(float)},
            {"seen": state["seen"] + noise},
        )

    def query(x, y, examples, *, state):
        return loss(x, y, examples) + 0.0 * state["seen"], {"error": loss(x, y, examples)}

    solver = maml(bl.Problem(outer=query, inner=support), inner=0.1, outer=0.05)
    run = bl.start(solver, START, START, data, model_state={"seen": jnp.array(0.0)})
    after, trace = bl.scan(solver, run, data, steps=3)
    assert trace["outer/error"].shape == (3,)
    np.testing.assert_allclose(trace["outer/error"], trace["outer_value"], rtol=1e-12)
    np.testing.assert_allclose(trace["inner/task"], 3.5)  # tasks 0 to 7
    np.testing.assert_allclose(after.model["seen"], np.sum(trace["inner/noise"]), rtol=1e-12)
    # Were the key shared, the mean over tasks would scatter as much as one of them.
    _, trace = bl.scan(solver, run, data, steps=400)
    np.testing.assert_allclose(np.std(trace["inner/noise"]), 8**-0.5, rtol=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        # d_t takes a gradient of each level, and the way back products of each; rmsprop's derivative a gradient of each
        (lambda p: bda(p, inner=0.1, outer=0.1, inner_steps=4), Counts(2 + 4, 4, 2 * 4, 2 * 4)),
        (lambda p: bda(p, inner=RMSPROP, outer=0.1, inner_steps=4), Counts(2 + 4 + 3, 4 + 3, 2 * 4, 2 * 4)),
        (lambda p: bda(p, inner=0.1, outer=0.1, inner_steps=4, truncate=1), Counts(2 + 4, 4, 0, 2)),
    ],
    ids=["bda", "bda_rmsprop", "bda_truncated"],
)
def test_counts(make, expected):
    solver = make(NONLINEAR)
    assert oracle_calls(solver, solver.init(X0, Y0)) == expected


@pytest.mark.parametrize(("rule", "on_the_way_back"), [(0.1, 0), (RMSPROP, 2)], ids=["float", "rmsprop"])
def test_counts_of_maml(rule, on_the_way_back):
    data = tasks()
    with_x = lambda x, y, examples: loss(x, y, examples) + 0.1 * (x["w"] @ y["w"] ** 2 + x["b"] * y["b"] ** 2)
    solver = maml(bl.Problem(outer=with_x, inner=with_x), inner=rule, outer=0.1, inner_steps=3)
    expected = Counts(*(8 * per_task for per_task in (2, 3 + on_the_way_back, 3, 3)))
    assert oracle_calls(solver, solver.init(START, START, data), data) == expected


@pytest.mark.slow
@pytest.mark.parametrize("rule", [0.1, RMSPROP], ids=["float", "rmsprop"])
def test_iaptt_pays_only_for_the_steps_it_walks_back(rule):
    solver, lengths = iaptt(NONLINEAR, inner=rule, outer=0.1, inner_steps=5), set()
    for start in (Y0, jnp.array([-2.0, 2.0]), jnp.zeros(2)):
        state = solver.init(X0, start)
        _, info = jax.jit(solver.step)(state)
        walked = int(info.metrics["truncated_at"])
        lengths.add(walked)
        gradients = 5 if rule == 0.1 else 5 + walked
        assert oracle_calls(solver, state) == Counts(2, gradients, walked, walked)
    assert len(lengths) > 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: bda(NONLINEAR, inner=0.1, outer=0.1, inner_steps=0),
            "inner_steps must be a whole number of at least 1, not 0",
        ),
        (
            lambda: bda(NONLINEAR, inner=0.1, outer=0.1, inner_steps=3, truncate=4),
            "truncate=4 asks to differentiate more",
        ),
        (lambda: bda(NONLINEAR, inner=0.1, outer=0.1, inner_steps=3, mixing=1.5), "at most 1, not 1.5"),
        (
            lambda: bda(NONLINEAR, inner=0.1, outer=0.1, inner_steps=3, outer_share=-1.0),
            "outer_share must be a positive number, not -1.0",
        ),
        (
            lambda: iaptt(NONLINEAR, inner=0.1, outer=0.1, inner_steps=0),
            "inner_steps must be a whole number of at least 1, not 0",
        ),
        (
            lambda: iaptt(NONLINEAR, inner=0.1, outer=0.1, inner_steps=3, start=0.0),
            "start step size must be a positive number, not 0.0",
        ),
        (
            lambda: maml(SUPPORT_QUERY, inner=0.0, outer=0.1),
            "inner step size must be a positive number, not 0.0",
        ),
        (
            lambda: maml(SUPPORT_QUERY, inner=0.1, outer=0.1).init(START, START, None),
            "MAML needs data of many tasks",
        ),
        (
            lambda: maml(SUPPORT_QUERY, inner=0.1, outer=0.1).init(
                START, START, bl.Batch(jnp.ones((3, 2)), jnp.ones((4, 2)))
            ),
            r"numbers of rows are \[3, 4\]",
        ),
        (
            lambda: maml(
                bl.Problem(outer=lambda x, y, b: jnp.sum(y), inner=lambda x, y, b: jnp.sum(y * y)),
                inner=0.1,
                outer=0.1,
            ).init(jnp.ones(2), jnp.ones(3), bl.Batch(jnp.ones(4), jnp.ones(4))),
            "pass y0=x0",
        ),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()
