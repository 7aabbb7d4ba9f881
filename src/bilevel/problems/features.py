"""Feature learning: a linear feature layer x for validation data, and a ridge head y for training data.

    g(x, y) = (1/2n) ‖A x y − b‖² + (μ/2) ‖y‖²        f(x, y) = (1/2n') ‖A' x y − b'‖²

A is n × d, x is d × h, y has h entries and h > d. The head's Hessian is xᵀSx + μI with S = AᵀA/n. Its
smallest eigenvalue is always the ridge μ, because xᵀSx has rank at most d < h. Without the ridge every x of
full rank would give the same predictor, and Φ would not depend on x.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bilevel.batch import Batch
from bilevel.checks import check_array, check_positive
from bilevel.data.examples import Examples
from bilevel.problem import Problem
from bilevel.problems.instance import STATIONARITY, Instance, checked
from bilevel.types import Scalar

Layer = Float[Array, "d h"]
Head = Float[Array, " h"]


class Training(NamedTuple):
    """Data of the inner level. They include the ridge, so that one program serves all ridges."""

    examples: Examples
    mu: Any


def f(x: Layer, y: Head, batch: Examples) -> Scalar:
    return 0.5 * jnp.mean((batch.inputs @ (x @ y) - batch.targets) ** 2)


def g(x: Layer, y: Head, batch: Training) -> Scalar:
    return f(x, y, batch.examples) + 0.5 * batch.mu * jnp.sum(y * y)


PROBLEM = Problem(outer=f, inner=g)  # one for all instances, which differ only in their data


def head(x: Layer, train: Training) -> Head:
    """Return y*(x) = (xᵀSx + μI)⁻¹xᵀs = xᵀPs with s = Aᵀb/n and P = (S xxᵀ + μI)⁻¹, which is only d × d."""
    S, s = _moments(train.examples)
    return x.T @ (_inverse(x, S, train.mu) @ s)


def value(x: Layer, data: Batch) -> Scalar:
    """Return Φ(x) = f(x, y*(x))."""
    return f(x, head(x, data.inner), data.outer)


def hypergradient(x: Layer, data: Batch) -> Layer:
    """Return ∇Φ(x) = (q − Sxv)yᵀ − (Sxy − s)vᵀ, with y = xᵀPs, v = xᵀPq and q = S'xy − s' (validation)."""
    (S, s), (S_valid, s_valid) = _moments(data.inner.examples), _moments(data.outer)
    P = _inverse(x, S, data.inner.mu)
    y = x.T @ (P @ s)
    q = S_valid @ (x @ y) - s_valid
    v = x.T @ (P @ q)
    return jnp.outer(q - S @ (x @ v), y) - jnp.outer(S @ (x @ y) - s, v)


def curvatures(x: Layer, train: Training) -> Float[Array, " d"]:
    """Return the d ascending eigenvalues of the head's Hessian that belong to features; all others are μ."""
    S, _ = _moments(train.examples)
    root = jnp.linalg.cholesky(S)
    return train.mu + jnp.linalg.eigvalsh(root.T @ (x @ x.T) @ root)


def feature_learning(train: Examples, valid: Examples, mu: Any, x0: Any) -> Instance:
    """Return the instance that starts from features `x0` with the best head for them."""
    check_positive(mu, "ridge mu", traced=False)
    check_array(x0, "x0", 2)
    for name, examples in checked(train, valid, "targets"):
        if examples.inputs.shape[1] != x0.shape[0]:
            raise ValueError(
                f"x0 has {x0.shape[0]} rows, but {name}.inputs have {examples.inputs.shape[1]} columns: give x0 one "
                "row for each of them"
            )
    data = Batch(inner=Training(train, mu), outer=valid)
    return Instance(
        name="feature_learning",
        problem=PROBLEM,
        x0=x0,
        y0=_fitted(x0, data.inner),
        data=data,
        L=float(_spectrum(x0, data.inner)[-1]),  # at x0; it moves with x
        measure=lambda x: _stationarity(x, data),
        label=STATIONARITY,
    )


_fitted, _spectrum = jax.jit(head), jax.jit(curvatures)  # many instances are made at a time
_stationarity = jax.jit(lambda x, data: jnp.linalg.norm(hypergradient(x, data)))


def compress(examples: Examples) -> Examples:
    """Return d rows with the same gradients as all n: A = QR turns ‖Az − b‖² into ‖Rz − Qᵀb‖² + constant."""
    inputs, targets = np.asarray(examples.inputs), np.asarray(examples.targets)
    Q, R = np.linalg.qr(inputs)
    weight = np.sqrt(len(R) / len(inputs))  # a mean over d rows instead of n
    return Examples(weight * R, weight * (Q.T @ targets), examples.source)


def _inverse(x: jax.Array, S: jax.Array, mu: Any) -> jax.Array:
    return jnp.linalg.inv(S @ (x @ x.T) + mu * jnp.eye(len(S), dtype=S.dtype))


def _moments(examples: Examples) -> tuple[jax.Array, jax.Array]:
    A, b = jnp.asarray(examples.inputs), jnp.asarray(examples.targets)
    return A.T @ A / len(b), A.T @ b / len(b)
