"""Figure 2: single-loop ITD on the two-dimensional problem, with its inherent error, measured and bounded.

The limit of ‖∇Φ(x_K)‖² does not depend on β; only the number of steps does. It is measured with β = 1/L, for
which 10,000 steps are enough at every κ here (Φ has the Hessian Z = diag(L, μ)). The certified β are so small
that at κ = 20 the run has hardly left x₀. Both kinds of run are in the tables. The limit depends on α, which
is 1/L in every analysis except `star`; the limit for its α = 2/(L + μ) is measured as well.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel import theory
from bilevel.lab.paper.experiment import Experiment, Options, Report
from bilevel.lab.paper.fits import scale
from bilevel.lab.paper.quadratic_runs import PROTOCOL, Case, Start, certified, norms_of, over_kappa
from bilevel.lab.paper.tables import Table
from bilevel.problems.two_dimensional import Quadratic
from bilevel.solvers.algorithms.itd import itd

TARGETS = {"measured_limit": 0.32, "lower_bound": 0.39, "lower_bound_strict": np.nan}  # the paper's factors


def settings(options: Options) -> dict[str, Any]:
    return PROTOCOL


def run(settings: dict[str, Any], inputs: None, report: Report) -> dict[str, Table]:
    with jax.enable_x64(True):
        report(0.0, "certificates")
        kappas = np.asarray(settings["kappas"])
        cases = certified("ITD", case, kappas, settings)
        beta = 1 / (kappas * settings["mu"])
        to_the_end = [{"alpha": alpha, "beta": beta} for alpha in inner_steps(kappas, settings).values()]
        runs = [*cases, *to_the_end]
        report(0.2, f"{len(runs) * len(kappas)} runs of {settings['steps']:,} steps in one call")
        norms = norms_of(itd, runs, kappas, settings)
        limits = over_kappa_limits(norms[len(cases) :, :, -1], kappas, settings)
        factors, products = scaled(cases, limits)
        report(1.0)
        names = ("alpha", "beta", "bound", "inherent")
        bounds = over_kappa(cases, norms[: len(cases)], kappas, *names)
        return {"fig2_kappa.csv": bounds, "fig2_limit.csv": limits | products, "fig2_factors.csv": factors}


def case(certificate: theory.Certificate, begin: Start, L: np.ndarray, steps: int) -> Case:
    """Return the step sizes for every κ, the bound after all steps and the inherent error; y₀ = y*(x₀)."""
    beta = certificate.best_beta(steps, begin.gap)
    return {
        "alpha": certificate.alpha,
        "beta": beta,
        "bound": certificate.bound(steps, begin.gap, beta=beta),
        "inherent": certificate.inherent_error,
    }


def inner_steps(kappas: np.ndarray, settings: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the inner step sizes whose limits are measured, by the suffix of their columns."""
    L = kappas * settings["mu"]
    return {"": 1 / L, "_star": 2 / (L + settings["mu"])}


def over_kappa_limits(last: np.ndarray, kappas: np.ndarray, settings: dict[str, Any]) -> Table:
    """Return ITD's limit, measured and in closed form (m²(κ − 1)² for α = 1/L), and the lower bounds."""
    L = kappas * settings["mu"]

    def limit(L: Any, alpha: Any) -> jax.Array:
        q = Quadratic(settings["mu"], L, settings["m"])
        return jnp.sum(q.hypergradient(q.itd_limit(alpha)) ** 2)

    ends = {}
    for (of, alpha), measured in zip(inner_steps(kappas, settings).items(), last, strict=True):
        closed_form = np.asarray(jax.vmap(limit)(jnp.asarray(L), jnp.asarray(alpha)))
        ends |= {f"measured_limit{of}": measured, f"closed_form{of}": closed_form}
    lower = theory.lower_bound(theory.Constants(settings["mu"], L, settings["m"], settings["rho"]))
    return {"kappa": kappas, **ends, "lower_bound": lower.value, "lower_bound_strict": lower.strict}


def scaled(cases: list[Case], limits: Table) -> tuple[Table, Table]:
    """Return the factor that puts Theorem 5.17's inherent error on each curve (M = 0.1), and its product with it."""
    bound = next(c["inherent"] for c in cases if (c["analysis"], c["M_is"]) == ("paper", "paper"))
    fits = {curve: scale(bound, limits[curve]) for curve in TARGETS}
    fitted = {name: [getattr(fit, name) for fit in fits.values()] for name in ("factor", "low", "high")}
    products = {f"scaled_to_{curve}": fit.factor * bound for curve, fit in fits.items()}
    return {"curve": list(TARGETS), **fitted, "paper_factor": list(TARGETS.values())}, products


TITLE = "Figure 2: ITD, its inherent error bounded from both sides"
TABLES = ("fig2_kappa.csv", "fig2_limit.csv", "fig2_factors.csv")
EXPERIMENT = Experiment("fig2", TITLE, TABLES, settings, run)
