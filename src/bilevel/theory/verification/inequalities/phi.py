"""Claims about Φ that both algorithms rest on: its smoothness, and the descent it gives."""

from bilevel.theory.verification.inequalities.claim import Claim, at_most


def _lipschitz(r, s):
    return r.gradient_change[1:], s.constants.L_Phi * r.x_step[1:]


def _lipschitz_blockwise(r, s):
    return r.gradient_change[1:], s.blocks.L_Phi * r.x_step[1:]


def _descent(r, s):
    slack = s.beta**2 * s.constants.L_Phi
    left = r.next_value + (s.beta / 2 - slack) * r.gradient**2
    return left, r.value + (s.beta / 2 + slack) * r.estimate_error**2


def _exact_descent(r, s):
    left = r.next_value + s.beta / 2 * r.gradient**2
    return left, r.value + s.beta / 2 * r.estimate_error**2


def _half_over_smoothness(r, s):
    return at_most("β", s.beta, 1 / (2 * s.constants.L_Phi), "1/(2L_Φ)")


def _kept_descent(r, s):
    """Both sides with ‖h_k‖² = ‖x_{k+1} − x_k‖²/β² left where it is; the last iteration's step is not seen."""
    kept = (1 - s.beta * s.blocks.L_Phi) * (r.x_step[1:] / s.beta) ** 2
    left, right = (side[:-1] for side in _exact_descent(r, s))
    return left + s.beta / 2 * kept, right


def _one_over_smoothness(r, s):
    return at_most("βL_Φ", s.beta * s.blocks.L_Phi, 1.0, "its largest")


PHI_BLOCKWISE = (
    Claim(
        "Lemma A.1, block by block",
        "‖∇Φ(x_k) − ∇Φ(x_{k−1})‖ ≤ (Λ_xx + 2Λ_xy·L_xy/μ + Λ_yy·L_xy²/μ²)‖x_k − x_{k−1}‖",
        _lipschitz_blockwise,
        first=1,
    ),
    Claim(
        "exact gain: descent",
        "Φ_{k+1} + (β/2)‖∇Φ‖² ≤ Φ_k + (β/2)‖∇̂Φ − ∇Φ‖²",
        _exact_descent,
        (_one_over_smoothness,),
    ),
    Claim(
        "star: descent with the step kept",
        "Φ_{k+1} + (β/2)‖∇Φ‖² + (β/2)(1 − βL_Φ)‖∇̂Φ‖² ≤ Φ_k + (β/2)‖∇̂Φ − ∇Φ‖²",
        _kept_descent,
        (_one_over_smoothness,),
    ),
)
ABOUT_PHI = (
    Claim("Lemma A.1: ∇Φ is Lipschitz", "‖∇Φ(x_k) − ∇Φ(x_{k−1})‖ ≤ L_Φ‖x_k − x_{k−1}‖", _lipschitz, first=1),
    Claim(
        "Theorems 5.9 and 5.17: descent",
        "Φ_{k+1} + (β/2 − β²L_Φ)‖∇Φ‖² ≤ Φ_k + (β/2 + β²L_Φ)‖∇̂Φ − ∇Φ‖²",
        _descent,
        (_half_over_smoothness,),
    ),
    *PHI_BLOCKWISE,
)
