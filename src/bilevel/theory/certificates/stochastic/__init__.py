"""Minibatches: bounds in expectation for AID and SOBA, which draws they cover, and how noisy those are."""

from bilevel.theory.certificates.stochastic.bounds import (
    Schedule as Schedule,
    StochasticCertificate as StochasticCertificate,
    aid as aid,
    soba as soba,
)
from bilevel.theory.certificates.stochastic.independence import NotCovered as NotCovered, check as check
from bilevel.theory.certificates.stochastic.noise import Noise as Noise, measure_noise as measure_noise
