"""Public name of `bilevel.solvers.adjoints`, for `from bilevel.adjoints import cg`."""

from bilevel.solvers.adjoints import *  # noqa: F403
