"""The Nyström approximation of ∇²_yy g from k products: an adjoint of its own, and a preconditioner."""

import math
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from optax import tree

from bilevel.checks import check_count, check_positive, check_seed
from bilevel.oracles import Linearised
from bilevel.solvers.adjoints.base import Adjoint, residual
from bilevel.types import Number, PyTree


class Nystrom(Adjoint):
    damping: Number
    rank: int = eqx.field(static=True)
    sketch: str = eqx.field(static=True)
    seed: int = eqx.field(static=True)
    name: ClassVar[str] = "Nyström"

    def solve(self, inner: Linearised, b: PyTree, v: PyTree, memory: PyTree):
        v = self.inverse(inner, b)(b)
        return v, memory, {"adjoint_residual": tree.norm(residual(inner, b, v))}

    def inverse(self, inner: Linearised, like: PyTree) -> Callable[[PyTree], PyTree]:
        """r ↦ (H_k + δI)⁻¹r, symmetric and positive definite. `rank` Hessian products."""
        flat, unravel = ravel_pytree(like)
        U, values = self._eigen(lambda row: ravel_pytree(inner.hessian(unravel(row)))[0], flat)
        delta = jnp.asarray(self.damping, flat.dtype)

        def times(r: jax.Array) -> jax.Array:
            inside = U.T @ r
            outside = r - U @ inside
            outside = outside - U @ (U.T @ outside)  # again: 1/δ would enlarge what rounding left of U in it
            return U @ (inside / (jnp.abs(values) + delta)) + outside / delta

        return lambda r: unravel(times(ravel_pytree(r)[0]))

    def _eigen(
        self, product: Callable[[jax.Array], jax.Array], like: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """H_k = Y(ΩᵀY)⁺Yᵀ, Y = HΩ, as U diag(values) Uᵀ."""
        n, k = like.size, min(self.rank, like.size)
        key = jax.random.key(self.seed)
        if self.sketch == "columns":
            omega = jax.nn.one_hot(jax.random.permutation(key, n)[:k], n, dtype=like.dtype).T
        else:
            omega = jnp.linalg.qr(jax.random.normal(key, (n, k), like.dtype))[0]
        Y = lax.map(product, omega.T).T
        core = omega.T @ Y
        d, W = jnp.linalg.eigh((core + core.T) / 2)
        # Curvature that is lost in rounding: to divide by it would make large eigenvalues out of noise.
        noise = math.sqrt(n) * jnp.finfo(like.dtype).eps * jnp.max(jnp.abs(d))
        kept = jnp.abs(d) > noise
        Q, R = jnp.linalg.qr(Y)
        RW = R @ W
        values, Z = jnp.linalg.eigh((RW * jnp.where(kept, 1 / jnp.where(kept, d, 1), 0)[None, :]) @ RW.T)
        return Q @ Z, values


def nystrom(rank: int, damping: Number, *, sketch: str = "gaussian", seed: int = 0) -> Nystrom:
    """v = (H_k + δI)⁻¹ ∇_y f with the Nyström approximation H_k of ∇²_yy g (Hataya & Yamada 2023).

        Y = ∇²_yy g·Ω,   H_k = Y (ΩᵀY)⁺ Yᵀ = U Λ Uᵀ,   v = (U (|Λ| + δI)⁻¹ Uᵀ + (I − UUᵀ)/δ) ∇_y f

    rank + 1 Hessian products, one of them to measure the "adjoint_residual" of the system itself; no warm start, no
    iteration, and `rank` copies of y while it works. It is exact for (∇²_yy g + δI) if ∇²_yy g has no more than
    `rank` eigenvalues that are not zero. Otherwise, on a convex g, what it neglects, E = ∇²_yy g − H_k ≽ 0, leaves
    an error of at most ‖E‖/(‖E‖ + δ)·‖∇_y f‖/δ (Frangella, Tropp & Udell 2023, Proposition 3.1) beside that of damping.

    The same object serves [`cg`][bilevel.adjoints.cg] and [`minres`][bilevel.adjoints.minres] as their
    preconditioner. It then leaves no bias, and they need as many steps as the spectrum without its `rank` largest
    eigenvalues asks for; `rank` products a solve are its price.

    The publication takes Ω of `rank` columns of the identity, drawn at random: `sketch="columns"`. A
    Gaussian Ω with orthonormal columns (Frangella, Tropp & Udell) finds the largest eigenvalues whatever the basis. It
    inverts by the Woodbury identity, here by eigenvectors, which is the same and keeps its digits in single precision;
    with |Λ| in place of Λ, which is the same on a convex g and elsewhere keeps H_k + δI from being singular.

    Args:
        rank: k, the number of products.
        damping: δ > 0; as a preconditioner, about the size of the smallest eigenvalues.
        sketch: "gaussian" or "columns".
        seed: of the random Ω, which is the same at every step.
    """
    check_positive(damping, "damping")
    if sketch not in ("gaussian", "columns"):
        raise ValueError(f'sketch must be "gaussian" or "columns", not {sketch!r}')
    return Nystrom(damping, check_count(rank, "rank"), sketch, int(check_seed(seed)))


def check_preconditioner(value: Nystrom | None) -> Nystrom | None:
    """What `cg` and `minres` take to be preconditioned by."""
    if value is not None and not isinstance(value, Nystrom):
        raise TypeError(f"preconditioner must be adjoints.nystrom(rank, damping) or None, not {value!r}")
    return value
