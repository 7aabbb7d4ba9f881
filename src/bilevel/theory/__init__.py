"""From a problem's constants to step sizes, warm-up lengths, bounds and verdicts."""

from bilevel.theory.blocks import Blocks
from bilevel.theory.certificates import limit, momentum, prior, recursions, sharp, star, tight
from bilevel.theory.certificates.analyses import analyses
from bilevel.theory.certificates.certificate import Certificate
from bilevel.theory.certificates.cheapest import Plan, cheapest
from bilevel.theory.certificates.contraction import TwoSequenceContraction, two_sequence_contraction
from bilevel.theory.certificates.lower import LowerBound, QuadraticInstance, StrictInstance, lower_bound
from bilevel.theory.certificates.paper_aid import AIDCertificate, Complexity, aid
from bilevel.theory.certificates.paper_itd import ITDCertificate, itd, radius_beta
from bilevel.theory.constants import Constants
from bilevel.theory.estimation.advice import Advice, StepSizes, advise
from bilevel.theory.estimation.estimating import Assumed, Estimated, estimate
from bilevel.theory.verification.judgement import judge
from bilevel.theory.verification.measurement import Run, measure
from bilevel.theory.verification.reference import Exact, exact
from bilevel.theory.verification.report import Report, Row, Verdict
from bilevel.theory.verification.verifying import verify

__all__ = [
    "AIDCertificate",
    "Advice",
    "Assumed",
    "Blocks",
    "Certificate",
    "Complexity",
    "Constants",
    "Estimated",
    "Exact",
    "ITDCertificate",
    "LowerBound",
    "Plan",
    "QuadraticInstance",
    "Report",
    "Row",
    "Run",
    "StepSizes",
    "StrictInstance",
    "TwoSequenceContraction",
    "Verdict",
    "advise",
    "aid",
    "analyses",
    "cheapest",
    "estimate",
    "exact",
    "itd",
    "judge",
    "limit",
    "lower_bound",
    "measure",
    "momentum",
    "prior",
    "radius_beta",
    "recursions",
    "sharp",
    "star",
    "tight",
    "two_sequence_contraction",
    "verify",
]
