"""Claims of the certificates: the recursions of those that are error systems, and the bound of each.

The certificates are read from `analyses.METHODS`. What is said here is where on a run each one's errors are seen.
"""

from functools import cache, lru_cache
from typing import Any

import numpy as np

from bilevel.theory.certificates.analyses import METHODS
from bilevel.theory.certificates.certificate import Certificate
from bilevel.theory.verification.inequalities.claim import (
    ROUNDING,
    Claim,
    Setting,
    Sides,
    at_most,
    equal,
    horizons,
    running_mean,
)
from bilevel.theory.verification.measurement import Run

NAMES = {
    ("AID", "paper"): "Theorem 5.9: bound",
    ("ITD", "paper"): "Theorem 5.17: bound",
    ("AID", "earlier"): "Theorem 5.11: earlier bound, made explicit",
    ("ITD", "earlier"): "earlier bound, made explicit",
}
SYSTEMS = ("sharp", "tight", "star")
AT_SOLUTION = ("earlier", "star")  # compare v̂ with v* at y*; the others with ṽ* at ŷ


@cache
def certificate_claims(method: str, analyses: tuple[str, ...] | None = None) -> tuple[Claim, ...]:
    """The claims of the certificates for `method`: all, or those of the `analyses` named."""
    return tuple(claim for name in analyses or METHODS[method] for claim in _claims(method, name))


@lru_cache(maxsize=16)
def made_for(s: Setting, analysis: str) -> Certificate:
    """The certificate for the run's constants, and for its steps and its start where it leaves a choice."""
    make = METHODS[s.method][analysis]
    if analysis == "star":
        steps = {"AID": (s.eta, s.inner_steps, s.adjoint_steps), "ITD": (), "SOBA": (s.eta,)}[s.method]
        return make(s.constants, s.alpha, *steps)
    return make(s.constants, s.R_y) if s.method == "ITD" and analysis != "tight" else make(s.constants)


def _errors(r: Run, s: Setting, analysis: str) -> tuple[np.ndarray, np.ndarray]:
    """The two errors of every iteration that the analysis speaks of."""
    if s.method == "ITD":
        return (r.warm_error if analysis in ("tight", "star") else r.y_error), np.zeros_like(r.y_error)
    return r.y_error, (r.v_star_error if analysis in AT_SOLUTION else r.v_error)


def _claims(method: str, analysis: str) -> tuple[Claim, ...]:
    """w_k ≤ r₀w_{k−1} + q₀d_k, u_k ≤ p·w_{k−1} + r₁u_{k−1} + q₁d_k, e_k ≤ c₀w_k + u_k + C₅, and the bound."""

    def steps(r: Run, s: Setting) -> str | None:
        """The run has to contract, and to take the analysis' own α and η."""
        for symbol, name in (("α", "alpha"), ("η", "eta")):
            if (step := getattr(s, name)) is None:
                continue
            if objection := _not_contracting(s, symbol, step):
                return objection
            if objection := equal(symbol, step, getattr(made_for(s, analysis), name), "the analysis' step"):
                return objection
        return None

    def bound(r: Run, s: Setting) -> Any:
        """At every horizon; infinite where β is not certified for so many steps."""
        c, first = made_for(s, analysis), tuple(error[0] for error in _errors(r, s, analysis))
        beta = min(s.beta, c.beta_max) if s.beta <= c.beta_max * (1 + ROUNDING) else s.beta
        return c.bound_from(horizons(r), r.descent, first, np.full(len(r.gradient), beta))

    def certified(r: Run, s: Setting) -> str | None:
        too_long = at_most(
            "β", s.beta, made_for(s, analysis).beta_max, f"the largest that {analysis} certifies"
        )
        return too_long if too_long and not np.isfinite(bound(r, s)).any() else None

    def mean(r: Run, s: Setting) -> Sides:
        return running_mean(r.gradient**2), bound(r, s)

    def states(r: Run, s: Setting) -> tuple[Any, ...]:
        c: Any = made_for(s, analysis)
        return c.system, *(
            weight * error for weight, error in zip(c.weights, _errors(r, s, analysis), strict=True)
        )

    def inner(r: Run, s: Setting) -> Sides:
        system, w, _ = states(r, s)
        return w[1:], system.r0 * w[:-1] + system.q0 * r.x_step[1:]

    def adjoint(r: Run, s: Setting) -> Sides:
        system, w, u = states(r, s)
        return u[1:], system.p * w[:-1] + system.r1 * u[:-1] + system.q1 * r.x_step[1:]

    def estimate(r: Run, s: Setting) -> Sides:
        system, w, u = states(r, s)
        return r.estimate_error, system.c0 * w + u + system.C5

    drift, recursions = "‖x_k − x_{k−1}‖", []
    if analysis in SYSTEMS:
        statement = f"w_k ≤ r₀w_{{k−1}} + q₀{drift}"
        recursions.append(Claim(f"{analysis}: inner error", statement, inner, (steps,), first=1))
    if analysis in SYSTEMS and method != "ITD":
        statement = f"u_k ≤ p·w_{{k−1}} + r₁u_{{k−1}} + q₁{drift}"
        recursions.append(Claim(f"{analysis}: adjoint error", statement, adjoint, (steps,), first=1))
    if analysis in SYSTEMS:
        statement = "‖∇̂Φ − ∇Φ‖ ≤ c₀w_k + u_k + C₅"
        recursions.append(Claim(f"{analysis}: hypergradient error", statement, estimate, (steps,)))
    name = NAMES.get((method, analysis), f"{analysis}: bound")
    statement = "mean of ‖∇Φ‖² over K steps ≤ bound(K)"
    return *recursions, Claim(name, statement, mean, (steps, certified), first=1)


def _not_contracting(s: Setting, symbol: str, step: float) -> str | None:
    if max(abs(1 - step * s.blocks.mu), abs(step * s.blocks.L_yy - 1)) < 1:
        return None
    return f"{symbol} = {step:.3g} is not below 2/L = {2 / s.blocks.L_yy:.3g}"
