"""Bounds in expectation for AID and SOBA on minibatches, the draws they cover, and the noise of the draws."""

from bilevel.theory.certificates.stochastic.bounds import (
    Schedule as Schedule,
    StochasticCertificate as StochasticCertificate,
    aid as aid,
    soba as soba,
)
from bilevel.theory.certificates.stochastic.independence import NotCovered as NotCovered, check as check
from bilevel.theory.certificates.stochastic.noise import Noise as Noise, measure_noise as measure_noise
