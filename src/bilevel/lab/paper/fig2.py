"""Figure 2: single-loop ITD on the two-dimensional problem: its inherent error, measured and bounded from both sides.

The limit of ‖∇Φ(x_K)‖² does not depend on β, only the time it takes does. It is measured with β = 1/L, at which
10,000 steps are enough for every κ here (Φ has the Hessian Z = diag(L, μ)); the certified β are so small that at
κ = 20 the run has hardly left x₀. Both kinds of run are in the tables.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel import theory
from bilevel.lab.paper.experiment import Experiment, Options, Report
from bilevel.lab.paper.fits import scale
from bilevel.lab.paper.quadratic_runs import itd_norms, means, start
from bilevel.lab.paper.tables import Table
from bilevel.problems.two_dimensional import Quadratic

MU = 0.1
COEFFICIENT = 0.1  # of 1ᵀy in f; the paper's M
RHO = 0.1
STEPS = 10_000
KAPPAS = np.geomspace(1.5, 20, 24)
ANALYSES = ("earlier", "paper", "sharp", "tight")
TARGETS = {"measured_limit": 0.32, "lower_bound": 0.39, "lower_bound_strict": np.nan}  # the paper's factors
M_VALUES = {"paper": COEFFICIENT, "valid": COEFFICIENT * np.sqrt(2)}  # see fig1.py


def settings(options: Options) -> dict[str, Any]:
    return {
        "mu": MU,
        "m": COEFFICIENT,
        "rho": RHO,
        "steps": STEPS,
        "kappas": KAPPAS.tolist(),
        "M": M_VALUES,
    }


def run(settings: dict[str, Any], inputs: None, report: Report) -> dict[str, Table]:
    with jax.enable_x64(True):
        report(0.0, "certificates")
        kappas = np.asarray(settings["kappas"])
        cases = [
            certify(name, M, kappas, settings) | {"M_is": label, "analysis": name}
            for label, M in settings["M"].items()
            for name in ANALYSES
        ]
        L = kappas * settings["mu"]
        betas = np.concatenate([*(case["beta"] for case in cases), 1 / L])  # the last: for the limit
        report(0.2, f"{len(betas)} runs of {settings['steps']:,} steps in one call")
        norms = itd_norms(
            settings["mu"],
            jnp.asarray(np.tile(L, len(cases) + 1)),
            settings["m"],
            jnp.asarray(betas),
            steps=settings["steps"],
        )
        norms = np.asarray(norms).reshape(len(cases) + 1, len(kappas), -1)
        limits = over_kappa_limits(norms[-1, :, -1], kappas, settings)
        bounds = over_kappa(cases, norms[:-1], kappas)
        report(1.0)
        return {
            "fig2_kappa.csv": bounds,
            "fig2_limit.csv": limits | scaled(cases, limits),
            "fig2_factors.csv": factors(cases, limits),
        }


def certify(name: str, M: float, kappas: np.ndarray, settings: dict[str, Any]) -> dict[str, Any]:
    """The analysis' β for every κ, its bound after K steps and the part of it that no K removes; ŷ₀ = y*(x₀)."""
    L = kappas * settings["mu"]
    constants = theory.Constants(settings["mu"], L, M, settings["rho"])
    gap, _ = start(settings["mu"], L, settings["m"], 1 / L)
    analysis = {
        "earlier": theory.prior.itd,
        "paper": theory.itd,
        "sharp": theory.sharp.itd,
        "tight": theory.tight.itd,
    }[name]
    certificate = analysis(constants)
    if name in ("earlier", "paper"):
        beta, bound = certificate.beta, certificate.bound(settings["steps"], gap, 0.0)
    else:
        beta = certificate.best_beta(settings["steps"], gap)
        bound = certificate.bound(settings["steps"], gap, beta=beta)
    return {"beta": beta, "bound": bound, "inherent": certificate.inherent_error}


def over_kappa(cases: list[dict], norms: np.ndarray, kappas: np.ndarray) -> Table:
    """One row for each (M, analysis, κ): the bound, its inherent part, and what the run with that β did."""
    return {
        "M_is": np.repeat([case["M_is"] for case in cases], len(kappas)),
        "analysis": np.repeat([case["analysis"] for case in cases], len(kappas)),
        "kappa": np.tile(kappas, len(cases)),
        "beta": np.concatenate([case["beta"] for case in cases]),
        "bound": np.concatenate([case["bound"] for case in cases]),
        "inherent": np.concatenate([case["inherent"] for case in cases]),
        "measured": means(norms)[..., -1].ravel(),
        "last": norms[..., -1].ravel(),
    }


def over_kappa_limits(last: np.ndarray, kappas: np.ndarray, settings: dict[str, Any]) -> Table:
    """Where ITD ends, by a long run and by the closed form ‖∇Φ‖² = m²(κ − 1)², and the lower bounds."""
    L = kappas * settings["mu"]

    def limit(L: Any) -> jax.Array:
        q = Quadratic(settings["mu"], L, settings["m"])
        return jnp.sum(q.hypergradient(q.itd_limit(1 / L)) ** 2)

    lower = theory.lower_bound(theory.Constants(settings["mu"], L, settings["m"], settings["rho"]))
    return {
        "kappa": kappas,
        "measured_limit": last,
        "closed_form": np.asarray(jax.vmap(limit)(jnp.asarray(L))),
        "lower_bound": lower.value,
        "lower_bound_strict": lower.strict,
    }


def factors(cases: list[dict], limits: Table) -> Table:
    """By how much Theorem 5.17's inherent error must be multiplied to fall on each curve (M = 0.1)."""
    bound = _paper_inherent(cases)
    found = {curve: scale(bound, limits[curve]) for curve in TARGETS}
    return {
        "curve": list(found),
        "factor": [fit.factor for fit in found.values()],
        "low": [fit.low for fit in found.values()],
        "high": [fit.high for fit in found.values()],
        "paper_factor": [TARGETS[curve] for curve in found],
    }


def scaled(cases: list[dict], limits: Table) -> Table:
    """Theorem 5.17's inherent error times the measured factors: the right panel."""
    bound = _paper_inherent(cases)
    return {f"scaled_to_{curve}": scale(bound, limits[curve]).factor * bound for curve in TARGETS}


def _paper_inherent(cases: list[dict]) -> np.ndarray:
    return next(c["inherent"] for c in cases if (c["analysis"], c["M_is"]) == ("paper", "paper"))


EXPERIMENT = Experiment(
    name="fig2",
    title="Figure 2: ITD, its inherent error bounded from both sides",
    tables=("fig2_kappa.csv", "fig2_limit.csv", "fig2_factors.csv"),
    settings=settings,
    run=run,
)
