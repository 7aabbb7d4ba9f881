"""Which claims are about a given run."""

from bilevel.theory.blocks import Blocks
from bilevel.theory.verification.inequalities.aid_lemmas import AID_LEMMAS
from bilevel.theory.verification.inequalities.assumptions import ASSUMPTIONS, BLOCKWISE, SLOPE_IN_X
from bilevel.theory.verification.inequalities.certified import certificate_claims
from bilevel.theory.verification.inequalities.claim import Claim, Setting
from bilevel.theory.verification.inequalities.itd_lemmas import ITD_LEMMAS
from bilevel.theory.verification.inequalities.phi import ABOUT_PHI, PHI_BLOCKWISE

LEMMAS = {"AID": AID_LEMMAS, "ITD": (SLOPE_IN_X, *ITD_LEMMAS)}


def claims_about(s: Setting) -> tuple[Claim, ...]:
    """All claims for the paper's two algorithms and its constants; what `star` rests on for anything beyond."""
    if isinstance(s.constants, Blocks):
        return *BLOCKWISE, *certificate_claims(s.method, ("star",)), *PHI_BLOCKWISE
    if s.method not in LEMMAS or s.inner_steps > 1 or s.adjoint_steps > 1:
        return *ASSUMPTIONS, *certificate_claims(s.method, ("star",)), *ABOUT_PHI
    return *ASSUMPTIONS, *LEMMAS[s.method], *certificate_claims(s.method), *ABOUT_PHI
