"""`pytest -m "not slow"` covers the mathematics of every solver, and the cheap part of its contract."""

import jax.numpy as jnp
import pytest

from zoo import PROBLEMS, ROWS

CHEAP = (
    "test_a_step_keeps_the_state_s_type",
    "test_a_solver_s_numbers_are_its_leaves",
)  # parts of the contract


@pytest.fixture(scope="module")
def fast(request) -> list[pytest.Item]:
    """Return the collected tests that are not slow."""
    if request.config.args != request.config.getini("testpaths") or request.config.getoption("keyword"):
        pytest.skip("needs the collection of all tests: `pytest` without paths")
    return [item for item in request.session.items if item.get_closest_marker("slow") is None]


def factories() -> list[str]:
    """Return the rows of the table that are named like the factory of their solver: one per solver."""
    first = {}
    for row in ROWS:
        case = PROBLEMS[row.problems[-1]](jnp.float64)
        first.setdefault(row.make(case.problem, case.L).name, row.name)
    return list(first.values())


def test_every_solver_has_a_fast_test_of_its_mathematics(fast):
    """Such a test has the mark `mathematics("aid")`, with the names of its solvers."""
    covered = {name for item in fast for mark in item.iter_markers("mathematics") for name in mark.args}
    assert covered == set(factories())


@pytest.mark.parametrize("test", CHEAP)
def test_every_row_of_the_table_has_the_cheap_part_of_its_contract(fast, test):
    assert {item.callspec.params["row"].name for item in fast if item.originalname == test} == {
        row.name for row in ROWS
    }
