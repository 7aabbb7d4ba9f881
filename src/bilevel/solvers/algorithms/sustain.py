"""SUSTAIN: recursive momentum on y and on a randomly truncated hypergradient (Khanduri et al. 2021)."""

from typing import ClassVar

import jax
from jax import lax
from jaxtyping import Array, Int

from bilevel.checks import check_seed
from bilevel.solvers.kit import Problem
from bilevel.solvers.options import Rule, factory, field
from bilevel.solvers.parts.momentum import DoubleMomentum, Drawn, Invert, Pair, contracted
from bilevel.solvers.parts.trees import scaled
from bilevel.types import Metrics, Number, PyTree, Schedule, StepSize


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
