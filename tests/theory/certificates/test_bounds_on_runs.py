"""No bound is ever violated: random problems with valid constants, run in plain NumPy."""

from functools import partial

import numpy as np
import pytest
from theory_problems import LogCosh, Quadratics, norm, simulate, start, with_valid_M

from bilevel import theory

STEPS = 150
B = 80


def problems(family, seed):
    rng = np.random.default_rng(seed)
    problem = family.random(rng, B)
    x, y = start(problem, rng, B)
    fx, fy = problem.grad_f(x, problem.y_star(x))
    return problem, x, y, 1.1 * norm(fy), 1.1 * np.hypot(norm(fx), norm(fy)), rng


def running_mean(G):
    return np.cumsum(G, axis=0) / np.arange(1, len(G) + 1)[:, None]


HORIZONS = np.arange(1, STEPS + 1)[:, None]
families = pytest.mark.parametrize("family", [Quadratics, LogCosh])


@pytest.mark.slow
@families
@pytest.mark.parametrize("loose_rho", [0.0, 0.5])
def test_aid_bounds_hold_at_every_horizon(family, loose_rho):
    """Theorem 5.9, the earlier bound and both exact-gain bounds, from measured initial errors.

    Any rho above the true one is valid as well: `loose_rho` is added to it.
    """
    problem, x, y, M_y, _, _ = problems(family, 11)
    gap = problem.gap(x)

    def paper(M):
        certificate = theory.aid(theory.Constants(problem.mu, problem.L, M, problem.rho + loose_rho))
        run = simulate(problem, x, y, certificate.alpha, certificate.beta, STEPS, certificate.eta)
        return run, certificate.bound_from(HORIZONS, gap, (run.a[0], run.b[0]))

    def earlier(M):
        certificate = theory.prior.aid(theory.Constants(problem.mu, problem.L, M, problem.rho + loose_rho))
        run = simulate(problem, x, y, certificate.alpha, certificate.beta, STEPS, certificate.eta)
        return run, certificate.bound_from(HORIZONS, gap, (run.a[0], run.b_star[0]))

    def weighted(M):
        k = theory.Constants(problem.mu, problem.L, M, problem.rho + loose_rho)
        certificate = theory.recursions.weighted_squares(k)
        run = simulate(problem, x, y, certificate.alpha, certificate.beta, STEPS, certificate.eta)
        return run, certificate.bound_from(HORIZONS, gap, (run.a[0], run.b_star[0]))

    def exact(analysis):
        def bound(M):
            certificate = analysis.aid(theory.Constants(problem.mu, problem.L, M, problem.rho + loose_rho))
            first = simulate(problem, x, y, certificate.alpha, 0.0, 1, certificate.eta)
            state = lambda run: (run.a[0], run.b_star[0] if analysis is theory.star else run.b[0])
            beta = certificate.best_beta_from(STEPS, gap, state(first))
            run = simulate(problem, x, y, certificate.alpha, beta, STEPS, certificate.eta)
            return run, certificate.bound_from(HORIZONS, gap, state(run), beta)

        return bound

    for bound in (paper, earlier, weighted, exact(theory.sharp), exact(theory.tight), exact(theory.star)):
        _, run, certified = with_valid_M(bound, M_y, whole=False)
        assert np.all(running_mean(run.G) <= certified * (1 + 1e-9))


@families
@pytest.mark.parametrize("analysis", [theory.sharp, theory.tight, theory.star])
def test_aid_error_systems_hold_step_by_step(family, analysis):
    """The recursion behind the gain, not only its summary, for outer steps all over the admissible range."""
    problem, x, y, M_y, _, rng = problems(family, 23)
    share = rng.uniform(0.01, 1, B)

    def run_for(M):
        certificate = analysis.aid(theory.Constants(problem.mu, problem.L, M, problem.rho))
        beta = share * certificate.beta_max
        return simulate(problem, x, y, certificate.alpha, beta, STEPS, certificate.eta), (certificate, beta)

    _, run, (certificate, beta) = with_valid_M(run_for, M_y, whole=False)
    system, adjoint = certificate.system, run.b_star if analysis is theory.star else run.b
    w = np.stack(
        [weight * error for weight, error in zip(certificate.weights, (run.a, adjoint), strict=True)]
    )
    e = system.c0 * w[0] + w[1]
    drive = beta * (run.h if analysis is theory.star else np.sqrt(run.G) + e)[:-1]
    tolerance = 1e-9 * (1 + w.sum(axis=0)[1:])
    assert np.all(run.e <= e + 1e-9)
    assert np.all(w[0, 1:] <= system.r0 * w[0, :-1] + system.q0 * drive + tolerance)
    assert np.all(w[1, 1:] <= system.p * w[0, :-1] + system.r1 * w[1, :-1] + system.q1 * drive + tolerance)


@pytest.mark.slow
@families
@pytest.mark.parametrize("loose_rho", [0.0, 0.5])
def test_itd_bounds_hold_at_every_horizon(family, loose_rho):
    """Theorem 5.17 and its kin. All but `tight` rest on Lemma 5.12: M bounds all of ∇f, y₀ lies within R_y."""
    problem, x, y, M_y, M_all, _ = problems(family, 37)
    gap = problem.gap(x)
    constants_for = lambda M: theory.Constants(problem.mu, problem.L, M, problem.rho + loose_rho)
    distance = norm(y - problem.y_star(x))

    def radius(constants):
        return np.maximum(distance, theory.itd(constants).R_y_min)

    def printed(make):
        def bound(M):
            constants = constants_for(M)
            certificate = make(constants, radius(constants))
            run = simulate(problem, x, y, certificate.alpha, certificate.beta, STEPS)
            assert np.all(run.s <= certificate.R_y * (1 + 1e-12)) or np.any(run.M > M)
            return run, certificate.bound_from(HORIZONS, gap, (run.a[0], 0.0))

        return bound

    def sharp(M):
        constants = constants_for(M)
        certificate = theory.sharp.itd(constants, radius(constants))
        beta = certificate.best_beta(STEPS, gap, distance)
        run = simulate(problem, x, y, certificate.alpha, beta, STEPS)
        return run, certificate.bound_from(HORIZONS, gap, (run.a[0], 0.0), beta)

    def free(analysis, M):
        certificate = analysis.itd(constants_for(M))
        beta = certificate.best_beta(STEPS, gap, distance)
        run = simulate(problem, x, y, certificate.alpha, beta, STEPS)
        weight, system = certificate.weights[0], certificate.system
        assert np.all(run.e <= weight * run.s + certificate.C5 + 1e-9) or np.any(run.M_y > M)
        drive = beta * run.h[:-1]
        right = system.r0 * weight * run.s[:-1] + system.q0 * drive
        assert np.all(weight * run.s[1:] <= right * (1 + 1e-9) + 1e-9) or np.any(run.M_y > M)
        return run, certificate.bound_from(HORIZONS, gap, (run.s[0], 0.0), beta)

    for bound, M, whole in (
        (printed(theory.itd), M_all, True),
        (printed(theory.prior.itd), M_all, True),
        (sharp, M_all, True),
        (partial(free, theory.tight), M_y, False),
        (partial(free, theory.star), M_y, False),
    ):
        _, run, certified = with_valid_M(bound, M, whole)
        assert np.all(running_mean(run.G) <= certified * (1 + 1e-9))


def test_an_M_that_is_too_small_breaks_the_certificate():
    """The checks above can fail: on the worst-case instance half the true M predicts a quarter of the true limit."""
    kappa, M = 5.0, 0.4
    instance = theory.lower_bound(theory.Constants(1.0, kappa, M, 0.0)).instance()
    limit = norm(instance.hypergradient(instance.itd_limit(1 / kappa))) ** 2
    honest, wrong = (theory.tight.itd(theory.Constants(1.0, kappa, m, 0.0)) for m in (M, M / 2))
    assert wrong.inherent_error == pytest.approx(limit / 4, rel=1e-12)
    assert honest.inherent_error == pytest.approx(limit, rel=1e-12)
