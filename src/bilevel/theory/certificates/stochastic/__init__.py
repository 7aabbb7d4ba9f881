"""Minibatches: bounds in expectation for AID and SOBA, what their draws must be, and how noisy they are."""

from bilevel.theory.certificates.stochastic.bounds import Schedule, StochasticCertificate, aid, soba
from bilevel.theory.certificates.stochastic.independence import NotCovered, check
from bilevel.theory.certificates.stochastic.measurement import measure_noise
from bilevel.theory.certificates.stochastic.noise import Noise

__all__ = [
    "Noise",
    "NotCovered",
    "Schedule",
    "StochasticCertificate",
    "aid",
    "check",
    "measure_noise",
    "soba",
]
