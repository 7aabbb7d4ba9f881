"""Convergence theory as numbers: from a problem's constants to step sizes, bounds and verdicts."""

from bilevel.theory.certificates import (
    limit as limit,
    momentum as momentum,
    prior as prior,
    recursions as recursions,
    sharp as sharp,
    star as star,
    stochastic as stochastic,
    tight as tight,
)
from bilevel.theory.certificates.analyses import analyses as analyses
from bilevel.theory.certificates.certificate import Certificate as Certificate, StepSizes as StepSizes
from bilevel.theory.certificates.cheapest import Plan as Plan, cheapest as cheapest
from bilevel.theory.certificates.contraction import (
    TwoSequenceContraction as TwoSequenceContraction,
    two_sequence_contraction as two_sequence_contraction,
)
from bilevel.theory.certificates.lower import (
    LowerBound as LowerBound,
    QuadraticInstance as QuadraticInstance,
    StrictInstance as StrictInstance,
    lower_bound as lower_bound,
)
from bilevel.theory.certificates.paper import (
    AIDCertificate as AIDCertificate,
    Complexity as Complexity,
    ITDCertificate as ITDCertificate,
    aid as aid,
    itd as itd,
    radius_beta as radius_beta,
)
from bilevel.theory.certificates.stochastic import Noise as Noise
from bilevel.theory.constants import Blocks as Blocks, Constants as Constants
from bilevel.theory.estimation._advise import advise as advise
from bilevel.theory.estimation.advice import Advice as Advice
from bilevel.theory.estimation.estimates import (
    Assumed as Assumed,
    AssumedBlocks as AssumedBlocks,
    Estimated as Estimated,
    Sampled as Sampled,
)
from bilevel.theory.estimation.observations import estimate as estimate
from bilevel.theory.verification._verify import judge as judge, verify as verify
from bilevel.theory.verification.measurement import Run as Run, measure as measure
from bilevel.theory.verification.reference import Exact as Exact, exact as exact
from bilevel.theory.verification.report import Report as Report, Row as Row, Verdict as Verdict
