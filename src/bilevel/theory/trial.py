"""How steep the estimated hypergradient turns out to be along a short run of the method itself."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Float
from optax import tree

from bilevel.problem import Batch, Problem
from bilevel.solvers.aid import aid
from bilevel.solvers.itd import itd
from bilevel.theory.local import CG_STEPS

PyTree = Any


@partial(jax.jit, static_argnums=(0, 1, 2))
def slope(
    problem: Problem, method: str, steps: int, sizes: tuple, x: PyTree, y: PyTree, batch: Batch | None
) -> Float[Array, ""]:
    """The largest ‖∇̂Φ(x_{k+1}) − ∇̂Φ(x_k)‖/‖x_{k+1} − x_k‖ over `steps` steps; infinite if they diverge.

    `sizes` are (α, η, β), of which ITD ignores η. AID starts from a solved adjoint system, so that the estimate
    changes because x moves and not because v settles.
    """
    alpha, eta, beta = sizes
    solver = aid(problem, alpha, eta, beta) if method == "AID" else itd(problem, alpha, beta)
    state = solver.init(x, y, batch)
    if method == "AID":
        inner, f = problem.oracles.linearise(x, y, batch), problem.oracles.outer_gradients(x, y, batch)
        state = state._replace(v=cg(inner.hessian, f.y, maxiter=CG_STEPS)[0])
    state, info = solver.step(state, batch)

    def body(carry, _):
        state, estimate, before, largest = carry
        following, info = solver.step(state, batch)
        moved = tree.norm(tree.sub(state.x, before))
        changed = tree.norm(tree.sub(info.hypergradient, estimate))
        ratio = changed / jnp.maximum(moved, jnp.finfo(moved.dtype).tiny)
        return (following, info.hypergradient, state.x, jnp.maximum(largest, ratio)), None

    start = (state, info.hypergradient, x, jnp.zeros_like(info.outer_value))
    (*_, largest), _ = lax.scan(body, start, length=steps)
    return jnp.where(jnp.isfinite(largest), largest, jnp.inf)
