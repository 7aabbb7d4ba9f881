"""Methods for the adjoint system ∇²_yy g·v = ∇_y f: parts for `aid(..., adjoint=...)`."""

from bilevel.solvers.adjoints.base import (
    Adjoint as Adjoint,
    neumann as neumann,
    one_step as one_step,
    steps as steps,
)
from bilevel.solvers.adjoints.curvatures import damped as damped, gauss_newton as gauss_newton
from bilevel.solvers.adjoints.krylov import cg as cg, minres as minres
from bilevel.solvers.adjoints.nystrom_sketch import nystrom as nystrom
from bilevel.solvers.adjoints.quasi_newton_steps import quasi_newton as quasi_newton
