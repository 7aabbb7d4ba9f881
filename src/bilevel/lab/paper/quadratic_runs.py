"""Runs on the paper's two-dimensional problem: many parameter sets in one vmapped, compiled call."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.loop.scan import scan
from bilevel.problems.two_dimensional import Quadratic
from bilevel.solvers.aid import aid
from bilevel.solvers.base import Solver
from bilevel.solvers.itd import itd


class Start(NamedTuple):
    """Where the runs of Figures 1 and 2 begin: x₀ = 1 and y₀ = y*(x₀)."""

    gap: np.ndarray  # Φ(x₀) − min Φ
    adjoint_error: np.ndarray  # ‖v̂₀ − v*‖ after the first adjoint step η from v₀ = 0


def start(mu: float, L: np.ndarray, m: float, eta: np.ndarray) -> Start:
    """The initial errors that the bounds need, from the closed forms; ŷ₀ = y*(x₀), so a₀ = 0."""

    def one(L: Any, eta: Any):
        q = Quadratic(mu, L, m)
        error = q.adjoint_solution(jnp.ones(2)) - eta * m
        return q.value(jnp.ones(2)) - q.value(q.solution), jnp.linalg.norm(error)

    return Start(*(np.asarray(value) for value in jax.vmap(one)(jnp.asarray(L), jnp.asarray(eta))))


@partial(jax.jit, static_argnames="steps")
def aid_norms(mu: Any, L: Any, m: Any, eta: Any, beta: Any, *, steps: int) -> jax.Array:
    """‖∇Φ(x_k)‖² for k = 0..steps of AID with α = 1/L, one row for each entry of L, η and β."""

    def one(L: Any, eta: Any, beta: Any) -> jax.Array:
        q = Quadratic(mu, L, m)
        return _norms(q, aid(q.problem, 1 / L, eta, beta), steps)

    return jax.vmap(one)(L, eta, beta)


@partial(jax.jit, static_argnames="steps")
def itd_norms(mu: Any, L: Any, m: Any, beta: Any, *, steps: int) -> jax.Array:
    """‖∇Φ(x_k)‖² for k = 0..steps of ITD with α = 1/L, one row for each entry of L and β."""

    def one(L: Any, beta: Any) -> jax.Array:
        q = Quadratic(mu, L, m)
        return _norms(q, itd(q.problem, 1 / L, beta), steps)

    return jax.vmap(one)(L, beta)


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
