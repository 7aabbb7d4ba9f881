"""The one table of solvers × problems. A new solver is one new row; the contract suite runs every pair.

Cheap tests run on `ROWS`, others on `SOME_SLOW`: of these `pytest -m "not slow"` runs the first row of each kind.
"""

from marks import slow
from zoo import first_order, implicit, meta, single_loop, stochastic, unrolled
from zoo.table import PROBLEMS as PROBLEMS, Row as Row

TABLES = single_loop, implicit, unrolled, first_order, stochastic, meta
ROWS: list[Row] = [row for table in TABLES for row in table.ROWS]
QUICK = [table.ROWS[0] for table in TABLES]
SOME_SLOW = [row if row in QUICK else slow(row) for row in ROWS]
