"""The truncated Neumann series for the inverse Hessian (Lorraine et al. 2020; BA, Ghadimi & Wang 2018)."""

from typing import Any

from jax import lax
from optax import tree

from bilevel.checks import check_count
from bilevel.oracles import Linearised
from bilevel.solvers.adjoints.base import Adjoint, no_memory
from bilevel.solvers.rule import check_positive

PyTree = Any


def neumann(eta: Any, products: int) -> Adjoint:
    """v̂ = η Σ_{i=0}^{Q} (I − η∇²_yy g)ⁱ ∇_y f, with Q = `products` Hessian products and no warm start.

    With 0 < η ≤ 1/L it leaves the residual (I − η∇²_yy g)^{Q+1} ∇_y f, a bias that more steps of the
    outer level do not remove: the same series as `steps(eta, Q + 1)` from v = 0. "adjoint_residual" is the
    size of the last term added, (I − η∇²_yy g)^Q ∇_y f, which bounds it.
    """
    check_positive(eta, "Neumann step size eta")
    products = check_count(products, "the number of Neumann products")

    def solve(inner: Linearised, b: PyTree, v: PyTree, memory: PyTree):
        def add_term(carry, _):
            term, total = carry
            term = tree.add_scale(term, -eta, inner.hessian(term))
            return (term, tree.add(total, term)), None

        (term, total), _ = lax.scan(add_term, (b, b), length=products)
        return tree.scale(eta, total), memory, {"adjoint_residual": tree.norm(term)}

    return Adjoint(f"Neumann, {products} products", no_memory, solve)
