"""What a step of every implicit method costs, counted while it runs."""

import jax
import numpy as np
import pytest

import bilevel as bl
from bilevel.counting import Counts, counted
from zoo import PROBLEMS, implicit

STEPS = 5

# Per step: gradients of f, gradients of g, Hessian products, cross products.
PER_STEP = {
    "aid_steps": Counts(2, 4, 4, 1),  # N = Q = 4
    "aid_neumann": Counts(2, 1, 5, 1),  # Q = 5
    "aid_quasi_newton": Counts(2, 1, 2 + 1, 1),  # Q = 2, and the residual at the warm start
    "soba": Counts(2, 1, 1, 1),
    "stocbio": Counts(2, 1, 3, 1),  # N = 1, Q = 3
    "darts": Counts(2, 4, 0, 0),  # ∇_y g twice, for y' and for y; ∇_x g at two points
    "darts_first_order": Counts(1, 1, 0, 0),
    "sama": Counts(2, 3, 0, 0),
    "sama_optax": Counts(2, 3, 0, 0),
}
# Where the method decides how long it works, by the numbers it puts into its trace.
BY_TRACE = {
    "aid_cg": lambda trace: Counts(2, 3, trace["adjoint_steps"] + 2, 1),  # N = 3
    "aid_minres": lambda trace: Counts(2, 1, trace["adjoint_steps"] + 2, 1),
    "hoag": lambda trace: Counts(2, trace["inner_steps"] + 1, trace["adjoint_steps"] + 2, 1),
}


@pytest.mark.parametrize("row", implicit.ROWS, ids=str)
def test_counts(row):
    case = PROBLEMS["ridge_logistic"](float)
    problem, counter = counted(case.problem)
    solver = row.make(problem, case.L)
    program = jax.jit(lambda data: bl.scan(solver, solver.init(case.x0, case.y0, data), data, steps=STEPS))
    _, trace = jax.block_until_ready(program(case.data))
    expected = PER_STEP[row.name] if row.name in PER_STEP else BY_TRACE[row.name](trace)
    assert counter.total == Counts(*(int(np.sum(np.broadcast_to(each, STEPS))) for each in expected))


def test_every_row_has_its_counts_and_no_count_is_left_over():
    assert {row.name for row in implicit.ROWS} == PER_STEP.keys() | BY_TRACE.keys()
