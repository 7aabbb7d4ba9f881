"""Two-dimensional problem of the paper: the protocol of Figures 1 and 2, and many runs in one call."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.lab.paper.tables import Table
from bilevel.loop.scan import scan
from bilevel.problems.two_dimensional import Quadratic
from bilevel.solvers.algorithms.aid import aid
from bilevel.solvers.algorithms.itd import itd
from bilevel.solvers.base import Solver

MU = 0.1
COEFFICIENT = 0.1  # of 1ᵀy in f; the paper's M
RHO = 0.1  # valid for every quadratic g, whose true ρ is 0
STEPS = 10_000
KAPPAS = np.geomspace(1.5, 20, 24)
# The paper sets M = 0.1, but ‖∇_y f‖ = 0.1·√2, which the lemmas for AID need as M. Both are computed.
M_VALUES = {"paper": COEFFICIENT, "valid": COEFFICIENT * np.sqrt(2)}
PROTOCOL = dict(mu=MU, m=COEFFICIENT, rho=RHO, steps=STEPS, kappas=KAPPAS.tolist(), M=M_VALUES)


class Start(NamedTuple):
    """Start of the runs of Figures 1 and 2: x₀ = 1, y₀ = y*(x₀) and v₀ = 0."""

    gap: np.ndarray  # Φ(x₀) − min Φ
    v_error: np.ndarray  # ‖v₀ − v*(x₀)‖


def start(mu: float, L: np.ndarray, m: float) -> Start:
    """Return the gap and the error of v₀ that every bound needs, from closed forms. ‖y₀ − y*(x₀)‖ is 0."""

    def one(L: Any):
        q, x0 = Quadratic(mu, L, m), jnp.ones(2)
        return q.value(x0) - q.value(q.solution), jnp.linalg.norm(q.adjoint_solution(x0))

    return Start(*(np.asarray(value) for value in jax.vmap(one)(jnp.asarray(L))))


@partial(jax.jit, static_argnames="steps")
def aid_norms(mu: Any, L: Any, m: Any, alpha: Any, eta: Any, beta: Any, *, steps: int) -> jax.Array:
    """Return ‖∇Φ(x_k)‖² of AID for k = 0..steps, one row for each entry of L, α, η and β."""

    def one(L: Any, alpha: Any, eta: Any, beta: Any) -> jax.Array:
        q = Quadratic(mu, L, m)
        return _norms(q, aid(q.problem, inner=alpha, adjoint=eta, outer=beta), steps)

    return jax.vmap(one)(L, alpha, eta, beta)


@partial(jax.jit, static_argnames="steps")
def itd_norms(mu: Any, L: Any, m: Any, alpha: Any, beta: Any, *, steps: int) -> jax.Array:
    """Return ‖∇Φ(x_k)‖² of ITD for k = 0..steps, one row for each entry of L, α and β."""

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


def certified(
    certify: Callable[[float, np.ndarray, dict[str, Any]], Iterator[dict[str, Any]]],
    kappas: np.ndarray,
    settings: dict[str, Any],
) -> list[dict[str, Any]]:
    """Return the cases of `certify(M, kappas, settings)` for every M."""
    found = ((label, case) for label, M in settings["M"].items() for case in certify(M, kappas, settings))
    return [case | {"M_is": label} for label, case in found]


def columns(cases: list[dict[str, Any]], kappas: np.ndarray, *names: str) -> Table:
    """Return M, the analysis, κ and the columns `names`: one row for each case and κ."""
    n = len(kappas)
    labels = {name: np.repeat([case[name] for case in cases], n) for name in ("M_is", "analysis")}
    own = {name: np.concatenate([case[name][:n] for case in cases]) for name in names}
    return labels | {"kappa": np.tile(kappas, len(cases))} | own


def means(norms: np.ndarray) -> np.ndarray:
    """Return (1/K) Σ_{k<K} of every row for K = 1, 2, …, the quantity of all bounds."""
    running = np.cumsum(norms[..., :-1], axis=-1)
    return running / np.arange(1, norms.shape[-1])
