"""MRBO: recursive momentum on y and on a Neumann-series hypergradient (Yang, Ji & Liang 2021)."""

from typing import ClassVar

from jaxtyping import Array, Int

from bilevel.solvers.kit import Problem
from bilevel.solvers.options import Rule, factory
from bilevel.solvers.parts.momentum import DoubleMomentum, Drawn, Invert, series
from bilevel.types import Metrics, Number, Schedule, StepSize


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
