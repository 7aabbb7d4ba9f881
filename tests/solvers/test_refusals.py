"""What is not what a method asks for is refused in its own words, before any work; and what cannot be solved is left."""

import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.oracles import Linearised

PROBLEM = bl.Problem(outer=lambda x, y: jnp.sum((y - 1) ** 2), inner=lambda x, y: jnp.sum((y - x) ** 2))


def _minres(H, b, dtype, **options):
    H, b = jnp.asarray(H, dtype), jnp.asarray(b, dtype)
    inner = Linearised(jnp.zeros_like(b), lambda v: H @ v, lambda v: v, None)
    v, _, said = bl.adjoints.minres(1e-6, **options).solve(inner, b, jnp.zeros_like(b), ())
    return np.asarray(v, float), float(said["adjoint_residual"]), int(said["adjoint_steps"])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows, columns", [(20, 60), (3, 5)])
def test_minres_ends_at_least_squares_where_the_hessian_is_singular(rows, columns, dtype):
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((rows, columns)), rng.standard_normal(columns)
    H = A.T @ A / rows
    best = np.linalg.norm(b - H @ np.linalg.lstsq(H, b, rcond=1e-10)[0])
    v, left, steps = _minres(H, b, dtype)
    assert best * (1 - 1e-5) <= left <= best * (1 + 1e-5)
    assert np.linalg.norm(v) < 1e3 * np.linalg.norm(b)
    assert steps < 3 * rows


@pytest.mark.parametrize("preconditioner", [None, bl.adjoints.nystrom(5, 1e-3)])
def test_minres_still_solves_what_is_ill_conditioned_and_indefinite(preconditioner):
    rng = np.random.default_rng(1)
    Q, _ = np.linalg.qr(rng.standard_normal((40, 40)))
    H = (Q * np.geomspace(1e-6, 1, 40) * rng.choice([-1, 1], 40)) @ Q.T
    b = rng.standard_normal(40)
    _, left, _ = _minres(H, b, "float64", max_steps=2000, preconditioner=preconditioner)
    assert left <= 1.01e-6 * np.linalg.norm(b)


def test_minres_never_makes_the_residual_grow():
    """In float32 this solution is out of reach; no step of it may be for the worse."""
    rng = np.random.default_rng(2)
    Q, _ = np.linalg.qr(rng.standard_normal((40, 40)))
    H = (Q * np.geomspace(1e-7, 1, 40)) @ Q.T
    b = rng.standard_normal(40)
    _, left, _ = _minres(H, b, "float32")
    assert left <= np.linalg.norm(b) * (1 + 1e-5)
