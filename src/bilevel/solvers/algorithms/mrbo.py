"""MRBO: recursive momentum on y and on a Neumann-series hypergradient (Yang, Ji & Liang 2021)."""

from typing import ClassVar

from jaxtyping import Array, Int

from bilevel.checks import check_count, check_positive, check_problem
from bilevel.problem import Problem
from bilevel.solvers.base import check_batches
from bilevel.solvers.parts.momentum import DoubleMomentum, Drawn, Invert, as_momentum, series
from bilevel.solvers.rules import Rule, as_rule
from bilevel.solvers.traits import Traits
from bilevel.types import Metrics, Number, Schedule, StepSize


class MRBO(DoubleMomentum):
    name: ClassVar[str] = "MRBO"
    traits: ClassVar[Traits] = Traits(truncated_series=True, outer_at="start")

    def inversion(self, drawn: Drawn, k: Int[Array, ""]) -> tuple[Invert, Metrics]:
        return series(self.problem, drawn, self.adjoint, self.products), {}


def mrbo(
    problem: Problem,
    inner: StepSize | Rule,
    adjoint: Number,
    outer: StepSize | Rule,
    *,
    products: int = 3,
    momentum: Number | Schedule = 0.1,
    batches: str = "independent",
) -> MRBO:
    """`bl.stocbio`'s hypergradient ∇̂Φ and the inner gradient, each estimated recursively:

        u_k = ∇_y g(x_k, y_k; S_k) + (1 − θ_k)(u_{k−1} − ∇_y g(x_{k−1}, y_{k−1}; S_k))
        h_k = ∇̂Φ(x_k, y_k; B_k)   + (1 − θ_k)(h_{k−1} − ∇̂Φ(x_{k−1}, y_{k−1}; B_k))
        y_{k+1} = y_k − α u_k          x_{k+1} = x_k − β h_k
        ∇̂Φ(x, y; B) = ∇_x f − ∇²_xy g · η Σ_{i=0}^{Q} Π_{j<i} (I − η ∇²_yy g(·; B_j)) ∇_y f

    The same batches serve both points of a difference, and are read once for both. J. Yang, K. Ji, Y. Liang,
    "Provably faster algorithms for bilevel optimization", NeurIPS 2021, where α, β ∝ k^{−1/3} and θ_k ∝ k^{−2/3}:
    pass optax schedules. The truncated series leaves `stocbio`'s bias.
    [benchmark_bilevel](https://github.com/benchopt/benchmark_bilevel) takes the cross product on S_k and begins with
    u = h = 0; here it has a draw of its own, and the first step is stocBiO's.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        adjoint: η as a float, at most 1/L.
        outer: β as a float, or any optax transformation.
        products: Q, the number of Hessian products per point.
        momentum: θ between 0 and 1, the weight of the new gradient (1: no memory), or a function k ↦ θ_k.
        batches: "independent", Q + 2 draws a step; or "shared", one draw of each level for all terms.
    """
    check_positive(adjoint, "adjoint step size")
    return MRBO(
        check_problem(problem),
        as_rule(inner, "inner"),
        adjoint,
        as_rule(outer, "outer"),
        as_momentum(momentum),
        check_count(products, "products"),
        check_batches(batches),
    )
