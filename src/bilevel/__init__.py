"""Bilevel optimisation on JAX: min over x of f(x, y*(x)), where y*(x) minimises g(x, y)."""

from bilevel import data as data, problems as problems, solvers as solvers
from bilevel.problem import Batch as Batch, Problem as Problem
from bilevel.run import Result as Result, run as run
from bilevel.scan import scan as scan, warm_up as warm_up
from bilevel.solvers import Info as Info, Solver as Solver, aid as aid, itd as itd
from bilevel.status import Code as Code, Status as Status
from bilevel.streams import epochs as epochs, iid as iid

__version__ = "0.1.0"
