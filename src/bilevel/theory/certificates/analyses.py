"""List of certificates, which `certify`, the figures, `advise` and `verify` read."""

from collections.abc import Callable

from bilevel.theory.certificates import paper, prior, sharp, star, tight
from bilevel.theory.certificates.certificate import Certificate
from bilevel.theory.constants import Blocks, Constants
from bilevel.words import shown

MODULES = {"earlier": prior, "paper": paper, "sharp": sharp, "tight": tight, "star": star}
METHODS: dict[str, dict[str, Callable[..., Certificate]]] = {
    "AID": {name: module.aid for name, module in MODULES.items()},
    "ITD": {name: module.itd for name, module in MODULES.items()},
    "SOBA": {"star": star.soba},
}
OF_BLOCKS = ("star",)  # the others take a single L, M and ρ


def analyses(constants: Constants | Blocks, method: str = "AID") -> dict[str, Certificate]:
    """Return every certificate for `method` ("AID", "ITD" or "SOBA") by its analysis, the sharpest last.

    With `Blocks` return only `star`, the only analysis that distinguishes them.
    """
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"no certificate is known for {shown(method)}: the methods are {', '.join(METHODS)}")
    known = METHODS[method]
    names = OF_BLOCKS if isinstance(constants, Blocks) else known
    return {name: known[name](constants) for name in names}
