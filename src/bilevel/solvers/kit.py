"""Tools for authors of solvers: the page "Write a solver" uses these names and no private ones."""

from bilevel.batch import Batch as Batch, Draws as Draws, draws as draws
from bilevel.checks import check_problem as check_problem, prepare as prepare
from bilevel.problem import Problem as Problem
from bilevel.solvers.adjoints.base import Adjoint as Adjoint, as_adjoint as as_adjoint
from bilevel.solvers.base import (
    ExplicitSolver as ExplicitSolver,
    ExplicitState as ExplicitState,
    Info as Info,
    Solver as Solver,
)
from bilevel.solvers.implicit_solver import (
    ImplicitSolver as ImplicitSolver,
    ImplicitState as ImplicitState,
    System as System,
)
from bilevel.solvers.messages import Finding as Finding
from bilevel.solvers.parts.inner import inner_loop as inner_loop
from bilevel.solvers.parts.lagrangian import energy as energy, lagrangian as lagrangian, tilted as tilted
from bilevel.solvers.parts.trees import scaled as scaled
from bilevel.solvers.rules import Rule as Rule, as_rule as as_rule, descend as descend
from bilevel.solvers.traits import Traits as Traits
