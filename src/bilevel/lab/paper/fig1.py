"""Figure 1: single-loop AID on the two-dimensional problem, measured and bounded, over κ and over K.

Every analysis certifies separate step sizes. So every bound is drawn with the run that uses *these* steps: a
bound and its run always share α, η and β. All runs are one vmapped call.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel import theory
from bilevel.lab.paper.experiment import Experiment, Options, Report
from bilevel.lab.paper.quadratic_runs import PROTOCOL, aid_norms, certified, columns, means, start
from bilevel.lab.paper.tables import Table
from bilevel.problems.two_dimensional import Quadratic

KAPPA_RIGHT = 2.0  # of the right panel


def settings(options: Options) -> dict[str, Any]:
    return PROTOCOL | {"kappa_right": KAPPA_RIGHT}


def run(settings: dict[str, Any], inputs: None, report: Report) -> dict[str, Table]:
    with jax.enable_x64(True):
        report(0.0, "certificates")
        kappas = np.append(settings["kappas"], settings["kappa_right"])
        cases = certified(certify, kappas, settings)
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
    """Yield every analysis' step sizes for every κ, and its bound as a function of K."""
    L = kappas * settings["mu"]
    gap, v_error = start(settings["mu"], L, settings["m"])
    analyses = theory.analyses(theory.Constants(settings["mu"], L, M, settings["rho"]), "AID")
    for name, certificate in analyses.items():
        sizes = certificate.step_sizes(settings["steps"], gap, v_error=v_error)
        alpha, eta, beta = (np.broadcast_to(size, L.shape) for size in sizes)
        bound = partial(certificate.bound, gap=gap, v_error=v_error, beta=beta)
        yield {"analysis": name, "alpha": alpha, "eta": eta, "beta": beta, "bound": bound}


def over_kappa(cases: list[dict[str, Any]], norms: np.ndarray, kappas: np.ndarray, steps: int) -> Table:
    """Return one row for each (M, analysis, κ): the bound after K steps, and the result of its run."""
    return columns(cases, kappas, "alpha", "eta", "beta") | {
        "bound": np.concatenate([case["bound"](steps)[: len(kappas)] for case in cases]),
        "measured": means(norms)[..., -1].ravel(),
        "last": norms[..., -1].ravel(),
    }


def over_steps(cases: list[dict[str, Any]], norms: np.ndarray, steps: int) -> Table:
    """Return the same against K, at logarithmically spaced K and the κ of the right panel."""
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
    """Return the paper's values at x₀ next to those from automatic differentiation of f(x, y*(x))."""
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
