"""Figure 1: single-loop AID on the two-dimensional problem, measured and bounded, over κ and over K.

Every analysis certifies a step size of its own, so every analysis is drawn with the run that uses *its* steps:
a bound and the run it speaks of always share α, η and β. All runs are one vmapped call.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel import theory
from bilevel.lab.paper.experiment import Experiment, Options, Report
from bilevel.lab.paper.quadratic_runs import aid_norms, means, start
from bilevel.lab.paper.tables import Table
from bilevel.problems.two_dimensional import Quadratic

MU = 0.1
COEFFICIENT = 0.1  # of 1ᵀy in f; the paper's M
RHO = 0.1  # valid for every quadratic g, whose true ρ is 0
STEPS = 10_000
KAPPAS = np.geomspace(1.5, 20, 24)
KAPPA_RIGHT = 2.0  # of the right panel

# The paper sets M = 0.1, but ‖∇_y f‖ = 0.1·√2, which is what the lemmas for AID need of M. Both are computed.
M_VALUES = {"paper": COEFFICIENT, "valid": COEFFICIENT * np.sqrt(2)}


def settings(options: Options) -> dict[str, Any]:
    return {
        "mu": MU,
        "m": COEFFICIENT,
        "rho": RHO,
        "steps": STEPS,
        "kappas": KAPPAS.tolist(),
        "kappa_right": KAPPA_RIGHT,
        "M": M_VALUES,
    }


def run(settings: dict[str, Any], inputs: None, report: Report) -> dict[str, Table]:
    with jax.enable_x64(True):
        report(0.0, "certificates")
        kappas = np.append(settings["kappas"], settings["kappa_right"])
        cases = [
            case | {"M_is": label}
            for label, M in settings["M"].items()
            for case in certify(M, kappas, settings)
        ]
        report(0.2, f"{len(cases) * len(kappas)} runs of {settings['steps']:,} steps in one call")
        L = np.tile(kappas * settings["mu"], len(cases))
        sizes = [np.concatenate([case[name] for case in cases]) for name in ("alpha", "eta", "beta")]
        norms = aid_norms(
            settings["mu"], *map(jnp.asarray, (L, settings["m"], *sizes)), steps=settings["steps"]
        )
        norms = np.asarray(norms).reshape(len(cases), len(kappas), -1)
        report(1.0)
        return {
            "fig1_kappa.csv": over_kappa(cases, norms[:, :-1], kappas[:-1], settings["steps"]),
            "fig1_steps.csv": over_steps(cases, norms[:, -1], settings["steps"]),
            "fig1_setup.csv": setup(settings),
        }


def certify(M: float, kappas: np.ndarray, settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every analysis' step sizes for every κ, and its bound as a function of K."""
    L = kappas * settings["mu"]
    gap, v_error = start(settings["mu"], L, settings["m"])
    analyses = theory.analyses(theory.Constants(settings["mu"], L, M, settings["rho"]), "AID")
    for name, certificate in analyses.items():
        sizes = certificate.step_sizes(settings["steps"], gap, v_error=v_error)
        alpha, eta, beta = (np.broadcast_to(size, L.shape) for size in sizes)
        bound = partial(certificate.bound, gap=gap, v_error=v_error, beta=beta)
        yield {"analysis": name, "alpha": alpha, "eta": eta, "beta": beta, "bound": bound}


def over_kappa(cases: list[dict[str, Any]], norms: np.ndarray, kappas: np.ndarray, steps: int) -> Table:
    """One row for each (M, analysis, κ): the bound after K steps and what the run with those steps did."""
    n = len(kappas)
    return {
        "M_is": np.repeat([case["M_is"] for case in cases], n),
        "analysis": np.repeat([case["analysis"] for case in cases], n),
        "kappa": np.tile(kappas, len(cases)),
        "alpha": np.concatenate([case["alpha"][:n] for case in cases]),
        "eta": np.concatenate([case["eta"][:n] for case in cases]),
        "beta": np.concatenate([case["beta"][:n] for case in cases]),
        "bound": np.concatenate([case["bound"](steps)[:n] for case in cases]),
        "measured": means(norms)[..., -1].ravel(),
        "last": norms[..., -1].ravel(),
    }


def over_steps(cases: list[dict[str, Any]], norms: np.ndarray, steps: int) -> Table:
    """The same against K, at logarithmically spaced K and the one κ of the right panel."""
    K = np.unique(np.geomspace(1, steps, 60).round().astype(int))
    return {
        "M_is": np.repeat([case["M_is"] for case in cases], len(K)),
        "analysis": np.repeat([case["analysis"] for case in cases], len(K)),
        "steps": np.tile(K, len(cases)),
        "bound": np.concatenate([case["bound"](K[:, None])[:, -1] for case in cases]),
        "measured": means(norms)[:, K - 1].ravel(),
        "last": norms[:, K].ravel(),
    }


def setup(settings: dict[str, Any]) -> Table:
    """What the paper says of the problem beside what automatic differentiation of f(x, y*(x)) says, at x₀."""
    q = Quadratic(settings["mu"], settings["kappa_right"] * settings["mu"], settings["m"])
    x0 = jnp.ones(2)
    printed = q.z * x0 + q.L / q.z  # without the coefficient of f
    return {
        "quantity": ["gradient_of_Phi_printed", "gradient_of_Phi_corrected", "M"],
        "paper": [
            float(jnp.linalg.norm(printed)),
            float(jnp.linalg.norm(q.hypergradient(x0))),
            settings["m"],
        ],
        "ours": [
            *[float(jnp.linalg.norm(jax.grad(q.value)(x0)))] * 2,
            float(jnp.linalg.norm(jax.grad(q.f, argnums=1)(x0, q.inner_solution(x0)))),
        ],
    }


EXPERIMENT = Experiment(
    name="fig1",
    title="Figure 1: AID, measured and bounded",
    tables=("fig1_kappa.csv", "fig1_steps.csv", "fig1_setup.csv"),
    settings=settings,
    run=run,
)
