"""Findings of solvers, and the sentences that people read about them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_type_hints


@dataclass(frozen=True)
class Finding:
    """Fact about a run: a code and its numbers. `sentence` writes the English."""

    code: str
    numbers: dict[str, Any] = field(default_factory=dict)


def sentence(finding: Finding | str | None) -> str:
    """Return the finding as a sentence with its remedy; "" for None. A user's solver may pass a text."""
    if finding is None or isinstance(finding, str):
        return finding or ""
    return SENTENCES[finding.code](**finding.numbers)


def solvers_with(trait: str) -> str:
    """Return the public names of the solvers that declare a trait, as a list for an error message."""
    from bilevel import solvers  # it imports all solvers, which import this module

    factories = [name for name in solvers.__all__ if name != "kit"]  # pyright: ignore[reportAttributeAccessIssue]
    has = lambda name: getattr(get_type_hints(getattr(solvers, name))["return"].traits, trait)
    return ", ".join(f"bl.solvers.{name}" for name in factories if has(name))


def _indefinite(share: float, steps: int, own_damping: bool) -> str:
    cure = (
        "Pass a larger damping="
        if own_damping
        else "Take bl.adjoints.minres(), or bl.adjoints.damped(bl.adjoints.cg(), damping) with a larger damping"
    )
    return (
        f"Conjugate gradients met a direction along which g does not curve upwards, in {share:.0%} of the last {steps} "
        f"steps, and ended there: ∇²_yy g is not positive definite, and v solves no adjoint system. {cure}, or add a "
        "ridge to g."
    )


def _limit_reached(level: str, times: int, steps: int, limit: int) -> str:
    cure = {"inner": "a larger inner step size", "adjoint": "a ridge in g"}[level]
    return (
        f"In {times} of the last {steps} steps the {level} solve took all of its max_{level}_steps={limit}, and may "
        f"have missed its tolerance: raise that limit, or take {cure}, or a tolerance that decreases more slowly."
    )


def _not_convex(share: int, penalty: float, of_f: float, of_g: float) -> str:
    what = {1: "f", -1: "−f"}.get(share, f"{share}f")
    remedy = (
        f"raise the penalty well above {-share * of_f / of_g:.3g}"
        if of_g > 0
        else "g itself is not, so take bl.solvers.meha or an implicit method"
    )
    return (
        f"{what} + {penalty:.3g}·g is not convex in y (between the copies of y the curvature of f is {of_f:.3g} and "
        f"that of g {of_g:.3g}): {remedy}."
    )


def _stalled(count: int, thinned: bool, share: float = 1.0, norm: float | None = None) -> str:
    trials = f"the last {count} trials{' in the trace' if thinned else ''}"
    if norm is None:
        return f"It has stalled: {trials} were all NaN or infinite. Is project, or y or v at other x, not finite?"
    return (
        f"It has stalled: {share:.0%} of {trials} were refused, with an estimated hypergradient of {norm:.3g}. Either "
        "Φ is not smooth here (does y jump elsewhere?), or y or v cannot be found well enough (is g's Hessian "
        "singular, or the inner model a network?): take bl.aid with step sizes from bl.advise or bl.sweep."
    )


def _unsolved(what: str) -> Callable[..., str]:
    return (
        f"Do not rely on this x: {what}. y could not be found well enough where steps were judged, as where g has "
        "hardly any curvature left: bound x with project=, add a ridge to g, or start elsewhere."
    ).format


SENTENCES: dict[str, Callable[..., str]] = {
    "adjoint_indefinite": _indefinite,
    "limit_reached": _limit_reached,
    "not_convex": _not_convex,
    "outer_value_risen": _unsolved("the outer value has risen from {start:.3g} to {end:.3g}"),
    "inner_unsolved": _unsolved("the inner gradient is {gradient:.3g}, as large as at the start"),
    "trials_not_finite": _stalled,
    "trials_refused": _stalled,
}
