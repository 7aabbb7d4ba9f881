"""Table 1: the rates, as exponents fitted to our own bounds and runs, and the oracle calls, counted.

Bounds are evaluated under the paper's convention: L, M, ρ, the initial gap and the initial radii are fixed
and μ = L/κ, with κ large, where a power law shows. Runs use the two-dimensional problem under the same
convention. They start at x₀ = x° + Z^(−1/2)·1, for which Φ(x₀) − min Φ = 1 for every κ. AID runs with the
step sizes of each analysis until the mean of ‖∇Φ‖² is at most ε. These κ must be small, because the earlier
analysis takes κ⁶ steps.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel import theory
from bilevel.counting import Counts, oracle_calls, warm_up_calls
from bilevel.lab.paper.experiment import Experiment, Options, Report
from bilevel.lab.paper.fits import power_law
from bilevel.lab.paper.tables import Table
from bilevel.loop.hooks.base import Hook
from bilevel.loop.hooks.event import Event, Stop
from bilevel.loop.run import run as run_solver
from bilevel.loop.status import Code
from bilevel.problems.two_dimensional import FAMILY, Quadratic, as_data
from bilevel.solvers.algorithms.aid import aid
from bilevel.solvers.algorithms.itd import itd

# D_y is the distance of the raw y₀ from y*(x₀), which the warm-up shortens to c_y·μ.
PROTOCOL: dict[str, Any] = dict(L=1.0, M=1.0, rho=1.0, gap=1.0, radius=1.0, D_y=1.0)
KAPPAS_OF_BOUNDS = np.geomspace(1e3, 1e5, 9)
KAPPAS_OF_RUNS = np.array([1.5, 2.0, 2.5, 3.0, 3.5])
EPSILONS = (0.4, 0.2, 0.1)
# The paper's claims, as exponents of κ.
CLAIMED = {
    ("AID", "earlier"): {"rate": 6.0, "beta": -6.0, "eta": -2.0},
    ("AID", "paper"): {"rate": 5.0, "beta": -5.0, "eta": 0.0},
    ("ITD", "earlier"): {"rate": 3.0, "inherent": 3.0},
    ("ITD", "paper"): {"rate": 3.0, "beta": -3.0, "inherent": 2.0},
    ("ITD", "lower bound"): {"inherent": 2.0},
}
LONG = 1e9  # steps: more than any run here takes


def settings(options: Options) -> dict[str, Any]:
    of_runs = KAPPAS_OF_RUNS[:3] if options.quick else KAPPAS_OF_RUNS
    kappas = {"kappas_of_bounds": KAPPAS_OF_BOUNDS.tolist(), "kappas_of_runs": of_runs.tolist()}
    return PROTOCOL | kappas | {"epsilons": list(EPSILONS), "counted_steps": 200}


def run(settings: dict[str, Any], inputs: None, report: Report) -> dict[str, Table]:
    with jax.enable_x64(True):
        report(0.0, "exponents of the bounds")
        exponents = exponents_of_bounds(settings)
        report(0.05, "counting oracle calls")
        calls = calls_per_step(settings)
        runs = steps_to_epsilon(settings, lambda done, doing="": report(0.1 + 0.9 * done, doing))
        report(1.0)
        runs = with_calls(runs, calls, settings)
        return {"table1_exponents.csv": exponents, "table1_calls.csv": calls, "table1_runs.csv": runs}


def exponents_of_bounds(settings: dict[str, Any]) -> Table:
    """Return the slopes in κ of K times the vanishing part, of the inherent part, and of the step sizes."""
    kappas = np.asarray(settings["kappas_of_bounds"])
    constants, gap = constants_at(kappas, settings), settings["gap"]
    # Theorem 5.17 requires y₀ within the radius R_y of y*(x₀).
    y_error = {"AID": warmed_up(constants, settings), "ITD": theory.itd(constants).R_y}
    values = {
        (method, name, quantity): value
        for method, of_method in {"AID": of_aid, "ITD": of_itd}.items()
        for name, certificate in theory.analyses(constants, method).items()
        for quantity, value in of_method(certificate, gap, y_error[method]).items()
    }
    values["ITD", "lower bound", "inherent"] = theory.lower_bound(constants).strict
    columns = dict(zip(("method", "analysis", "quantity"), zip(*values, strict=True), strict=True))
    fitted = [power_law(kappas, np.broadcast_to(value, kappas.shape)) for value in values.values()]
    claimed = [CLAIMED.get((method, name), {}).get(quantity, np.nan) for method, name, quantity in values]
    return columns | {"paper_exponent": claimed, "exponent": [fit.exponent for fit in fitted]}


def constants_at(kappas: np.ndarray, settings: dict[str, Any]) -> theory.Constants:
    return theory.Constants(settings["L"] / kappas, settings["L"], settings["M"], settings["rho"])


def of_aid(certificate: theory.Certificate, gap: float, y_error: Any) -> dict[str, Any]:
    rate, beta = certificate.bound(LONG, gap, y_error), certificate.best_beta(LONG, gap, y_error)
    return {"rate": rate, "beta": beta, "eta": certificate.eta}


def of_itd(certificate: theory.Certificate, gap: float, y_error: Any) -> dict[str, Any]:
    # The rate only where β is fixed. Otherwise β depends on K, and the vanishing part is not ∝ 1/K.
    inherent = certificate.inherent_error
    if certificate.analysis not in ("earlier", "paper"):
        return {"inherent": inherent}
    vanishing = certificate.bound(LONG, gap, y_error) - inherent
    return {"rate": vanishing, "beta": certificate.best_beta(LONG, gap, y_error), "inherent": inherent}


def warmed_up(constants: theory.Constants, settings: dict[str, Any]) -> Any:
    """Return ‖y₀ − y*(x₀)‖ = c_y·μ, as in Lemma 5.8."""
    return settings["radius"] * constants.mu


def calls_per_step(settings: dict[str, Any]) -> Table:
    """Return the oracle calls of one iteration and of one warm-up step, counted in the programs that run."""
    q = Quadratic(0.5 * settings["L"], settings["L"], settings["M"] / np.sqrt(2))
    N = settings["counted_steps"]
    totals = {}
    for method, solver in {
        "AID": aid(q.problem, inner=1.0, adjoint=1.0, outer=0.1),
        "ITD": itd(q.problem, inner=1.0, outer=0.1),
    }.items():
        state = solver.init(start(q), q.inner_solution(start(q)))
        totals[method, "iteration"] = oracle_calls(solver, state, steps=N)
        totals[method, "warm-up"] = warm_up_calls(solver, state, steps=N)
    names = (*Counts._fields, "Gc", "Mv")
    columns = {name: [getattr(total, name) / N for total in totals.values()] for name in names}
    return {"method": [method for method, _ in totals], "of": [what for _, what in totals]} | columns


def steps_to_epsilon(settings: dict[str, Any], report: Report) -> Table:
    """Return the first K with (1/K) Σ_{k<K} ‖∇Φ(x_k)‖² ≤ ε, for AID by analysis, and the certified K.

    K times a bound never falls as K grows (for all but `star` it is constant). So its value at a long horizon
    serves every K below.
    """
    kappas, epsilons = np.asarray(settings["kappas_of_runs"]), np.asarray(settings["epsilons"])
    constants = constants_at(kappas, settings)
    gap, y_error = settings["gap"], warmed_up(constants, settings)
    analyses = theory.analyses(constants, "AID")
    sizes, certified = [], []
    for analysis in analyses.values():
        steps = analysis.step_sizes(LONG, gap, y_error)
        bound = analysis.bound(LONG, gap, y_error, beta=steps.outer)
        sizes.append(np.stack(np.broadcast_arrays(*steps), axis=-1))
        certified.append(LONG * np.asarray(bound)[:, None] / epsilons)
    lanes, certified, n = np.tile(kappas, len(analyses)), np.concatenate(certified), len(epsilons)
    K = first_reached(settings, lanes, np.concatenate(sizes), certified, report)
    return {
        "analysis": np.repeat(list(analyses), len(kappas) * n),
        "kappa": np.repeat(lanes, n),
        "epsilon": np.tile(epsilons, len(lanes)),
        "steps": K.ravel(),
        "certified_steps": np.ceil(certified).ravel(),
    }


def first_reached(
    settings: dict[str, Any], kappas: np.ndarray, sizes: np.ndarray, certified: np.ndarray, report: Report
) -> np.ndarray:
    """Return K(ε) for every run and every ε. `sizes` are α, η and β. A run ends at the smallest ε."""
    epsilons, reached = np.asarray(settings["epsilons"]), []
    expected = settings["gap"] / (sizes[:, 2] * epsilons.min())  # Σ‖∇Φ‖² ≈ gap/β: only for the progress shown
    for i, (kappa, size) in enumerate(zip(kappas, sizes, strict=True)):
        q = Quadratic(settings["L"] / kappa, settings["L"], settings["M"] / np.sqrt(2))
        x0 = start(q)
        # As after the warm-up of the initialization lemma: at distance c_y·μ from y*(x₀).
        y0 = q.inner_solution(x0) + settings["radius"] * q.mu * jnp.array([0.0, 1.0])
        first = float(jnp.sum(q.hypergradient(x0) ** 2))

        def so_far(steps: int, i: int = i, label: str = f"run {i + 1} of {len(kappas)}") -> None:
            report(float((expected[:i].sum() + min(steps, expected[i])) / expected.sum()), label)

        alpha, eta, beta = map(float, size)
        result = run_solver(
            aid(FAMILY, inner=alpha, adjoint=eta, outer=beta),
            x0,
            y0,
            data=as_data(q),
            steps=2 * int(np.ceil(certified[i].max())),  # room to see a certificate fail
            record=square,
            hooks=[MeanBelow(epsilons.min(), first, so_far)],
        )
        if result.check().status.code is not Code.STOPPED:
            raise RuntimeError(f"AID at κ = {kappa:g} did not reach ε = {epsilons.min():g}: {result.status}")
        squares = np.concatenate([[first], result.trace["square"][:-1]])
        means = np.cumsum(squares) / np.arange(1, len(squares) + 1)
        reached.append([1.0 + np.argmax(means <= epsilon) for epsilon in epsilons])
    return np.array(reached)


def square(state: Any, info: Any, batch: Any) -> dict[str, Any]:
    return {"square": jnp.sum(batch.outer.hypergradient(state.x) ** 2)}


class MeanBelow(Hook):
    """Hook that stops a run when the mean of ‖∇Φ(x_k)‖² over the steps so far is below ε."""

    def __init__(self, epsilon: float, first: float, report: Callable[[int], None]):
        self.epsilon, self.square, self.report, self.total = epsilon, first, report, 0.0

    def __call__(self, event: Event) -> Stop | None:
        squares = event.column("square")
        self.total += self.square + float(np.sum(squares[:-1]))
        self.square = float(squares[-1])
        self.report(event.step)
        # Clearly below, so that another order of summation cannot disagree.
        return Stop("the mean is below ε") if self.total / event.step < self.epsilon * (1 - 1e-9) else None


def with_calls(runs: Table, calls: Table, settings: dict[str, Any]) -> Table:
    """Add Gc(ε) and Mv(ε): counted calls per iteration times the iterations, and the calls of the warm-up."""
    iteration, warmup = 0, 1  # AID's rows of `calls`
    constants = constants_at(np.asarray(runs["kappa"]), settings)
    warmup_steps = theory.aid(constants).warmup_steps(settings["D_y"], settings["radius"])
    per = {name: np.asarray(calls[name]) for name in ("Gc", "Mv")}
    cost = {name: per[name][iteration] * runs["steps"] + per[name][warmup] * warmup_steps for name in per}
    return runs | {"warmup_steps": warmup_steps} | cost


def start(q: Quadratic) -> jax.Array:
    """Return x₀ = x° + Z^(−1/2)·1, so that Φ(x₀) − min Φ = ½ Σ z_i · (1/z_i) = 1."""
    return q.solution + 1 / jnp.sqrt(q.z)


TABLES = ("table1_exponents.csv", "table1_calls.csv", "table1_runs.csv")
TITLE = "Table 1: rates and oracle calls"
EXPERIMENT = Experiment("table1", TITLE, TABLES, settings, run)
