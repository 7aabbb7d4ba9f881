"""Type of a claim: a name, a statement, its hypotheses, and both sides of its inequality."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bilevel.theory.blocks import Blocks
from bilevel.theory.certificates import paper
from bilevel.theory.verification.measurement import Run

ROUNDING = 1e-12  # by which a step size may exceed its limit, because α = 1/L is computed
Sides = tuple[Any, Any]  # arrays with one entry or one row per iteration, or a number for all of them


@dataclass(frozen=True)
class Setting:
    """Constants and step sizes of a run, with the paper's certificates for them."""

    method: str  # "AID", "ITD" or "SOBA"
    constants: Any  # Constants, or Blocks, which the paper does not cover
    alpha: float
    beta: float
    eta: float | None  # ITD has none
    y_start: float  # ‖y_0 − y*_0‖
    inner_steps: int = 1
    adjoint_steps: int = 1

    @cached_property
    def blocks(self) -> Blocks:
        return Blocks.of(self.constants)

    @cached_property
    def aid(self) -> paper.AIDCertificate:
        """Return Theorem 5.9's certificate with the largest β."""
        return paper.aid(self.constants)

    @cached_property
    def R_y(self) -> float:
        """Return the smallest radius that meets Lemma 5.12's hypotheses for this start and this β."""
        per_unit = paper.radius_beta(self.constants, 1.0, self.alpha)
        return float(max(paper.smallest_radius(self.constants), self.y_start, self.beta / per_unit))

    @cached_property
    def itd(self) -> paper.ITDCertificate:
        """Return Theorem 5.17's certificate with the largest β."""
        return paper.itd(self.constants, self.R_y)

    @cached_property
    def C4_C5(self) -> tuple[float, float]:
        """Return the constants of ITD's estimator for this α, which need not be 1/L."""
        C4, C5 = paper.estimator_constants(self.constants, self.R_y, self.alpha)
        return float(C4), float(C5)


Hypothesis = Callable[[Run, Setting], str | None]


@dataclass(frozen=True)
class Claim:
    """lhs ≤ rhs at every iteration, if all hypotheses hold (a hypothesis returns an objection, or `None`)."""

    name: str
    statement: str
    sides: Callable[[Run, Setting], Sides]
    needs: tuple[Hypothesis, ...] = ()
    first: int = 0  # the iteration of the first entry; for a bound on a mean, the number of steps


class Claims(list[Claim]):
    """Claims in order; `@claims.add(...)` appends a function of both sides. Its docstring is the statement."""

    def add(self, name: str, *needs: Hypothesis, first: int = 0) -> Callable[[Any], Any]:
        def append(sides: Callable[[Run, Setting], Sides]) -> Any:
            self.append(Claim(name, sides.__doc__ or "", sides, needs, first))
            return sides

        return append


def at_most(symbol: str, value: float | None, limit: Any, meaning: str) -> str | None:
    if value is not None and value <= limit * (1 + ROUNDING):
        return None
    return f"{symbol} = {value:.3g} exceeds {meaning} = {limit:.3g}"


def equal(symbol: str, value: float | None, target: Any, meaning: str) -> str | None:
    if value is not None and abs(value - target) <= target * ROUNDING:
        return None
    return f"{symbol} = {value:.3g} is not {meaning} = {target:.3g}"


def dense(r: Run, s: Setting) -> str | None:
    return None if r.at_x.cross is not None else "not measured: x or y is too large for dense Jacobians"
