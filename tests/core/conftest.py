"""A small problem whose solution is known, and a solver of it."""

import pytest

import bilevel as bl


@pytest.fixture(scope="module")
def q():
    return bl.problems.quadratic(kappa=4.0)


@pytest.fixture(scope="module")
def aid(q):
    """Its program is kept with the problem and compiled once for all tests of a file."""
    return bl.aid(q.problem, 1 / q.L, 1 / q.L, 0.1)
