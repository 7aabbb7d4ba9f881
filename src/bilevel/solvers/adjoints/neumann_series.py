"""Truncated Neumann series for the inverse Hessian (Lorraine et al. 2020)."""

from typing import ClassVar

import equinox as eqx
from jax import lax
from optax import tree

from bilevel.checks import check_count, check_positive
from bilevel.oracles import Curvature
from bilevel.solvers.adjoints.base import Adjoint
from bilevel.solvers.parts.trees import scaled
from bilevel.types import Metrics, Number, PyTree


class NeumannSeries(Adjoint):
    eta: Number
    products: int = eqx.field(static=True)
    name: ClassVar[str] = "Neumann"

    @property
    def step_rule(self) -> Number:
        return self.eta

    def solve(self, inner: Curvature, b: PyTree, v: PyTree, memory: PyTree) -> tuple[PyTree, PyTree, Metrics]:
        inner = inner.shared()

        def add_term(carry, _):
            term, total = carry
            term = tree.sub(term, scaled(self.eta, inner.hessian(term)))
            return (term, tree.add(total, term)), None

        (term, total), _ = lax.scan(add_term, (b, b), length=self.products)
        return scaled(self.eta, total), memory, {"adjoint_residual": tree.norm(term)}


def neumann(eta: Number, products: int) -> NeumannSeries:
    """Compute v̂ = η Σ_{i=0}^{Q} (I − η∇²_yy g)ⁱ ∇_y f, with Q Hessian products and no warm start.

    With 0 < η ≤ 1/L it leaves the residual (I − η∇²_yy g)^{Q+1} ∇_y f. More outer steps do not remove this
    bias. The series equals `steps(eta, Q + 1)` from v = 0. "adjoint_residual" is the size of the last term
    added, (I − η∇²_yy g)^Q ∇_y f, which bounds it.

    With it `aid` is the deterministic variant of BA (Ghadimi & Wang 2018). The stochastic one (BSA) draws the
    number of factors at random and multiplies by Q + 1, so one term has the same sum in expectation.

    Args:
        eta: η, at most 1/L.
        products: Q, the number of Hessian products.
    """
    check_positive(eta, "Neumann step size eta")
    return NeumannSeries(eta, check_count(products, "the number of Neumann products"))
