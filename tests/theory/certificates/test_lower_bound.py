"""The lower bound for ITD: its instances, run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bilevel import theory
from bilevel.theory import Constants


def run_itd(instance, x, y, alpha, beta, steps):
    """Algorithm 2 by automatic differentiation of the instance's own f and g."""

    def step(carry, _):
        x, y = carry
        inner = lambda x: y - alpha * jax.grad(instance.g, argnums=1)(x, y)
        through = lambda x: instance.f(x, inner(x))
        return (x - beta * jax.grad(through)(x), inner(x)), None

    (x, y), _ = jax.lax.scan(step, (x, y), None, length=steps)
    return x, y


def phi_gradient(instance, x):
    return jax.grad(lambda x: instance.f(x, instance.y_star(x)))(x)


@pytest.mark.slow
@pytest.mark.parametrize("kappa", [1.0, 2.0, 10.0])
@pytest.mark.parametrize("length", [1.0, 0.5, "longest"])
def test_itd_converges_to_the_lower_bound(kappa, length):
    k = Constants(0.1, 0.1 * kappa, 0.1, 0.1)
    length = 2 * kappa / (kappa + 1) if length == "longest" else length
    alpha = length / k.L
    lower = theory.lower_bound(k, alpha)
    instance = lower.instance()
    x, _ = run_itd(instance, jnp.ones(2), jnp.ones(2), alpha, 0.5 / k.L, 4000)
    np.testing.assert_allclose(x, instance.itd_limit(alpha), rtol=1e-9, atol=1e-12)
    limit = float(jnp.sum(phi_gradient(instance, x) ** 2))
    assert limit == pytest.approx(float(lower.value), rel=1e-8, abs=1e-12)
    assert limit == pytest.approx((k.M * (kappa - length)) ** 2, rel=1e-8, abs=1e-12)
    np.testing.assert_allclose(phi_gradient(instance, x), instance.hypergradient(np.asarray(x)), atol=1e-12)


@pytest.mark.slow
def test_instance_has_the_constants_it_claims():
    k = Constants(0.1, 0.5, 0.3, 0.0)
    instance = theory.lower_bound(k).instance()
    z = jnp.array([0.3, -0.2]), jnp.array([0.1, 0.7])
    spectrum = np.linalg.eigvalsh(jax.hessian(instance.g, argnums=1)(*z))
    np.testing.assert_allclose(spectrum, [k.mu, k.L])
    cross = jax.jacobian(jax.grad(instance.g, argnums=1), argnums=0)(*z)
    assert np.linalg.norm(cross, 2) == pytest.approx(k.L)
    assert np.linalg.norm(jax.grad(instance.f, argnums=1)(*z)) == pytest.approx(k.M)
    np.testing.assert_allclose(jax.grad(instance.g, argnums=1)(z[0], instance.y_star(z[0])), 0, atol=1e-15)
    numpy_z = tuple(np.asarray(part) for part in z)
    assert instance.f(*numpy_z) == pytest.approx(float(instance.f(*z)))
    assert instance.g(*numpy_z) == pytest.approx(float(instance.g(*z)))


@pytest.mark.slow
@pytest.mark.parametrize("kappa", [1.5, 4.0, 20.0])
def test_strict_instance_satisfies_the_assumptions_and_attains_its_bound(kappa):
    k = Constants(0.2, 0.2 * kappa, 0.7, 0.0)
    lower = theory.lower_bound(k)
    instance = lower.strict_instance()
    hessian_g = np.array([[-k.mu, -instance.coupling], [-instance.coupling, k.mu]])
    assert np.linalg.norm(hessian_g, 2) == pytest.approx(k.L)
    z = jnp.array([0.3]), jnp.array([-0.4])
    auto = jax.hessian(lambda z: instance.g(z[0], z[1]))(jnp.array([0.3, -0.4]))
    np.testing.assert_allclose(auto, hessian_g)
    # f is M-Lipschitz with an L-Lipschitz gradient everywhere, and Φ rises in both directions far out.
    span = 10 * instance.Y + 10
    grid = jnp.linspace(-span, span, 40001)
    f_x = jax.vmap(lambda x: jax.grad(instance.f, argnums=0)(x, z[1][0]))(grid)
    f_y = jax.vmap(lambda y: jax.grad(instance.f, argnums=1)(z[0][0], y))(grid)
    worst = float(jnp.sqrt(jnp.max(f_x**2) + jnp.max(f_y**2)))  # f is separable
    assert worst <= k.M * (1 + 1e-9)
    spacing = float(grid[1] - grid[0])
    assert float(jnp.abs(jnp.diff(f_x)).max()) <= k.L * spacing * (1 + 1e-6)
    assert float(jnp.abs(jnp.diff(f_y)).max()) <= k.L * spacing * (1 + 1e-6)
    slope = jax.vmap(lambda x: phi_gradient(instance, x))
    assert float(slope(-jnp.array([span]))[0]) < 0 < float(slope(jnp.array([span]))[0])
    # And ITD from zero stops where the certificate says it stops, never leaving the linear part of ψ.
    x, y = run_itd(instance, jnp.array(0.0), jnp.array(0.0), 1 / k.L, 0.5 / k.L, 2000)
    assert float(x) == pytest.approx(instance.itd_limit(), rel=1e-9)
    assert float(y) > -instance.Y
    assert float(phi_gradient(instance, x)) ** 2 == pytest.approx(float(lower.strict), rel=1e-8)
    assert lower.strict < lower.value


def test_upper_and_lower_bound_meet():
    """`tight.itd` with ρ > 0 still has exactly the lower bound as its inherent error."""
    k = Constants(0.1, np.geomspace(0.1, 10, 50), 0.3, 0.9)
    np.testing.assert_allclose(theory.tight.itd(k).inherent_error, theory.lower_bound(k).value, rtol=1e-12)
    star = theory.star.itd(k)
    np.testing.assert_allclose(star.inherent_error, theory.lower_bound(k, star.alpha).value, rtol=1e-12)
    assert np.all(theory.itd(k).inherent_error >= theory.lower_bound(k).value)


def test_tight_bound_is_attained_by_a_long_run():
    """K = 10⁵ on the worst instance: the measured mean is within a few per cent of the certified bound."""
    k = Constants(0.5, 1.0, 0.4, 0.0)
    certificate, instance = theory.tight.itd(k), theory.lower_bound(k).instance()
    x0 = jnp.asarray(instance.itd_limit(1.0))
    slope = instance.hypergradient(np.asarray(x0))
    gap = float(0.5 * slope @ np.linalg.solve(instance.Z, slope))
    steps = 10**5
    beta = float(certificate.best_beta(steps, gap, slack=0.0))
    x, _ = run_itd(instance, x0, jnp.asarray(instance.y_star(x0)), 1.0, beta, steps)
    measured = float(jnp.sum(phi_gradient(instance, x) ** 2))  # x₀ is a fixed point, so the mean equals this
    bound = float(certificate.bound(steps, gap, beta=beta))
    assert 0.9 * bound < measured <= bound
