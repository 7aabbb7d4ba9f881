"""Random problems with constants that hold everywhere and are attained, for tests of certificates.

    g(x, y) = ½ yᵀHy + xᵀBy + cᵀy      spectrum of H from μ to L, singular values of B up to L
    f(x, y) = Σ_i w_i h(u_iᵀ(x, y) − b_i)      h(t) = δ²(√(1 + t²/δ²) − 1), rows u_i orthonormal, w_i ≤ L

h is quadratic near zero and linear far away, |h'| < δ and 0 < h'' ≤ 1, so ∇f is L-Lipschitz and bounded by
M = δ‖w‖ on the whole space, which no quadratic f could be. g is quadratic: ρ = 0. f ≥ 0, and Φ is convex.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bilevel.batch import Batch
from bilevel.checks import check_count, check_dtype, check_generator, check_positive
from bilevel.problem import Problem
from bilevel.problems.instance import STATIONARITY, Instance, stationarity
from bilevel.problems.two_dimensional import check_kappa


class Inner(NamedTuple):
    H: Any
    B: Any
    c: Any


class Outer(NamedTuple):
    U: Any  # rows u_i
    w: Any
    b: Any
    delta: Any


def g(x: Float[Array, " m"], y: Float[Array, " n"], batch: Inner) -> Float[Array, ""]:
    return 0.5 * y @ batch.H @ y + x @ batch.B @ y + batch.c @ y


def f(x: Float[Array, " m"], y: Float[Array, " n"], batch: Outer) -> Float[Array, ""]:
    t = (batch.U @ jnp.concatenate([x, y]) - batch.b) / batch.delta
    # √(1 + t²) − 1, written so that it does not cancel for small t.
    return batch.delta**2 * jnp.sum(batch.w * t * t / (jnp.sqrt(1 + t * t) + 1))


# One problem for all instances, which differ only in their data: one compiled program serves all.
PROBLEM = Problem(outer=f, inner=g)


@dataclass(frozen=True, eq=False)
class RandomQuadratic:
    """Random quadratic: its data, its constants, and its inner solution in closed form."""

    inner: Inner
    outer: Outer
    mu: float
    L: float
    M: float
    rho: float = 0.0

    @property
    def problem(self) -> Problem:
        return PROBLEM

    @property
    def data(self) -> Batch:
        return Batch(inner=self.inner, outer=self.outer)

    def instance(self, x0: Any = None, y0: Any = None) -> Instance:
        """Return the instance that starts from `x0` and `y0`, zeros if left out."""
        m, n = self.inner.B.shape
        blank = lambda size: jnp.zeros(size, self.inner.B.dtype)
        x0, y0 = blank(m) if x0 is None else x0, blank(n) if y0 is None else y0
        measure = stationarity(PROBLEM, blank(n), self.data)
        return Instance("random_quadratic", PROBLEM, x0, y0, self.data, self.L, measure, STATIONARITY)

    def inner_solution(self, x: Float[Array, " m"]) -> Float[Array, " n"]:
        """Return y*(x) = −H⁻¹(Bᵀx + c)."""
        return -jnp.linalg.solve(self.inner.H, self.inner.B.T @ x + self.inner.c)


def random_quadratic(
    seed: int, mu: float = 0.5, kappa: float = 4.0, M: float = 1.0, m: int = 3, n: int = 3, dtype: Any = float
) -> RandomQuadratic:
    """Return an instance with the spectrum of H in [μ, κμ], both ends attained (only the upper if n = 1)."""
    check_positive(mu, "mu", traced=False)
    check_positive(M, "M", traced=False)
    check_kappa(kappa, traced=False)
    for name, size in (("m", m), ("n", n)):
        check_count(size, name)
    check_dtype(dtype)
    rng = check_generator(seed)
    L = float(kappa) * float(mu)
    if not np.sqrt(float(jnp.finfo(dtype).max)) > L:
        raise ValueError(
            f"L = kappa·mu = {L:g} is beyond what {jnp.dtype(dtype)} can be squared in: pass a smaller mu"
        )
    ends = [L, mu][:n]
    values = np.concatenate([ends, rng.uniform(mu, L, n - len(ends))])
    Q = _orthogonal(rng, n)
    singular = np.zeros((m, n))
    rank = min(m, n)
    singular[range(rank), range(rank)] = L * np.concatenate([[1.0], rng.random(rank - 1)])
    w = L * np.concatenate([[1.0], rng.uniform(0.05, 1, m + n - 1)])
    cast = lambda a: jnp.asarray(a, dtype)
    inner = Inner(
        H=cast(Q * values @ Q.T),
        B=cast(_orthogonal(rng, m) @ singular @ _orthogonal(rng, n)),
        c=cast(rng.normal(size=n)),
    )
    outer = Outer(
        U=cast(_orthogonal(rng, m + n)),
        w=cast(w),
        b=cast(rng.normal(size=m + n)),
        delta=cast(M / np.linalg.norm(w)),
    )
    return RandomQuadratic(inner, outer, mu=mu, L=L, M=M)


def _orthogonal(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.linalg.qr(rng.normal(size=(n, n)))[0]
