"""From a problem's constants to step sizes, warm-up lengths, bounds and verdicts."""

from bilevel.theory import prior, recursions, sharp, tight
from bilevel.theory.aid import AIDCertificate, Complexity, aid
from bilevel.theory.constants import Constants
from bilevel.theory.contraction import TwoSequenceContraction, two_sequence_contraction
from bilevel.theory.estimate import Assumed, Estimated, estimate
from bilevel.theory.itd import ITDCertificate, itd, radius_beta
from bilevel.theory.judge import judge
from bilevel.theory.lower import LowerBound, QuadraticInstance, StrictInstance, lower_bound
from bilevel.theory.measure import Run, measure
from bilevel.theory.reference import Exact, exact
from bilevel.theory.report import Report, Row, Verdict
from bilevel.theory.verify import verify

__all__ = [
    "AIDCertificate",
    "Assumed",
    "Complexity",
    "Constants",
    "Estimated",
    "Exact",
    "ITDCertificate",
    "LowerBound",
    "QuadraticInstance",
    "Report",
    "Row",
    "Run",
    "StrictInstance",
    "TwoSequenceContraction",
    "Verdict",
    "aid",
    "estimate",
    "exact",
    "itd",
    "judge",
    "lower_bound",
    "measure",
    "prior",
    "radius_beta",
    "recursions",
    "sharp",
    "tight",
    "two_sequence_contraction",
    "verify",
]
