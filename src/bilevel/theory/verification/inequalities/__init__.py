"""Inequalities of a run: the paper's lemmas and theorems, the assumptions, and the certificates."""

from bilevel.theory.constants import Blocks
from bilevel.theory.verification.inequalities.certified import certificate_claims
from bilevel.theory.verification.inequalities.claims import ASSUMPTIONS, BLOCKWISE, SLOPE_IN_X, Claim, Setting
from bilevel.theory.verification.inequalities.lemmas import AID_LEMMAS, ITD_LEMMAS, PHI, PHI_BLOCKWISE

LEMMAS = {"AID": AID_LEMMAS, "ITD": (SLOPE_IN_X, *ITD_LEMMAS)}


def claims_about(s: Setting) -> tuple[Claim, ...]:
    """Return all claims for the paper's algorithms and constants; otherwise only the claims of `star`."""
    of_star = certificate_claims(s.method, ("star",))
    if isinstance(s.constants, Blocks):
        return *BLOCKWISE, *of_star, *PHI_BLOCKWISE
    if s.method not in LEMMAS or s.inner_steps > 1 or s.adjoint_steps > 1:
        return *ASSUMPTIONS, *of_star, *PHI, *PHI_BLOCKWISE
    return *ASSUMPTIONS, *LEMMAS[s.method], *certificate_claims(s.method), *PHI, *PHI_BLOCKWISE
