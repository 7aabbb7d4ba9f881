"""Claims of the certificates in `analyses.METHODS`: their bounds, and the recursions of error systems."""

from functools import cache, lru_cache
from typing import Any

import numpy as np

from bilevel.theory.certificates.analyses import METHODS
from bilevel.theory.certificates.certificate import Certificate
from bilevel.theory.verification.inequalities.claims import ROUNDING, Claim, Setting, Sides, at_most, equal
from bilevel.theory.verification.measurement import Run

NAMES = {
    ("AID", "paper"): "Theorem 5.9: bound",
    ("ITD", "paper"): "Theorem 5.17: bound",
    ("AID", "earlier"): "Theorem 5.11: earlier bound, made explicit",
    ("ITD", "earlier"): "earlier bound, made explicit",
}
SYSTEMS = ("sharp", "tight", "star")
AT_SOLUTION = ("earlier", "star")  # compare v̂ with v* at y*; the others use ṽ* at ŷ


@cache
def certificate_claims(method: str, analyses: tuple[str, ...] | None = None) -> tuple[Claim, ...]:
    """Return the claims of all certificates for `method`, or only for the listed `analyses`."""
    return tuple(claim for name in analyses or METHODS[method] for claim in _claims(method, name))


@lru_cache(maxsize=16)
def made_for(s: Setting, analysis: str) -> Certificate:
    """Return the certificate for the run's constants, and for its steps and start if it depends on them."""
    make = METHODS[s.method][analysis]
    if analysis == "star":
        steps = {"AID": (s.eta, s.inner_steps, s.adjoint_steps), "ITD": (), "SOBA": (s.eta,)}[s.method]
        return make(s.constants, s.alpha, *steps)
    return make(s.constants, s.R_y) if s.method == "ITD" and analysis != "tight" else make(s.constants)


def _errors(r: Run, s: Setting, analysis: str) -> tuple[np.ndarray, np.ndarray]:
    if s.method == "ITD":
        return (r.warm_error if analysis in ("tight", "star") else r.y_error), np.zeros_like(r.y_error)
    return r.y_error, (r.v_star_error if analysis in AT_SOLUTION else r.v_error)


def _claims(method: str, analysis: str) -> list[Claim]:
    """Return the recursions of an error system, d_k = ‖x_k − x_{k−1}‖, and the bound."""

    def steps(r: Run, s: Setting) -> str | None:
        """Object unless the run contracts and takes the analysis' own α and η."""
        for symbol, name in (("α", "alpha"), ("η", "eta")):
            if (step := getattr(s, name)) is None:
                continue
            if not max(abs(1 - step * s.blocks.mu), abs(step * s.blocks.L_yy - 1)) < 1:
                return f"{symbol} = {step:.3g} is not below 2/L = {2 / s.blocks.L_yy:.3g}"
            if objection := equal(symbol, step, getattr(made_for(s, analysis), name), "the analysis' step"):
                return objection
        return None

    def bound(r: Run, s: Setting) -> Any:
        """Return the bound for K = 1, 2, …; infinite where β is not certified for so many steps."""
        c, first = made_for(s, analysis), tuple(error[0] for error in _errors(r, s, analysis))
        beta = min(s.beta, c.beta_max) if s.beta <= c.beta_max * (1 + ROUNDING) else s.beta
        return c.bound_from(_horizons(r), r.descent, first, np.full(len(r.gradient), beta))

    def certified(r: Run, s: Setting) -> str | None:
        largest = made_for(s, analysis).beta_max
        too_long = at_most("β", s.beta, largest, f"the largest that {analysis} certifies")
        return too_long if too_long and not np.isfinite(bound(r, s)).any() else None

    def mean(r: Run, s: Setting) -> Sides:
        return np.cumsum(r.gradient**2) / _horizons(r), bound(r, s)

    def states(r: Run, s: Setting) -> tuple[Any, ...]:
        c: Any = made_for(s, analysis)
        w, u = (weight * error for weight, error in zip(c.weights, _errors(r, s, analysis), strict=True))
        return c.system, w, u

    def inner(r: Run, s: Setting) -> Sides:
        system, w, _ = states(r, s)
        return w[1:], system.r0 * w[:-1] + system.q0 * r.x_step[1:]

    def adjoint(r: Run, s: Setting) -> Sides:
        system, w, u = states(r, s)
        return u[1:], system.p * w[:-1] + system.r1 * u[:-1] + system.q1 * r.x_step[1:]

    def estimate(r: Run, s: Setting) -> Sides:
        system, w, u = states(r, s)
        return r.estimate_error, system.c0 * w + u + system.C5

    of_w, of_u = "w_k ≤ r₀w_{k−1} + q₀‖x_k − x_{k−1}‖", "u_k ≤ p·w_{k−1} + r₁u_{k−1} + q₁‖x_k − x_{k−1}‖"
    recursions = [
        Claim(f"{analysis}: inner error", of_w, inner, (steps,), first=1),
        Claim(f"{analysis}: adjoint error", of_u, adjoint, (steps,), first=1),
        Claim(f"{analysis}: hypergradient error", "‖∇̂Φ − ∇Φ‖ ≤ c₀w_k + u_k + C₅", estimate, (steps,)),
    ]
    if method == "ITD":
        del recursions[1]
    name = NAMES.get((method, analysis), f"{analysis}: bound")
    on_mean = Claim(name, "mean of ‖∇Φ‖² over K steps ≤ bound(K)", mean, (steps, certified), first=1)
    return [*(recursions if analysis in SYSTEMS else []), on_mean]


def _horizons(r: Run) -> np.ndarray:
    """Return K = 1, 2, …, because every prefix of a run is a run."""
    return np.arange(1, len(r.gradient) + 1)
