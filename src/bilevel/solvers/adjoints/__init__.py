"""Ways to work on the adjoint system ∇²_yy g·v = ∇_y f: ingredients for `aid(..., adjoint=...)`."""

from bilevel.solvers.adjoints.base import Adjoint as Adjoint
from bilevel.solvers.adjoints.krylov import cg as cg
from bilevel.solvers.adjoints.minres import minres as minres
from bilevel.solvers.adjoints.neumann import neumann as neumann
from bilevel.solvers.adjoints.quasi_newton import quasi_newton as quasi_newton
from bilevel.solvers.adjoints.steps import as_adjoint as as_adjoint, one_step as one_step, steps as steps
