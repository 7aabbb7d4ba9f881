"""What a step of every implicit method costs, counted in the program that runs."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from bilevel.counting import Counts, counted_step, oracle_calls
from zoo import PROBLEMS, implicit

STEPS = 5

# Per step: gradients of f, gradients of g, Hessian products, cross products.
PER_STEP = {
    "aid_steps": Counts(2, 4, 4, 1),  # N = Q = 4
    "aid_neumann": Counts(2, 1, 5, 1),  # Q = 5
    "aid_quasi_newton": Counts(2, 1, 2 + 1, 1),  # Q = 2, and the residual at the warm start
    "aid_three_draws": Counts(2, 1, 1, 1),  # the calls are shared out among the draws
    "soba": Counts(2, 1, 1, 1),
    "stocbio": Counts(2, 1, 3, 1),  # N = 1, Q = 3
    "darts": Counts(2, 4, 0, 0),  # ∇_y g for y and, where that arrives, for y'; ∇_x g at two points
    "darts_first_order": Counts(1, 1, 0, 0),
    "sama": Counts(2, 3, 0, 0),
    "sama_optax": Counts(2, 3, 0, 0),
    "qnbo": Counts(
        2, 1 + 1 + 2, 1 + 1, 1
    ),  # P = 1, T = 2, Q = 1, the gradient and the residual at the warm starts
}
# Where the method decides how long it works, by the numbers it reports.
BY_METRICS = {
    "aid_cg": lambda said: Counts(2, 3, said["adjoint_steps"] + 2, 1),  # N = 3
    "aid_minres": lambda said: Counts(2, 1, said["adjoint_steps"] + 2, 1),
    "aid_nystrom": lambda said: Counts(2, 1, 2 + said["adjoint_steps"] + 2, 1),  # rank 2
    "hoag": lambda said: Counts(2, said["inner_steps"] + 1, said["adjoint_steps"] + 2, 1),
}


@pytest.mark.parametrize("row", implicit.ROWS, ids=str)
def test_counts(row):
    case = PROBLEMS["ridge_logistic"](float)
    solver = row.make(case.problem, case.L)
    step = counted_step(solver)

    def body(state, _):
        state, info, counts = step(state, case.data)
        expected = PER_STEP[row.name] if row.name in PER_STEP else BY_METRICS[row.name](info.metrics)
        return state, (counts, Counts(*(jnp.asarray(each, int) for each in expected)))

    state = solver.init(case.x0, case.y0, case.data)
    _, (counts, expected) = jax.jit(lambda state: lax.scan(body, state, length=STEPS))(state)
    per_step = lambda each: list(zip(*(column.tolist() for column in each), strict=True))
    assert per_step(counts) == per_step(expected)
    total = oracle_calls(solver, state, case.data, steps=STEPS)
    assert total == Counts(*(int(each.sum()) for each in expected))


def test_every_row_has_its_counts_and_no_count_is_left_over():
    assert {row.name for row in implicit.ROWS} == PER_STEP.keys() | BY_METRICS.keys()
