"""One algorithm a file, beside it the ingredients algorithms are made of."""

from bilevel.solvers.adjoint import Adjoint as Adjoint, one_step as one_step
from bilevel.solvers.aid import AIDState as AIDState, aid as aid
from bilevel.solvers.base import Info as Info, Solver as Solver, State as State
from bilevel.solvers.itd import ITDState as ITDState, itd as itd
