"""Figure 1: single-loop AID on the two-dimensional problem, measured and bounded, over κ and over K.

Every analysis certifies separate step sizes. So every bound is drawn with the run that uses *these* steps: a
bound and its run always share α, η and β. All runs are one vmapped call.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel import theory
from bilevel.lab.paper.experiment import Experiment, Options, Report
from bilevel.lab.paper.quadratic_runs import (
    PROTOCOL,
    Case,
    Start,
    certified,
    means,
    norms_of,
    over_kappa,
)
from bilevel.lab.paper.tables import Table
from bilevel.problems.two_dimensional import Quadratic
from bilevel.solvers.algorithms.aid import aid

KAPPA_RIGHT = 2.0  # of the right panel


def settings(options: Options) -> dict[str, Any]:
    return PROTOCOL | {"kappa_right": KAPPA_RIGHT}


def run(settings: dict[str, Any], inputs: None, report: Report) -> dict[str, Table]:
    with jax.enable_x64(True):
        report(0.0, "certificates")
        kappas, steps = np.append(settings["kappas"], settings["kappa_right"]), settings["steps"]
        cases = certified("AID", case, kappas, settings)
        report(0.2, f"{len(cases) * len(kappas)} runs of {steps:,} steps in one call")
        norms = norms_of(aid, cases, kappas, settings)
        report(1.0)
        left = over_kappa(cases, norms[:, :-1], kappas[:-1], "alpha", "eta", "beta", "bound")
        right = over_steps(cases, norms[:, -1], steps)
        return {"fig1_kappa.csv": left, "fig1_steps.csv": right, "fig1_setup.csv": setup(settings)}


def case(certificate: theory.Certificate, begin: Start, L: np.ndarray, steps: int) -> Case:
    """Return the step sizes for every κ, the bound after all steps, and the bound as a function of K."""
    sizes = certificate.step_sizes(steps, begin.gap, v_error=begin.v_error)
    alpha, eta, beta = (np.broadcast_to(size, L.shape) for size in sizes)
    bound = partial(certificate.bound, gap=begin.gap, v_error=begin.v_error, beta=beta)
    return {"alpha": alpha, "eta": eta, "beta": beta, "bound": bound(steps), "bound_after": bound}


def over_steps(cases: list[Case], norms: np.ndarray, steps: int) -> Table:
    """Return the bounds and runs against K, at logarithmically spaced K and the κ of the right panel."""
    K = np.unique(np.geomspace(1, steps, 60).round().astype(int))
    return {
        "M_is": np.repeat([case["M_is"] for case in cases], len(K)),
        "analysis": np.repeat([case["analysis"] for case in cases], len(K)),
        "steps": np.tile(K, len(cases)),
        "bound": np.concatenate([case["bound_after"](K[:, None])[:, -1] for case in cases]),
        "measured": means(norms)[:, K - 1].ravel(),
        "last": norms[:, K].ravel(),
    }


def setup(settings: dict[str, Any]) -> Table:
    """Return the paper's values at x₀ next to those from automatic differentiation of f(x, y*(x))."""
    q = Quadratic(settings["mu"], settings["kappa_right"] * settings["mu"], settings["m"])
    x0 = jnp.ones(2)
    norm = lambda vector: float(jnp.linalg.norm(vector))
    printed = q.z * x0 + q.L / q.z  # without the coefficient of f
    return {
        "quantity": ["gradient_of_Phi_printed", "gradient_of_Phi_corrected", "M"],
        "paper": [norm(printed), norm(q.hypergradient(x0)), settings["m"]],
        "ours": [
            *[norm(jax.grad(q.value)(x0))] * 2,
            norm(jax.grad(q.f, argnums=1)(x0, q.inner_solution(x0))),
        ],
    }


TITLE = "Figure 1: AID, measured and bounded"
TABLES = ("fig1_kappa.csv", "fig1_steps.csv", "fig1_setup.csv")
EXPERIMENT = Experiment("fig1", TITLE, TABLES, settings, run)
