"""Sentences that explain a run, with the next thing to do. The detectors return codes and numbers."""

from collections.abc import Mapping
from typing import Any

MOVES = {"inner": "y", "adjoint": "v", "outer": "x"}  # the variables that the levels move
DEPENDS = "Does f depend on x, or ∇_y g on x, at all?"

PARTS = (  # that are not finite
    "the inner objective g",
    "the gradient of the inner objective g, though not its value,",
    "the outer objective f",
    "the gradient of the outer objective f, though not its value,",
    "a second derivative of the inner objective g, though not its gradient,",
)
SENTENCES = {
    # Why a run became infinite or NaN.
    "beyond": "the {level} step size {size:.3g} is above 2/L = {limit:.3g}, with L = {L:.3g} the largest curvature "
    "of g in y",
    "not_finite": "{part} is NaN or infinite {where} (is a logarithm, a root or a quotient at the edge of its "
    "domain, is a label no class, as if classes were counted from 1, or are numbers too large for "
    "{kinds}?){no_cure}: check it there, scale it down, or keep x and y away from such points.",
    "no_slope": "the derivative of the inner rule, which this method needs, is NaN or infinite at that state, "
    "though its step is not. Adam and similar rules have an infinite slope where an entry of ∇_y g is exactly 0 (a "
    "dead unit, or a number that bfloat16 rounds to 0): pass eps_root=1e-8. So has clipping by a norm where all "
    "entries are 0.",
    "faulty_map": "{map} returns NaN or infinity, or has such a derivative, for a finite {variable}: test it "
    "{where}, and return a finite point of the set for every input (is a root, a quotient or a logarithm at the "
    "edge of its domain?).",
    "climbs": "the {level} rule steps along the gradient instead of against it, as with a negative learning rate. "
    "Does a schedule fall below zero? Pass one that stays positive (optax.cosine_decay_schedule, or "
    "jnp.maximum(..., 0)).",
    "unbounded_g": "g has no lower bound in y: with x as at step {step} it falls from {start:.3g} to {end:.3g} "
    "along the path of y. No step size helps: add a ridge to g (0.5 * c * ‖y‖²), or bound y (bl.projected).",
    "unbounded_f": "f has no lower bound: its value fell from {start:.3g} to {end:.3g}, and x and y followed. No "
    "step size helps: add a term that grows with x to f, or bound x (bl.projected).",
    "negative_curvature": "g is not convex in y: at step {step} it curves by {mu:.2g} along some direction, against "
    "{L:.2g} at most. Every step on v grows v along that direction, and no step size helps: add a ridge to g (0.5 * "
    "c * ‖y‖²), or take another adjoint (bl.adjoints.damped, bl.adjoints.gauss_newton).",
    "led_to_large_step": "lower the outer step size, or bound x (bl.projected): x moved to where {beyond}; at step "
    "{step} that limit was {earlier:.3g}. bl.advise proposes step sizes, and bl.sweep tries several.",
    # Why x did not move. `name` is the measure: the hypergradient or the stationarity measure.
    "still_not_finite": " The last {count:,} steps no longer moved x: the {name} has a norm that is not finite. "
    'Scale f down, or compute with more bits (jax.config.update("jax_enable_x64", True)).',
    "still_on_batches": " The last {count:,} steps no longer moved x; on their batches the {name} was at most "
    "{norm:.3g}.",
    "still_zero": " The last {count:,} steps no longer moved x: the {name} has become exactly zero, also at points "
    "close to x and y. `bl.RunOptions(diagnose=True)` looks for the reason.",
    "steps_too_small": " The last {count:,} steps no longer moved x, though the {name} is {norm:.3g}: the outer "
    "steps are too small to change x in {kinds}, or their schedule has ended. Raise the outer step size.",
    "converged": " x has converged to rounding: the last {count:,} steps did not change it, and the {name} fell "
    "from {largest:.3g} to {norm:.3g}.",
    "on_boundary": " x has not moved: its projection undoes every step, as at a solution on the boundary of the "
    "set.",
    "not_moved": " x has not moved: the estimated hypergradient is exactly zero at every step. Does f depend on x, "
    "or ∇_y g on x, at all, or did x start at a solution?",
    "started_stationary": " x has not moved: it started where the estimated hypergradient is exactly zero, as at a "
    "solution; at points close to it, the hypergradient is not zero.",
    "never_moved": " x has never moved: the estimated hypergradient is exactly zero at every step. {why}",
    # Why a hypergradient is zero, also at points close to x and y.
    "squares_underflow": "Its entries are not zero, but at most {largest:.2g}, and their squares underflow: multiply f "
    "by a large number.",
    "rule_has_no_slope": "The inner rule uses the gradient's sign only (as optax.lion and optax.sign_sgd do): its "
    "derivative is exactly zero, and this method differentiates it. Pass a rule with a slope, such as optax.sgd or "
    "optax.adam.",
    "y_held": "The inner rule does not move y, or not the part of y on which x acts (optax.set_to_zero, a mask, or a "
    "learning rate of 0?): pass a rule that does.",
    "g_piecewise_linear": "g is piecewise linear in y: its second derivatives are exactly zero, and x acts on y only "
    "through them. Make g smooth (for |y|, jnp.sqrt(y**2 + 1e-6)), or pass its non-smooth term as prox= (bl.prox.l1).",
    "f_flat_in_y": "∇_y f is exactly zero too, also at points close to x and y: does f depend on y, are all margins of "
    "a hinge loss met, are all units dead, or are its numbers so small that they underflow?",
    "underflow": "f underflows: in float64 its gradient is {largest:.2g}, below the smallest number of {kind}, "
    "{least:.2g}. Multiply f by a large number, or compute in float64.",
    # Findings of a diagnosis, about the later looks.
    "diverged": "the run diverged; its status says what to do. Step sizes and lags are not judged by these looks, "
    "as the variables had run away before the last one.",
    "large_step": "{beyond} {where}: there a step moves {variable} away from its target. Lower it to 1/L = "
    "{best:.3g}",
    "outer_step": "the outer step size {size:.3g} is above 2/L_Φ ≈ {limit:.3g}, with L_Φ ≈ {L:.3g} a crude "
    "estimate from the change of the hypergradient between looks: lower it below {best:.2g}.",
    "scale_free": "{names}: g depends on entries of it only through the scale of g, and the inner rule does not "
    "depend on that scale, as it divides gradients by their size (Adam and similar rules). So these entries do not "
    "change the limit of y, and their hypergradient is meaningless: rounding, or the lag of y. Use optax.sgd for "
    "y, or let x enter g in another way.",
    "inner_nan": "g is NaN or infinite at {bad} of {looks} looks, though its gradient in y, which all steps use, "
    "is finite: check the data (is a label no class, as if classes were counted from 1?), and terms without y.",
    "not_convex": "the inner problem is not convex here: along some direction in y it curves by {mu:.2g}, against "
    "{L:.2g} at most. The hypergradient then belongs to no minimum, and conjugate gradients stop "
    "early{unmeasured}: add a ridge to g{damping}.",
    "flat": "along some direction in y the inner problem curves by no more than {mu:.2g}, so κ is at least "
    "{condition:.2g}, and {steps} gradient steps hardly move y there: add a ridge to g, or take more inner "
    "steps.{freeze}",
    "adjoint_lags": "the adjoint lags: its residual is {residual:.2g} of ‖∇_y f‖, and its hypergradient is {error} "
    "off the implicit one at the same y. {remedy}",
    "adjoint_barely_moved": "the adjoint has barely moved from its zero start: {steps} steps of {size:.2g} cover "
    "at most {way:.1%} of its way, so the implicit term of the hypergradient is mostly missing. Raise the adjoint "
    "step size toward 1/L ≈ {best:.2g}.",
    "y_lags": "y lags x: it is about {distance:.2g} from y*(x), which puts the hypergradient {error} off. {remedy}",
    "raise_step": "Raise the {level} step size {size:.3g} toward 1/L ≈ {best:.3g}, {more}, or lower the outer step.",
    "biased": "{name}'s hypergradient is {error} off the implicit one at the same y: {remedy}, or bl.aid, which "
    "has no bias.",
    "enough_steps": "{verb} about {count:.0f} inner steps instead of {now}{where}, with which ∇Φ can fall to a "
    "thousandth of its size",
    "inner_grows": "the inner residual grows, from {first:.2g} at the first look to {last:.2g} at the last: lower "
    "the inner learning rate, or the outer one.",
    "outer_grows": "the outer value grows, from {start:.2g} to {end:.2g}: lower the outer step size{of}{others}.",
    "y_dead": "{objectives} not depend on y any more: the gradient in y is exactly zero, also at points close to x "
    "and y, as if all ReLUs are dead, a clip is at its end or y is not used. Start elsewhere, with smaller steps "
    "on y, or with activations that have a slope everywhere.{hinge}",
    "y_mostly_dead": "f does not depend on most of y: its gradient is exactly zero, also at points close to x and "
    "y, in whole arrays with {percent:.3g} % of the numbers in y, as if a layer of ReLUs is dead, a clip is at its "
    "end, or f does not use them. Start elsewhere, with smaller steps on y or inputs of size one, or with "
    "activations that have a slope everywhere.",
    "x_dead": "the hypergradient is exactly zero{when}, also at points close to x and y, so x cannot move. {why} Look "
    "for a stop_gradient, a rounding, a clip at its end, dead units, or a penalty that holds all of y at zero.",
    "x_unused": "the hypergradient of {names} is exactly zero at every look, also at points close to x and y: "
    "neither f nor ∇_y g depends on it{batches}. Is there an unused name, a term of g without y, a stop_gradient, "
    "or a clip at its end?",
    "x_started_stationary": "x has stayed at its start, where the hypergradient is exactly zero, but not at points "
    "close to it. That is fine if it is a solution; otherwise start elsewhere.",
    "x_held": "x has stayed at its start, as its projection or threshold has undone every step on it. That is fine "
    "if it is a solution; otherwise start elsewhere.",
    "x_rests": "x has converged: {moved}, and the stationarity measure has fallen from {largest:.2g} to {norm:.2g}. "
    "The run could have ended earlier (tol=).",
    "x_still": "x has stopped moving though the hypergradient has not fallen: {moved}, with {norm:.2g} left of "
    "{largest:.2g}. {lag}The outer step size{of} is too small for a hypergradient of that size, or its schedule "
    "has ended: raise it.",
    "late_adjoint": "It may be small because v lags, with a residual of {residual:.2g} of ‖∇_y f‖: first raise the "
    "adjoint step size {size:.2g} toward 1/L ≈ {best:.2g}, and the inner one. Otherwise: ",
}
FREEZE = " (Is a part of y behind a stop_gradient? Freeze it by the rule instead.)"
HINGE = (
    " For a hinge loss it means that all margins are met. An f with the value 0 may underflow: multiply it by a large "
    "number."
)


def say(code: str, **numbers: Any) -> str:
    """Return the sentence of this code with its numbers."""
    return SENTENCES[code].format(**numbers)


def beyond(level: str, size: float, L: float) -> str:
    return say("beyond", level=level, size=size, limit=2 / L, L=L)


def large_step(sizes: Mapping[str, float], L: float, where: str, close: bool = False) -> str:
    """Explain plain steps on y or v that are too large. If `close` to the limit, mention the outer step."""
    (level, size), *others = sizes.items()
    text = say("large_step", beyond=beyond(level, size, L), where=where, variable=MOVES[level], best=1 / L)
    text += "".join(f", and the {other} step size {also:.3g} too" for other, also in others)
    return (
        f"{text}.{' It is not far above: if that does not help, lower the outer step size.' if close else ''}"
    )


def why_zero(beside: Mapping[str, Any]) -> str:
    """Explain a hypergradient of zero by the measurements of `look_beside`."""
    if (largest := beside["hypergradient_largest"]) > 0:
        return say("squares_underflow", largest=largest)
    if beside.get("stepwise"):
        return say("rule_has_no_slope")
    if beside["held"]:
        return say("y_held")
    if beside["curvature_beside"] == 0 and beside["inner_beside"] > 0:
        return say("g_piecewise_linear")
    return say("f_flat_in_y") if beside["outer_beside"] == 0 else DEPENDS


def share(error: float) -> str:
    return f"{error:.0%}" if error < 10 else f"{error:.2g} times its size"
