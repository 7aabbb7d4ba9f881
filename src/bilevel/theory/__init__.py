"""From a problem's constants to step sizes, warm-up lengths, bounds and verdicts."""

from bilevel.theory.blocks import Blocks
from bilevel.theory.certificates import limit, momentum, prior, recursions, sharp, star, stochastic, tight
from bilevel.theory.certificates.analyses import analyses
from bilevel.theory.certificates.certificate import Certificate, StepSizes
from bilevel.theory.certificates.cheapest import Plan, cheapest
from bilevel.theory.certificates.contraction import TwoSequenceContraction, two_sequence_contraction
from bilevel.theory.certificates.lower import LowerBound, QuadraticInstance, StrictInstance, lower_bound
from bilevel.theory.certificates.paper_aid import AIDCertificate, Complexity, aid
from bilevel.theory.certificates.paper_itd import ITDCertificate, itd, radius_beta
from bilevel.theory.certificates.stochastic import Noise
from bilevel.theory.constants import Constants
from bilevel.theory.estimation.advice import Advice
from bilevel.theory.estimation.advising import advise
from bilevel.theory.estimation.estimated import Assumed, AssumedBlocks, Estimated
from bilevel.theory.estimation.estimating import estimate
from bilevel.theory.estimation.sampling import Sampled
from bilevel.theory.verification.judgment import judge
from bilevel.theory.verification.measurement import Run, measure
from bilevel.theory.verification.reference import Exact, exact
from bilevel.theory.verification.report import Report, Row, Verdict
from bilevel.theory.verification.verifying import verify

__all__ = [
    "AIDCertificate",
    "Advice",
    "Assumed",
    "AssumedBlocks",
    "Blocks",
    "Certificate",
    "Complexity",
    "Constants",
    "Estimated",
    "Exact",
    "ITDCertificate",
    "LowerBound",
    "Noise",
    "Plan",
    "QuadraticInstance",
    "Report",
    "Row",
    "Run",
    "Sampled",
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
    "stochastic",
    "tight",
    "two_sequence_contraction",
    "verify",
]
