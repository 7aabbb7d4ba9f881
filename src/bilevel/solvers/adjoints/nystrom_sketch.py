"""Nyström approximation of ∇²_yy g from k products: an adjoint method and a preconditioner."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from optax import tree

from bilevel.checks import check_choice, check_count, check_positive, check_seed
from bilevel.oracles import Curvature
from bilevel.solvers.adjoints.base import Adjoint, residual
from bilevel.types import Metrics, Number, PyTree


class Nystrom(Adjoint):
    damping: Number
    rank: int = eqx.field(static=True)
    sketch: str = eqx.field(static=True)
    seed: int = eqx.field(static=True)
    name: ClassVar[str] = "Nyström"

    def solve(self, inner: Curvature, b: PyTree, v: PyTree, memory: PyTree) -> tuple[PyTree, PyTree, Metrics]:
        inner = inner.shared()
        v = self.inverse(inner, b)(b)
        return v, memory, {"adjoint_residual": tree.norm(residual(inner, b, v))}

    def inverse(self, inner: Curvature, like: PyTree) -> Callable[[PyTree], PyTree]:
        """Return r ↦ (H_k + δI)⁻¹r, symmetric and positive definite, from `rank` Hessian products."""
        flat, unravel = ravel_pytree(like)
        U, values = self._eigen(lambda row: ravel_pytree(inner.hessian(unravel(row)))[0], flat)
        delta = jnp.asarray(self.damping, flat.dtype)

        def times(r: jax.Array) -> jax.Array:
            with jax.default_matmul_precision("highest"):  # accelerators round to ten bits otherwise
                return in_full(r)

        def in_full(r: jax.Array) -> jax.Array:
            inside = U @ r
            outside = r - inside @ U
            outside = outside - (U @ outside) @ U  # again: 1/δ would enlarge the remainder of U in it
            return (inside / (jnp.abs(values) + delta)) @ U + outside / delta

        return lambda r: unravel(times(ravel_pytree(r)[0]))

    def _eigen(
        self, product: Callable[[jax.Array], jax.Array], like: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return H_k = Y(ΩᵀY)⁺Yᵀ, Y = HΩ, as U diag(values) Uᵀ, with Ω, Y and U in rows."""
        n, k, key = like.size, min(self.rank, like.size), jax.random.key(self.seed)
        if self.sketch == "columns":
            omega = jax.nn.one_hot(jax.random.permutation(key, n)[:k], n, dtype=like.dtype)
        else:
            omega = orthonormal(jax.random.uniform(key, (k, n), like.dtype, minval=-1))
        Y = lax.map(product, omega)
        with jax.default_matmul_precision("highest"):
            core = omega @ Y.T
            d, W = eigh((core + core.T) / 2)
            # Curvature lost in rounding: division by it would turn noise into large eigenvalues.
            kept = jnp.abs(d) > rounding(n, like.dtype) * jnp.max(jnp.abs(d))
            Q = orthonormal(Y)
            R = (Q @ Y.T) @ W
            values, Z = eigh((R * jnp.where(kept, 1 / jnp.where(kept, d, 1), 0)[None, :]) @ R.T)
            return Z.T @ Q, values


def eigh(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return eigenvalues and eigenvectors in a's dtype, computed in float32 at least."""
    half = jnp.finfo(a.dtype).bits < 32
    values, vectors = jnp.linalg.eigh(a.astype(jnp.float32) if half else a)
    return values.astype(a.dtype), vectors.astype(a.dtype)


def orthonormal(rows: jax.Array) -> jax.Array:
    """Return orthonormal rows of the same span, by Gram–Schmidt twice; zero for a dependent row.

    For a few long rows it takes a hundredth of the time of `jnp.linalg.qr` on a CPU, to the same accuracy.
    """

    def add(j: Any, Q: jax.Array) -> jax.Array:
        q = rows[j]
        with jax.default_matmul_precision("highest"):
            for _ in range(2):
                q = q - (Q @ q) @ Q
        length = jnp.linalg.norm(q)
        independent = length > rounding(q.size, q.dtype) * jnp.linalg.norm(rows[j])
        return Q.at[j].set(jnp.where(independent, q / jnp.where(independent, length, 1), 0))

    return lax.fori_loop(0, len(rows), add, jnp.zeros_like(rows))


def rounding(size: int, dtype: Any) -> float:
    """Return the relative rounding error of a sum of this many terms."""
    return math.sqrt(size) * float(jnp.finfo(dtype).eps)


def nystrom(rank: int, damping: Number, *, sketch: str = "dense", seed: int = 0) -> Nystrom:
    """Compute v = (H_k + δI)⁻¹ ∇_y f with the Nyström approximation H_k of ∇²_yy g (Hataya & Yamada 2023).

        Y = ∇²_yy g·Ω,   H_k = Y (ΩᵀY)⁺ Yᵀ = U Λ Uᵀ,   v = (U (|Λ| + δI)⁻¹ Uᵀ + (I − UUᵀ)/δ) ∇_y f

    It takes rank + 1 Hessian products, one of them to measure the "adjoint_residual" of the system itself. It
    has no warm start and no iteration, and holds `rank` copies of y while it works. It is exact for
    (∇²_yy g + δI) if ∇²_yy g has no more than `rank` eigenvalues that are not zero. Otherwise it neglects
    E = ∇²_yy g − H_k. On a convex g, E ≽ 0, and the error is at most ‖E‖/(‖E‖ + δ)·‖∇_y f‖/δ (Frangella, Tropp & Udell
    2023), in addition to the damping's.

    The same object is a preconditioner for `bl.adjoints.cg` and `bl.adjoints.minres`. Then it leaves no bias.
    They need as many steps as for the spectrum without its `rank` largest eigenvalues. The price is `rank`
    products per solve.

    The publication takes Ω of `rank` columns of the identity, drawn at random: `sketch="columns"`. A dense
    random Ω finds the largest eigenvalues in any basis (Frangella, Tropp & Udell draw normal numbers; uniform
    ones, as here, are cheaper). The publication inverts by the Woodbury identity, this code by eigenvectors.
    The result is the same, and accurate in single precision. |Λ| replaces Λ: on a convex g they are equal,
    elsewhere H_k + δI cannot be singular.

    Args:
        rank: k, the number of products.
        damping: δ > 0; as a preconditioner, about the size of the smallest eigenvalues.
        sketch: "dense" or "columns".
        seed: the seed of the random Ω, which is the same at every step.
    """
    check_positive(damping, "damping")
    check_choice(sketch, "sketch", ("dense", "columns"))
    return Nystrom(damping, check_count(rank, "rank"), sketch, int(check_seed(seed)))
