"""The one list of certificates. `certify`, the figures, `advise` and `verify` read it."""

from __future__ import annotations

from collections.abc import Callable

from bilevel.theory.blocks import Blocks
from bilevel.theory.certificates import paper_aid, paper_itd, prior, sharp, star, tight
from bilevel.theory.certificates.certificate import Certificate
from bilevel.theory.constants import Constants
from bilevel.words import shown

METHODS: dict[str, dict[str, Callable[..., Certificate]]] = {
    "AID": {
        "earlier": prior.aid,
        "paper": paper_aid.aid,
        "sharp": sharp.aid,
        "tight": tight.aid,
        "star": star.aid,
    },
    "ITD": {
        "earlier": prior.itd,
        "paper": paper_itd.itd,
        "sharp": sharp.itd,
        "tight": tight.itd,
        "star": star.itd,
    },
    "SOBA": {"star": star.soba},
}
OF_BLOCKS = ("star",)  # the others are about single L, M and ρ


def analyses(constants: Constants | Blocks, method: str = "AID") -> dict[str, Certificate]:
    """Every certificate for `method` ("AID", "ITD" or "SOBA") by its analysis, from the oldest to the sharpest.

    With `Blocks` only `star`, the one analysis that takes them apart.
    """
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"no certificate is known for {shown(method)}: the methods are {', '.join(METHODS)}")
    known = METHODS[method]
    names = OF_BLOCKS if isinstance(constants, Blocks) else known
    return {name: known[name](constants) for name in names}
