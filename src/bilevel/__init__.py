"""Bilevel optimisation on JAX: min over x of f(x, y*(x)), where y*(x) minimises g(x, y)."""

from bilevel import (
    data as data,
    problems as problems,
    solvers as solvers,
    tasks as tasks,
    theory as theory,
)
from bilevel.advise import Advice as Advice, advise as advise
from bilevel.counting import counted as counted
from bilevel.problem import Batch as Batch, Problem as Problem
from bilevel.run import Result as Result, run as run
from bilevel.scan import scan as scan, warm_up as warm_up
from bilevel.solvers import (
    Adjoint as Adjoint,
    Info as Info,
    Solver as Solver,
    adjoints as adjoints,
    aid as aid,
    bda as bda,
    darts as darts,
    darts_first_order as darts_first_order,
    f2ba as f2ba,
    f2sa as f2sa,
    f3sa as f3sa,
    forward_itd as forward_itd,
    hoag as hoag,
    iaptt as iaptt,
    itd as itd,
    maml as maml,
    meha as meha,
    rtho as rtho,
    s_tfbo as s_tfbo,
    sama as sama,
    soba as soba,
    stocbio as stocbio,
    tuning_free as tuning_free,
)
from bilevel.status import Code as Code, Status as Status
from bilevel.streams import epochs as epochs, iid as iid

__version__ = "0.1.0"
