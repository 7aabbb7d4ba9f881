"""The one list of certificates. `certify`, the figures, `advise` and `verify` read it."""

from __future__ import annotations

from collections.abc import Callable

from bilevel.theory.certificates import paper_aid, paper_itd, prior, sharp, star, tight
from bilevel.theory.certificates.certificate import Certificate
from bilevel.theory.constants import Constants

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
ANALYSES = tuple(METHODS["AID"])


def analyses(constants: Constants, method: str = "AID") -> dict[str, Certificate]:
    """Every certificate for `method` ("AID", "ITD" or "SOBA") by its analysis, from the oldest to the sharpest."""
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"no certificate is known for {method!r}: the methods are {', '.join(METHODS)}")
    return {name: make(constants) for name, make in METHODS[method].items()}
