"""Estimated constants against dense derivatives, and the wall between estimated and declared ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel import theory
from bilevel.problems import quadratic, random_quadratic, ridge_logistic
from bilevel.theory.estimation.local_constants import LocalConstants, inner_spectrum, lanczos
from bilevel.theory.estimation.observations import Observations, Place

pytestmark = pytest.mark.slow


def symmetric(eigenvalues, seed=0):
    Q = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(eigenvalues),) * 2))[0]
    return jnp.asarray(Q * np.asarray(eigenvalues) @ Q.T)


@pytest.mark.parametrize(
    "eigenvalues",
    [
        [-3.0, -1.0, 0.0, 0.5, 2.0, 7.0],
        [1.0] * 6,  # the Krylov space is exhausted at once, six times over
        [2.0, 2.0, 2.0, 5.0, 5.0, 1e-9],
        [0.0] * 6,
        [4.0],
    ],
)
def test_as_many_lanczos_steps_as_dimensions_give_the_whole_spectrum(eigenvalues):
    A = symmetric(eigenvalues)
    start = jnp.asarray(np.random.default_rng(1).normal(size=len(eigenvalues)))
    ritz = lanczos(lambda v: A @ v, start, 50, jax.random.key(0))
    np.testing.assert_allclose(ritz.values, np.sort(eigenvalues), atol=1e-12)
    np.testing.assert_array_equal(ritz.residuals, 0)


def test_ritz_values_stay_inside_the_spectrum_and_reach_its_ends_first():
    rng = np.random.default_rng(0)
    eigenvalues = np.concatenate([rng.uniform(1, 2, 198), [0.1, 3.0]])
    A, start = symmetric(eigenvalues), jnp.asarray(rng.normal(size=200))
    previous = np.array([np.inf, -np.inf])
    for steps in (2, 5, 20):
        ritz, residuals = lanczos(lambda v: A @ v, start, steps, jax.random.key(0))
        assert np.all(np.abs(np.asarray(ritz)[:, None] - eigenvalues).min(1) <= residuals + 1e-12)
        assert ritz[0] >= 0.1 - 1e-12
        assert ritz[-1] <= 3.0 + 1e-12
        assert ritz[0] <= previous[0] + 1e-12
        assert ritz[-1] >= previous[1] - 1e-12
        previous = np.array([ritz[0], ritz[-1]])
    np.testing.assert_allclose(previous, [0.1, 3.0], rtol=1e-6)


LOGISTIC = ridge_logistic(features=3, train=16, valid=16, seed=1)  # shared, so that it is compiled for once


def dense(problem, x, y, data):
    """Derivatives of g and f in z = (x, y) by plain nested autodiff."""
    m = len(x)
    g, f = (lambda z, h=h: h(z[:m], z[m:], data) for h in (problem.g, problem.f))
    both = lambda z: (jax.hessian(g)(z), jax.jacfwd(jax.hessian(g))(z), jax.grad(f)(z), jax.hessian(f)(z))
    return jax.device_get(jax.jit(both)(jnp.concatenate([x, y])))


def test_estimates_at_a_point_are_the_dense_quantities():
    p, x, y = LOGISTIC, jnp.asarray([1.0, -1.0, 0.5]), jnp.asarray([0.3, -2.0, 1.0])
    estimated = theory.estimate(p.problem, x, y, p.data)
    g2, g3, f1, f2 = dense(p.problem, x, y, p.data)
    norm = lambda A: np.linalg.norm(A, 2)
    assert estimated.mu_at_most == pytest.approx(np.linalg.eigvalsh(g2[3:, 3:])[0], rel=1e-10)
    assert estimated.L_yy_at_least == pytest.approx(norm(g2[3:, 3:]), rel=1e-10)
    assert estimated.L_at_least == pytest.approx(max(norm(g2[:, 3:]), norm(f2)), rel=1e-10)
    assert estimated.M_at_least == pytest.approx(np.linalg.norm(f1), rel=1e-12)
    assert estimated.M_y_at_least == pytest.approx(np.linalg.norm(f1[3:]), rel=1e-12)

    in_x, in_y = slice(3), slice(3, 6)
    assert estimated.L_xy_at_least == pytest.approx(norm(g2[in_x, in_y]), rel=1e-10)
    for name, rows, columns in (("xx", in_x, in_x), ("xy", in_x, in_y), ("yy", in_y, in_y)):
        found = getattr(estimated, f"f_{name}_at_least")
        assert found == pytest.approx(norm(f2[rows, columns]), rel=1e-10, abs=1e-12)

    # ρ: at least what random directions show, at most the norm of the unfolded tensor.
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(300, 6))

    def between(found, blocks, along):
        d = directions[:, along] / np.linalg.norm(directions[:, along], axis=1, keepdims=True)
        shown = max(norm(block[:, :, along] @ one) for block in blocks for one in d)
        most = max(norm(block[:, :, along].reshape(9, -1)) for block in blocks)
        assert shown * (1 - 1e-12) <= found <= most * (1 + 1e-12)

    hessian, cross = g3[in_y, in_y], g3[in_x, in_y]
    between(estimated.rho_at_least, (hessian, cross), slice(6))
    between(estimated.rho_yyy_at_least, (hessian,), in_y)
    between(estimated.rho_xyy_at_least, (hessian,), in_x)
    between(estimated.rho_xyy_at_least, (cross,), in_y)
    between(estimated.rho_xxy_at_least, (cross,), in_x)


def test_estimates_never_contradict_valid_declared_constants():
    """μ from above; L, M and ρ from below; and a further point can only widen what is known."""
    p = LOGISTIC
    k = p.constants(x_radius=10.0, y_radius=5.0)
    rng = np.random.default_rng(0)
    points = [tuple(jnp.asarray(a) for a in rng.normal(size=(2, 3))) for _ in range(6)]
    few = theory.estimate(p.problem, *points[0], p.data, points=points[1:3])
    many = theory.estimate(p.problem, *points[0], p.data, points=points[1:])
    assert many.points == 6
    assert k.mu <= many.mu_at_most <= few.mu_at_most
    assert few.L_at_least <= many.L_at_least <= k.L
    assert few.M_at_least <= many.M_at_least <= k.M
    assert many.rho_at_least <= k.rho


def test_a_random_quadratic_shows_the_constants_it_was_made_with():
    """Also the test that the prescribed μ and L are attained, and ρ = 0."""
    p = random_quadratic(4, mu=0.2, kappa=7.0, M=2.0, m=2, n=5)
    x, y = jnp.ones(2), jnp.ones(5)
    estimated = theory.estimate(p.problem, x, y, p.data)
    g2, _, f1, f2 = dense(p.problem, x, y, p.data)
    assert estimated.mu_at_most == pytest.approx(0.2, rel=1e-10)
    assert estimated.L_yy_at_least == pytest.approx(1.4, rel=1e-10)
    assert np.linalg.norm(g2[:2, 2:], 2) == pytest.approx(1.4, rel=1e-10)
    assert np.linalg.norm(f2, 2) <= 1.4
    assert np.linalg.norm(f1) <= 2.0
    assert estimated.rho_at_least < 1e-12
    far = jax.grad(lambda z: p.problem.f(z[:2], z[2:], p.data))(jnp.full(7, 1e6))
    assert np.linalg.norm(far) == pytest.approx(2.0, rel=1e-3)  # M is attained far away


def test_a_small_end_of_the_spectrum_is_resolved_or_its_residual_reported():
    """200 unknowns: exactly, where 4 steps show far too much. 300: with up to 32 steps, and how far that got."""

    def look(n, low):
        eigenvalues = jnp.concatenate([jnp.asarray([low, 1.0]), jnp.linspace(0.01, 1.0, n - 2)])
        problem = bl.Problem(
            outer=lambda x, y: jnp.sum(y**2), inner=lambda x, y: 0.5 * jnp.sum(eigenvalues * (y - x) ** 2)
        )
        observations = Observations(problem, None, 4, jax.random.key(0))
        x, y = jnp.zeros(()), jnp.zeros(n)
        ends = jax.jit(lambda: inner_spectrum(problem, 4, x, y, None, jax.random.key(1)))()
        observations.places.append(Place(x, y))
        rest = dict.fromkeys(LocalConstants._fields[2:], 1.0)
        observations.found.append(LocalConstants(ends.values[0], ends.residuals[0], **rest))
        return float(ends.values[0]), observations.estimated

    first, fine = look(200, 1e-4)
    assert first == fine.mu_at_most == pytest.approx(1e-4, rel=1e-9)
    assert fine.mu_residual == 0
    first, coarse = look(300, 1e-4)
    assert 1e-4 * (1 - 1e-9) <= coarse.mu_at_most < first / 2
    assert coarse.mu_residual > 0.1 * coarse.mu_at_most  # 32 steps are not enough here, and it says so
    assert "±" in str(coarse)


def test_trees_single_precision_and_seeds():
    problem = bl.Problem(
        outer=lambda x, y: jnp.sum(y["a"]) ** 2 + jnp.sum(x["s"] ** 2),
        inner=lambda x, y: 0.5 * jnp.sum(y["a"] ** 2) + y["b"] ** 2 - x["s"][0] * y["b"],
    )
    x, y = (
        {"s": jnp.ones(2, jnp.float32)},
        {"a": jnp.ones((2, 2), jnp.float32), "b": jnp.ones((), jnp.float32)},
    )
    first, again = (theory.estimate(problem, x, y) for _ in range(2))
    assert first == again
    assert first.mu_at_most == pytest.approx(1.0, rel=1e-5)
    assert first.L_yy_at_least == pytest.approx(2.0, rel=1e-5)
    assert first.L_at_least == pytest.approx(8.0, rel=1e-5)  # (Σa)² has curvature 2·4


def test_estimated_constants_are_not_taken_for_declared_ones(as_users_see_it):
    p, x0, y0 = LOGISTIC, jnp.ones(3), jnp.zeros(3)
    estimated = theory.estimate(p.problem, x0, y0, p.data)
    assert not isinstance(estimated, theory.Constants)
    for certificate in (
        theory.aid,
        theory.itd,
        theory.sharp.aid,
        theory.tight.itd,
        theory.prior.aid,
        theory.lower_bound,
        theory.two_sequence_contraction,
    ):
        with pytest.raises(TypeError, match=r"not Estimated.*assume\(\)"):
            certificate(estimated)
    with pytest.raises(TypeError, match=r"not Estimated.*assume\(\)"):
        theory.star.aid(estimated)
    for name in (
        "mu",
        "L",
        "M",
        "rho",
        "L_yy",
        "f_xy",
        "rho_yyy",
        "kappa",
        "L_Phi",
        "L_Phi_blockwise",
        "blocks",
    ):
        assert not hasattr(estimated, name)
    with pytest.raises(AttributeError, match=r"only estimated from 1 points.*\.mu_at_most"):
        _ = estimated.mu
    with pytest.raises(AttributeError, match="no attribute 'nu'"):
        _ = estimated.nu
    solver = bl.aid(p.problem, inner=1 / p.L, adjoint=1 / p.L, outer=1e-3)
    with pytest.raises(TypeError, match=r"estimated, not declared.*assume\(\)"):
        theory.verify(solver, estimated, x0, y0, 5, p.data)

    assumed = estimated.assume(M=1.0)
    assert isinstance(assumed, theory.Constants)
    assert (assumed.M, assumed.mu) == (1.0, estimated.mu_at_most)
    report = theory.verify(solver, assumed, x0, y0, 5, p.data)
    assert "declared" in report.hypotheses["M"]
    for symbol in ("μ", "L", "ρ"):
        assert "estimated" in report.hypotheses[symbol]
    with pytest.raises(TypeError, match="'kappa' is not one of the constants"):
        estimated.assume(kappa=3.0)

    blocks = estimated.assume_blocks(mu=0.05, M_y=2.0)
    assert isinstance(blocks, theory.Blocks)
    assert (blocks.mu, blocks.M_y, blocks.f_yy) == (0.05, 2.0, estimated.f_yy_at_least)
    assert blocks.estimated == {"L_yy", "L_xy", "f_xx", "f_xy", "f_yy", "rho_xxy", "rho_xyy", "rho_yyy"}
    with pytest.raises(TypeError, match="'M' is not one of the constants mu, L_yy"):
        estimated.assume_blocks(M=1.0)
    with pytest.raises(ValueError, match="mu"):
        estimated.assume_blocks(mu=-1.0)


def test_negative_curvature_is_reported_and_not_assumed_away():
    problem = bl.Problem(outer=lambda x, y: jnp.sum(x * y), inner=lambda x, y: jnp.sum(x * y - jnp.cos(y)))
    estimated = theory.estimate(problem, jnp.ones(3), jnp.asarray([0.0, 0.0, np.pi]))
    assert estimated.mu_at_most == pytest.approx(-1.0)
    with pytest.raises(ValueError, match=r"curvature -1 in y.*not strongly convex.*ridge"):
        estimated.assume()
    assert estimated.assume(mu=0.1).estimated == {"L", "M", "rho"}


def test_bad_points_are_refused():
    q = quadratic()
    with pytest.raises(TypeError, match=r"pairs \(x, y\)"):
        theory.estimate(q.problem, jnp.ones(2), jnp.ones(2), points=[jnp.ones(2)])
    with pytest.raises(ValueError, match="NaN"):
        theory.estimate(q.problem, jnp.ones(2), jnp.ones(2), points=[(jnp.ones(2), jnp.full(2, jnp.nan))])
    with pytest.raises(ValueError, match="iterations"):
        theory.estimate(q.problem, jnp.ones(2), jnp.ones(2), iterations=0)
    flat = bl.Problem(outer=lambda x, y: jnp.sum(jnp.sqrt(y)), inner=lambda x, y: jnp.sum((y - x) ** 2))
    with pytest.raises(ValueError, match="not finite"):
        theory.estimate(flat, jnp.ones(2), jnp.zeros(2))
