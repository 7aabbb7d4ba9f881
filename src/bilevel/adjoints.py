"""`bilevel.solvers.adjoints` under its public name, for `from bilevel.adjoints import cg`."""

from bilevel.solvers.adjoints import *  # noqa: F403
