"""Claims about Φ for both algorithms: its smoothness, and the descent."""

from bilevel.theory.verification.inequalities.claim import Claims, at_most

PHI, PHI_BLOCKWISE = Claims(), Claims()


def half_over_smoothness(r, s):
    return at_most("β", s.beta, 1 / (2 * s.constants.L_Phi), "1/(2L_Φ)")


def one_over_smoothness(r, s):
    return at_most("βL_Φ", s.beta * s.blocks.L_Phi, 1.0, "its largest")


@PHI.add("Lemma A.1: ∇Φ is Lipschitz", "‖∇Φ(x_k) − ∇Φ(x_{k−1})‖ ≤ L_Φ‖x_k − x_{k−1}‖", first=1)
def lipschitz(r, s):
    return r.gradient_change[1:], s.constants.L_Phi * r.x_step[1:]


@PHI.add(
    "Theorems 5.9 and 5.17: descent",
    "Φ_{k+1} + (β/2 − β²L_Φ)‖∇Φ‖² ≤ Φ_k + (β/2 + β²L_Φ)‖∇̂Φ − ∇Φ‖²",
    half_over_smoothness,
)
def descent(r, s):
    slack = s.beta**2 * s.constants.L_Phi
    left = r.next_value + (s.beta / 2 - slack) * r.gradient**2
    return left, r.value + (s.beta / 2 + slack) * r.estimate_error**2


@PHI_BLOCKWISE.add(
    "Lemma A.1, block by block",
    "‖∇Φ(x_k) − ∇Φ(x_{k−1})‖ ≤ (Λ_xx + 2Λ_xy·L_xy/μ + Λ_yy·L_xy²/μ²)‖x_k − x_{k−1}‖",
    first=1,
)
def lipschitz_blockwise(r, s):
    return r.gradient_change[1:], s.blocks.L_Phi * r.x_step[1:]


@PHI_BLOCKWISE.add(
    "exact gain: descent",
    "Φ_{k+1} + (β/2)‖∇Φ‖² ≤ Φ_k + (β/2)‖∇̂Φ − ∇Φ‖²",
    one_over_smoothness,
)
def exact_descent(r, s):
    left = r.next_value + s.beta / 2 * r.gradient**2
    return left, r.value + s.beta / 2 * r.estimate_error**2


@PHI_BLOCKWISE.add(
    "star: descent with the step kept",
    "Φ_{k+1} + (β/2)‖∇Φ‖² + (β/2)(1 − βL_Φ)‖∇̂Φ‖² ≤ Φ_k + (β/2)‖∇̂Φ − ∇Φ‖²",
    one_over_smoothness,
)
def kept_descent(r, s):
    """Keep ‖h_k‖² = ‖x_{k+1} − x_k‖²/β² on the left. The step of the last iteration is not measured."""
    kept = (1 - s.beta * s.blocks.L_Phi) * (r.x_step[1:] / s.beta) ** 2
    left, right = (side[:-1] for side in exact_descent(r, s))
    return left + s.beta / 2 * kept, right
