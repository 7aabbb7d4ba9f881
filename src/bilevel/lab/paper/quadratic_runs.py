"""Two-dimensional problem of the paper: the protocol of Figures 1 and 2, and many runs in one call."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel import theory
from bilevel.lab.paper.tables import Table
from bilevel.loop.scan import scan
from bilevel.problems.two_dimensional import Quadratic
from bilevel.solvers.base import Solver

MU = 0.1
COEFFICIENT = 0.1  # of 1ᵀy in f; the paper's M
RHO = 0.1  # valid for every quadratic g, whose true ρ is 0
STEPS = 10_000
KAPPAS = np.geomspace(1.5, 20, 24)
# The paper sets M = 0.1, but ‖∇_y f‖ = 0.1·√2, which the lemmas for AID need as M. Both are computed.
M_VALUES = {"paper": COEFFICIENT, "valid": COEFFICIENT * np.sqrt(2)}
SIZES = {"inner": "alpha", "adjoint": "eta", "outer": "beta"}  # options of the solvers, and columns
PROTOCOL = dict(mu=MU, m=COEFFICIENT, rho=RHO, steps=STEPS, kappas=KAPPAS.tolist(), M=M_VALUES)

Case = dict[str, Any]  # of one analysis with one M: its step sizes and bounds for every κ


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


@partial(jax.jit, static_argnames=("method", "steps"))
def squared_norms(
    method: Callable[..., Solver], mu: Any, L: Any, m: Any, sizes: dict[str, Any], *, steps: int
) -> jax.Array:
    """Return ‖∇Φ(x_k)‖² of AID or ITD for k = 0..steps, one row for each entry of L and of the step sizes."""

    def one(L: Any, sizes: dict[str, Any]) -> jax.Array:
        q, x0 = Quadratic(mu, L, m), jnp.ones(2)
        square = lambda x: jnp.sum(q.hypergradient(x) ** 2)
        solver = method(q.problem, **sizes)
        state = solver.init(x0, q.inner_solution(x0))
        _, norms = scan(solver, state, steps=steps, record=lambda state, info: square(state.x))
        return jnp.concatenate([square(x0)[None], norms])

    return jax.vmap(one)(L, sizes)


def norms_of(
    method: Callable[..., Solver], cases: list[Case], kappas: np.ndarray, settings: dict[str, Any]
) -> np.ndarray:
    """Return ‖∇Φ(x_k)‖² of every case and κ for k = 0..steps, from one call."""
    options = {option: size for option, size in SIZES.items() if size in cases[0]}
    every = {o: jnp.asarray(np.concatenate([case[size] for case in cases])) for o, size in options.items()}
    L = jnp.asarray(np.tile(kappas * settings["mu"], len(cases)))
    m, steps = jnp.asarray(settings["m"]), settings["steps"]
    norms = squared_norms(method, settings["mu"], L, m, every, steps=steps)
    return np.asarray(norms).reshape(len(cases), len(kappas), -1)


def certified(
    method: str,
    case: Callable[[theory.Certificate, Start, np.ndarray, int], Case],
    kappas: np.ndarray,
    settings: dict[str, Any],
) -> list[Case]:
    """Return what `case` makes of every analysis of the method, for every M."""
    mu, L, cases = settings["mu"], kappas * settings["mu"], []
    begin = start(mu, L, settings["m"])
    for label, M in settings["M"].items():
        analyses = theory.analyses(theory.Constants(mu, L, M, settings["rho"]), method)
        for name, certificate in analyses.items():
            found = case(certificate, begin, L, settings["steps"])
            cases.append({"M_is": label, "analysis": name} | found)
    return cases


def over_kappa(cases: list[Case], norms: np.ndarray, kappas: np.ndarray, *names: str) -> Table:
    """Return one row for each case and κ, with the entries `names` of the case and the result of its run."""
    n = len(kappas)
    labels = {name: np.repeat([case[name] for case in cases], n) for name in ("M_is", "analysis")}
    own = {name: np.concatenate([case[name][:n] for case in cases]) for name in names}
    ends = {"measured": means(norms)[..., -1].ravel(), "last": norms[..., -1].ravel()}
    return labels | {"kappa": np.tile(kappas, len(cases))} | own | ends


def means(norms: np.ndarray) -> np.ndarray:
    """Return (1/K) Σ_{k<K} of every row for K = 1, 2, …, the quantity of all bounds."""
    running = np.cumsum(norms[..., :-1], axis=-1)
    return running / np.arange(1, norms.shape[-1])
