"""Recursive momentum on y and on the hypergradient: MRBO (Yang, Ji & Liang 2021), SUSTAIN (Khanduri et al. 2021)."""

from typing import ClassVar

import jax
from jax import lax
from jaxtyping import Array, Int

from bilevel.checks import check_seed
from bilevel.solvers.kit import Problem
from bilevel.solvers.options import Rule, factory, field
from bilevel.solvers.parts.momentum import DoubleMomentum, Drawn, Invert, Pair, contracted, series
from bilevel.solvers.parts.trees import scaled
from bilevel.types import Metrics, Number, PyTree, Schedule, StepSize


class MRBO(DoubleMomentum):
    name: ClassVar[str] = "MRBO"

    def inversion(self, drawn: Drawn, k: Int[Array, ""]) -> tuple[Invert, Metrics]:
        return series(self.problem, drawn, self.adjoint, self.products), {}


@factory()
def mrbo(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    adjoint: Number,
    outer: StepSize | Rule,
    products: int = 3,
    momentum: Number | Schedule = 0.1,
    batches: str = "independent",
) -> MRBO:
    """Estimate `bl.stocbio`'s hypergradient ∇̂Φ and the inner gradient recursively:

        u_k = ∇_y g(x_k, y_k; S_k) + (1 − θ_k)(u_{k−1} − ∇_y g(x_{k−1}, y_{k−1}; S_k))
        h_k = ∇̂Φ(x_k, y_k; B_k)   + (1 − θ_k)(h_{k−1} − ∇̂Φ(x_{k−1}, y_{k−1}; B_k))
        y_{k+1} = y_k − α u_k          x_{k+1} = x_k − β h_k
        ∇̂Φ(x, y; B) = ∇_x f − ∇²_xy g · η Σ_{i=0}^{Q} Π_{j<i} (I − η ∇²_yy g(·; B_j)) ∇_y f

    Both points of a difference use the same batches, which are read once. The truncated series leaves `stocbio`'s bias.
    J. Yang, K. Ji, Y. Liang, "Provably faster algorithms for bilevel optimization", NeurIPS 2021, with α, β ∝ k^{−1/3}
    and θ_k ∝ k^{−2/3}: pass optax schedules. [benchmark_bilevel](https://github.com/benchopt/benchmark_bilevel) takes
    the cross product on S_k and starts with u = h = 0. Here it has its own draw, and the first step is stocBiO's.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        adjoint: η as a float, at most 1/L.
        outer: β as a float, or any optax transformation.
        products: Q, the number of Hessian products per point.
        momentum: θ between 0 and 1, the weight of the new gradient (1: no memory), or a function k ↦ θ_k.
        batches: "independent", Q + 2 draws per step; or "shared", one draw of each level for all terms.
    """
    return MRBO(problem, inner, adjoint, outer, momentum, products, batches)


class SUSTAIN(DoubleMomentum):
    seed: int = field(static=True)
    name: ClassVar[str] = "SUSTAIN"

    def inversion(self, drawn: Drawn, k: Int[Array, ""]) -> tuple[Invert, Metrics]:
        Q, eta = self.products, self.adjoint
        p = jax.random.randint(jax.random.fold_in(jax.random.key(self.seed), k), (), 0, Q)

        def invert(at: Pair, b: PyTree) -> PyTree:
            factor = lambda i, r: contracted(self.problem, at, eta, drawn(1 + i), r)
            return scaled(Q * eta, lax.fori_loop(0, p, factor, b))

        return invert, {"factors": p}


@factory()
def sustain(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    adjoint: Number,
    outer: StepSize | Rule,
    products: int = 10,
    momentum: Number | Schedule = 0.1,
    batches: str = "independent",
    seed: int = 0,
) -> SUSTAIN:
    """Run the recurrence of `bl.solvers.mrbo` with the adjoint of Ghadimi & Wang in place of the series:

        v = Q η Π_{j<p} (I − η ∇²_yy g(·; B_j)) ∇_y f          p uniform in {0, …, Q − 1}

    Its mean over p is the series of Q terms. It takes half the products of `mrbo` on average, and has more noise.
    P. Khanduri, S. Zeng, M. Hong, H.-T. Wai, Z. Wang, Z. Yang, "A near-optimal algorithm for stochastic bilevel
    optimization via double-momentum", NeurIPS 2021, with α, β ∝ k^{−1/3} and θ_k ∝ k^{−2/3}: pass optax schedules. Here
    one θ serves both estimates. The trace's "factors" shows p.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        adjoint: η as a float, at most 1/L.
        outer: β as a float, or any optax transformation.
        products: Q; a point takes at most Q Hessian products.
        momentum: θ between 0 and 1, the weight of the new gradient (1: no memory), or a function k ↦ θ_k.
        batches: "independent", Q + 2 draws per step; or "shared", one draw of each level for all terms.
        seed: a whole number, from which p is drawn.
    """
    return SUSTAIN(problem, inner, adjoint, outer, momentum, products, batches, int(check_seed(seed)))
