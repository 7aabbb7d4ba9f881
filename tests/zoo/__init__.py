"""The one table of solvers × problems. A new solver is one new row; the contract suite runs every pair."""

from zoo import first_order, implicit, single_loop, stochastic, unrolled
from zoo.table import PROBLEMS as PROBLEMS, Row as Row

ROWS: list[Row] = [*single_loop.ROWS, *implicit.ROWS, *unrolled.ROWS, *first_order.ROWS, *stochastic.ROWS]
