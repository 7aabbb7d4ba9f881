"""The one table of solvers × problems. A new solver is one new row; the contract suite runs every pair."""

from zoo import first_order, implicit, meta, single_loop, stochastic, unrolled
from zoo.table import PROBLEMS as PROBLEMS, Row as Row

TABLES = single_loop, implicit, unrolled, first_order, stochastic, meta
ROWS: list[Row] = [row for table in TABLES for row in table.ROWS]
QUICK = frozenset(table.ROWS[0].name for table in TABLES)  # one of each kind, for `pytest -m "not slow"`
