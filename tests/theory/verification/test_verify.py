"""Verify on single problems: what is wrong is named, and what is right is left alone."""

from dataclasses import fields, replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import tree

import bilevel as bl
from bilevel import theory
from bilevel.problems import quadratic, random_quadratic, ridge_logistic


@pytest.mark.slow
def test_ridge_logistic_constants_bound_the_derivatives_where_they_claim_to():
    """Against dense derivatives at random points of the region, the far corners included."""
    rng = np.random.default_rng(0)
    p = ridge_logistic(features=3, train=16, valid=16, seed=5)
    k = p.constants(x_radius=4.0, y_radius=2.0)

    def at(x, y):
        z = jnp.concatenate([x, y])
        g = lambda z: p.problem.g(z[:3], z[3:], p.data)
        f = lambda z: p.problem.f(z[:3], z[3:], p.data)
        second, third = jax.hessian(g)(z), jax.jacfwd(jax.hessian(g))(z)
        return second, third, jax.grad(f)(z), jax.hessian(f)(z)

    tightness = np.zeros(4)
    for i in range(200):
        x, y = rng.normal(size=3), rng.normal(size=3)
        x, y = (
            4.0 * rng.random() * x / np.linalg.norm(x),
            2.0 * (i % 2 or rng.random()) * y / np.linalg.norm(y),
        )
        g2, g3, f1, f2 = jax.device_get(jax.jit(at)(jnp.asarray(x), jnp.asarray(y)))
        direction = rng.normal(size=6)
        change = g3 @ (direction / np.linalg.norm(direction))
        norm = lambda a: np.linalg.norm(a, 2)
        seen = np.array(
            [
                k.mu / np.linalg.eigvalsh(g2[3:, 3:])[0],
                max(norm(g2[:, 3:]), norm(f2)) / k.L,
                np.linalg.norm(f1) / k.M,
                max(norm(change[3:, 3:]), norm(change[:3, 3:])) / k.rho,
            ]
        )
        assert np.all(seen <= 1)
        tightness = np.maximum(tightness, seen)
    assert np.all(tightness > 0.05)  # bounds, not just anything large


@pytest.mark.slow
def test_verify_on_the_papers_problem_finds_nothing_wrong():
    q = quadratic(kappa=4.0)
    k = theory.Constants(q.mu, q.L, q.m * np.sqrt(2), 0.1)  # ρ = 0.1 is loose: the true one is 0
    c = theory.aid(k)
    solver = bl.aid(q.problem, inner=c.alpha, adjoint=c.eta, outer=c.beta)
    x0 = jnp.ones(2)
    closed = theory.verify(solver, k, x0, q.inner_solution(x0), 50, solution=q.inner_solution)
    solved = theory.verify(solver, k, x0, q.inner_solution(x0), 50)
    assert closed.ok
    assert solved.ok
    assert closed["Theorem 5.9"].slack == pytest.approx(solved["Theorem 5.9"].slack, rel=1e-9)
    assert "all" in str(closed)
    assert "Theorem 5.9" in str(closed)
    assert "declared" in str(closed)


def paper_problem(M):
    q = quadratic(kappa=4.0)
    valid = theory.Constants(q.mu, q.L, q.m * np.sqrt(2), 0.0)
    return q, valid, replace(valid, M=M)


@pytest.mark.slow
def test_an_M_that_is_too_small_is_named_with_the_inequalities_it_breaks():
    q, valid, wrong = paper_problem(M=0.1 * 0.1 * np.sqrt(2))
    x0 = jnp.ones(2)
    c = theory.aid(valid)
    solver = bl.aid(q.problem, inner=c.alpha, adjoint=c.eta, outer=c.beta)
    report = theory.verify(solver, wrong, x0, q.inner_solution(x0), 5)
    assert not report.ok
    broken = [row.name for row in report.violations]
    assert "Assumption 4.3: f's slope in y (M)" in broken
    assert "Lemma 5.8: initialization" in broken
    assert report["Lemma 5.8"].first_violation == 0
    assert "Lemma 5.8: initialization (first at k = 0)" in str(report).replace("\n", " ")

    solver = bl.itd(q.problem, inner=1 / q.L, outer=theory.itd(valid).beta)
    report = theory.verify(solver, wrong, x0, q.inner_solution(x0), 5)
    assert "Lemma 5.13: hypergradient error" in [row.name for row in report.violations]


@pytest.mark.slow
def test_a_wrong_mu_or_L_is_named():
    """Not only the assumption itself: a lemma that rests on it fails as well, from a start along that eigenvector."""
    q, valid, _ = paper_problem(M=1.0)
    solver = bl.aid(q.problem, inner=0.5 / q.L, adjoint=0.5 / q.L, outer=1e-4)
    x0 = jnp.ones(2)
    strong, weak = (q.inner_solution(x0) + jnp.eye(2)[i] for i in range(2))
    wrong_L = theory.verify(solver, replace(valid, L=0.3), x0, strong, 20)
    wrong_mu = theory.verify(solver, replace(valid, mu=0.3), x0, weak, 20)
    for report, assumption, lemma in (
        (wrong_L, "Assumption 4.4: ∇_y g", "Lemma 5.1a"),
        (wrong_mu, "Assumption 4.2", "Lemma 5.1b"),
    ):
        names = " ".join(row.name for row in report.violations)
        assert assumption in names
        assert lemma in names


@pytest.mark.slow
def test_a_rho_that_is_too_small_is_named():
    p = ridge_logistic(features=3, train=16, valid=16, seed=1)
    k = replace(p.constants(), rho=1e-6)
    solver = bl.aid(p.problem, inner=1 / k.L, adjoint=1 / k.L, outer=0.1)
    report = theory.verify(solver, k, jnp.ones(3), jnp.ones(3), 20, data=p.data)
    assert any(row.name.startswith("Assumption 4.5") for row in report.violations)


def wrong_step(solver, spoil):
    """The solver with its step replaced; its kind and the step sizes it declares stay."""
    right = type(solver)

    class Wrong(right):
        def step(self, state, batch=None):
            return spoil(super().step, state, batch)

    return Wrong(**{field.name: getattr(solver, field.name) for field in fields(solver)})


@pytest.mark.slow
def test_a_wrong_algorithm_is_detected():
    p = random_quadratic(3, kappa=3.0)
    k = theory.Constants(p.mu, p.L, p.M, p.rho)
    c = theory.aid(k)
    x0 = jnp.ones(3)
    y0 = p.inner_solution(x0)
    right = bl.aid(p.problem, inner=c.alpha, adjoint=c.eta, outer=c.beta)

    def never_moves_the_adjoint(step, state, batch):
        after, info = step(state, batch)
        return after._replace(v=state.v), info

    def inner_step_uphill(step, state, batch):
        after, info = step(state, batch)
        return after._replace(y=tree.add_scale(state.y, c.alpha, info.inner_gradient)), info

    def forgets_the_cross_term(step, state, batch):
        after, info = step(state, batch)
        f = p.problem.oracles.outer_gradients(state.x, after.y, batch)
        x = tree.add_scale(state.x, -c.beta, f.x)
        return after._replace(x=x), replace(info, hypergradient=f.x)

    expected = {
        never_moves_the_adjoint: "Lemma 5.3b",
        inner_step_uphill: "Lemma 5.1b",
        forgets_the_cross_term: "Lemma 5.5",
    }
    check = lambda solver: theory.verify(solver, k, x0, y0 + 0.1, 30, data=p.data, solution=p.inner_solution)
    for spoil, lemma in expected.items():
        report = check(wrong_step(right, spoil))
        assert any(row.name.startswith(lemma) for row in report.violations), f"{spoil.__name__}: {report}"


@pytest.mark.slow
def test_itd_with_the_wrong_sign_is_detected():
    """Its error is then ‖C(H⁻¹ + αI)∇_y f‖ = m√(4 + (κ + 1)²), above C₅ = M(κ − 1) with M = m√2 at κ = 4."""
    q, k, _ = paper_problem(M=1.0)
    solver = bl.itd(q.problem, inner=1 / q.L, outer=1e-6)

    def adds_instead_of_subtracting(step, state, batch):
        after, info = step(state, batch)
        f = q.problem.oracles.outer_gradients(state.x, after.y, batch)
        return after, replace(info, hypergradient=tree.sub(tree.scale(2.0, f.x), info.hypergradient))

    wrong = wrong_step(solver, adds_instead_of_subtracting)
    x0 = jnp.zeros(2)
    report = theory.verify(wrong, k, x0, q.inner_solution(x0), 5)
    names = " ".join(row.name for row in report.violations)
    assert "Lemma 5.13" in names
    assert "tight: hypergradient error" in names


@pytest.mark.slow
def test_a_hypothesis_that_is_not_met_is_not_a_violation():
    q, valid, _ = paper_problem(M=1.0)
    solver = bl.aid(q.problem, inner=1.5 / q.L, adjoint=1 / q.L, outer=0.5)
    report = theory.verify(solver, valid, jnp.ones(2), jnp.zeros(2), 20)
    row = report["Lemma 5.1a"]
    assert row.verdict is theory.Verdict.NOT_APPLICABLE
    assert "α" in row.reason
    assert "1/L" in row.reason
    assert report["Theorem 5.9"].verdict is theory.Verdict.NOT_APPLICABLE
    with pytest.raises(KeyError, match="beginning of 2 rows"):
        _ = report["Lemma 5.3"]


@pytest.mark.slow
def test_itd_ends_at_the_inherent_error_and_aid_at_zero():
    """‖∇Φ‖² → M²(κ − 1)² for ITD, exactly, and → 0 for AID, as measured by the library itself."""
    kappas = np.array([1.0, 2.0, 5.0, 10.0])

    def ends(kappa):
        q = quadratic(kappa=kappa)
        x0 = jnp.ones(2)
        solvers = (
            bl.itd(q.problem, inner=1 / q.L, outer=1 / q.L),
            bl.aid(q.problem, inner=1 / q.L, adjoint=1 / q.L, outer=1 / q.L),
        )
        runs = (theory.measure(s, x0, q.inner_solution(x0), 600, solution=q.inner_solution) for s in solvers)
        return [(run.gradient[-1], run.estimate_error[-1]) for run in runs]

    (itd, itd_error), (aid, aid_error) = jax.device_get(jax.jit(jax.vmap(ends))(kappas))
    np.testing.assert_allclose(itd**2, 0.1**2 * (kappas - 1) ** 2, atol=1e-8)
    np.testing.assert_allclose(itd_error, 0.1 * (kappas - 1), atol=1e-8)
    assert np.all(aid < 1e-10)
    assert np.all(aid_error < 1e-10)


@pytest.mark.slow
def test_newton_finds_the_inner_solution_from_far_away():
    p = ridge_logistic(features=4, train=20, seed=7)
    x = jnp.asarray([3.0, -2.0, 0.0, 1.0])
    solve = jax.jit(lambda x, y: theory.exact(p.problem, x, y, p.data))
    # Against the derivative of Φ by central differences, each Φ from its own inner solve.
    h, value = 1e-5, lambda x: solve(x, jnp.zeros(4)).value
    numeric = jnp.stack([(value(x + h * e) - value(x - h * e)) / (2 * h) for e in jnp.eye(4)])
    for far in (0.0, 30.0, -500.0):
        answer = solve(x, jnp.full(4, far))
        assert answer.inner_residual < 1e-14
        np.testing.assert_allclose(answer.hypergradient, numeric, atol=1e-9)


@pytest.mark.slow
def test_large_inner_problems_are_solved_by_conjugate_gradients():
    n = 300
    scale = jnp.linspace(1.0, 30.0, n)
    problem = bl.Problem(
        outer=lambda x, y: jnp.sum(y["a"] ** 2) + x["s"] ** 2,
        inner=lambda x, y: 0.5 * jnp.sum(scale * y["a"] ** 2) - x["s"] * jnp.sum(y["a"]),
    )
    answer = jax.jit(lambda x: theory.exact(problem, x, {"a": jnp.ones(n)}))({"s": jnp.asarray(2.0)})
    np.testing.assert_allclose(answer.y["a"], 2.0 / scale, rtol=1e-10)
    np.testing.assert_allclose(answer.hypergradient["s"], 4.0 + 4.0 * jnp.sum(1 / scale**2), rtol=1e-10)
    solver = bl.itd(problem, inner=1 / 30, outer=1e-4)
    k = theory.Constants(1.0, 30.0, 100.0, 0.0)
    report = theory.verify(solver, k, {"s": jnp.asarray(2.0)}, {"a": 2.0 / scale}, 5)
    assert report.ok
    assert "too large" in report["Lemma B.1"].reason
    assert "unchecked" in report.hypotheses["μ"]


@pytest.mark.parametrize(
    "make",
    [
        lambda problem: bl.itd(problem, inner=optax.sgd(1.0), outer=0.1),
        lambda problem: bl.itd(problem, inner=1.0, outer=optax.sgd(0.1)),
        lambda problem: bl.itd(problem, inner=1.0, outer=0.1, inner_steps=3, truncate=1),
        lambda problem: bl.itd(problem, inner=1.0, outer=bl.projected(0.1, lambda x: x)),
        lambda problem: bl.itd(problem, inner=1.0, outer=0.1, inner_steps=2),
        lambda problem: bl.aid(problem, inner=1.0, adjoint=optax.sgd(1.0), outer=0.1),
        lambda problem: bl.aid(problem, inner=1.0, adjoint=bl.adjoints.steps(optax.sgd(1.0), 2), outer=0.1),
        lambda problem: bl.aid(problem, inner=1.0, adjoint=bl.adjoints.cg(3), outer=0.1),
        lambda problem: bl.soba(problem, inner=1.0, adjoint=bl.adjoints.steps(1.0, 2), outer=0.1),
        lambda problem: bl.soba(problem, inner=1.0, adjoint=1.0, outer=optax.sgd(0.1)),
        lambda problem: bl.aid(replace(problem, prox=bl.prox.l1(0.1)), inner=1.0, adjoint=1.0, outer=0.1),
    ],
)
def test_a_solver_of_which_nothing_is_known_is_refused(make):
    """What is claimed follows from what the solver is, not from the numbers it was given."""
    q, k, _ = paper_problem(M=1.0)
    solver, start = make(q.problem), jnp.ones(2)
    with pytest.raises(ValueError, match=f"plain gradient steps, and this {solver.name} is not"):
        theory.verify(solver, k, start, start, 5)
    with pytest.raises(ValueError, match="plain gradient steps"):
        theory.measure(solver, start, start, 5)


@pytest.mark.slow
def test_bad_input_is_refused_before_any_work(as_users_see_it):
    q, k, _ = paper_problem(M=1.0)
    x0 = y0 = jnp.ones(2)
    plain = bl.itd(q.problem, inner=1.0, outer=0.1)
    with pytest.raises(TypeError, match=r"data must be a bl\.Batch"):
        theory.verify(plain, k, x0, y0, 5, data=(1, 2))
    with pytest.raises(ValueError, match="inner data were given"):
        theory.verify(plain, k, x0, y0, 5, data=bl.Batch(inner=jnp.ones(3)))
    with pytest.raises(ValueError, match="scalars"):
        theory.verify(plain, replace(k, mu=np.array([0.1, 0.1])), x0, y0, 5)
    with pytest.raises(TypeError, match="float64"):
        theory.verify(plain, k, jnp.ones(2, jnp.float32), jnp.ones(2, jnp.float32), 5)
    with pytest.raises(ValueError, match="steps must be a whole number"):
        theory.verify(plain, k, x0, y0, 0)
    with pytest.raises(ValueError, match="not finite from iteration"):
        theory.verify(bl.itd(q.problem, inner=1e3, outer=1e3), k, x0, y0, 200)
    with pytest.raises(TypeError, match=r"theory\.Constants"):
        theory.verify(plain, {"mu": 0.1}, x0, y0, 5)
