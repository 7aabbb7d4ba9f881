"""Every inequality of the paper, and of the certificates beyond it, as a function of a measured run."""

from bilevel.theory.claims.aid import AID as AID
from bilevel.theory.claims.assumptions import ASSUMPTIONS as ASSUMPTIONS, SLOPE_IN_X as SLOPE_IN_X
from bilevel.theory.claims.base import Claim as Claim, Setting as Setting
from bilevel.theory.claims.itd import ITD as ITD
from bilevel.theory.claims.phi import PHI as PHI
