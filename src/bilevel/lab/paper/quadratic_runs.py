"""Runs on the paper's two-dimensional problem: many parameter sets in one vmapped, compiled call."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.loop.scan import scan
from bilevel.problems.two_dimensional import Quadratic
from bilevel.solvers.algorithms.aid import aid
from bilevel.solvers.algorithms.itd import itd
from bilevel.solvers.base import Solver


class Start(NamedTuple):
    """Where the runs of Figures 1 and 2 begin: x₀ = 1, y₀ = y*(x₀) and v₀ = 0."""

    gap: np.ndarray  # Φ(x₀) − min Φ
    v_error: np.ndarray  # ‖v₀ − v*(x₀)‖


def start(mu: float, L: np.ndarray, m: float) -> Start:
    """What every bound needs to know of the start, from the closed forms; ‖y₀ − y*(x₀)‖ = 0."""

    def one(L: Any):
        q, x0 = Quadratic(mu, L, m), jnp.ones(2)
        return q.value(x0) - q.value(q.solution), jnp.linalg.norm(q.adjoint_solution(x0))

    return Start(*(np.asarray(value) for value in jax.vmap(one)(jnp.asarray(L))))


@partial(jax.jit, static_argnames="steps")
def aid_norms(mu: Any, L: Any, m: Any, alpha: Any, eta: Any, beta: Any, *, steps: int) -> jax.Array:
    """‖∇Φ(x_k)‖² for k = 0..steps of AID, one row for each entry of L, α, η and β."""

    def one(L: Any, alpha: Any, eta: Any, beta: Any) -> jax.Array:
        q = Quadratic(mu, L, m)
        return _norms(q, aid(q.problem, inner=alpha, adjoint=eta, outer=beta), steps)

    return jax.vmap(one)(L, alpha, eta, beta)


@partial(jax.jit, static_argnames="steps")
def itd_norms(mu: Any, L: Any, m: Any, alpha: Any, beta: Any, *, steps: int) -> jax.Array:
    """‖∇Φ(x_k)‖² for k = 0..steps of ITD, one row for each entry of L, α and β."""

    def one(L: Any, alpha: Any, beta: Any) -> jax.Array:
        q = Quadratic(mu, L, m)
        return _norms(q, itd(q.problem, inner=alpha, outer=beta), steps)

    return jax.vmap(one)(L, alpha, beta)


def _norms(q: Quadratic, solver: Solver, steps: int) -> jax.Array:
    square = lambda x: jnp.sum(q.hypergradient(x) ** 2)
    x0 = jnp.ones(2)
    state = solver.init(x0, q.inner_solution(x0))
    _, norms = scan(solver, state, steps=steps, record=lambda state, info: square(state.x))
    return jnp.concatenate([square(x0)[None], norms])


def means(norms: np.ndarray) -> np.ndarray:
    """(1/K) Σ_{k<K} of every row, for K = 1, 2, …: the quantity all the bounds are about."""
    running = np.cumsum(norms[..., :-1], axis=-1)
    return running / np.arange(1, norms.shape[-1])
