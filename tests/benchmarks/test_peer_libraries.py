"""benchmarks/peers.py: the reference is right, and everyone who is installed arrives at its iterates."""

import importlib

import jax
import numpy as np
import pytest
from contestants import CONTESTANTS
from race import reference, tasks

SMALL = tasks.QUICK["itd"]()
PAIRS = [
    (contestant, entry)
    for contestant in CONTESTANTS
    if "torch" not in contestant.packages
    for entry in contestant.entries
]


def small_problem():
    rng = np.random.default_rng(3)
    wide = lambda arrays: tuple(a if a.dtype.kind == "i" else a.astype(np.float64) for a in arrays)
    problem = reference.Reweighting(wide(SMALL.train), wide(SMALL.valid))
    x, y = rng.normal(size=len(SMALL.x0)), wide(SMALL.y0)
    return problem, x, y, tuple(rng.normal(size=part.shape) for part in y)


def test_the_references_derivatives_are_those_of_its_losses():
    """Central differences of the losses alone; no rectifier changes sides this close to the point."""
    problem, x, y, v = small_problem()
    e = 1e-6
    g = lambda x, y: np.mean(reference.sigmoid(x) * problem.inner(x, y).losses)
    moved = lambda c: reference.combine(y, c, v)
    slope = (g(x, moved(e)) - g(x, moved(-e))) / (2 * e)
    at = problem.inner(x, y)
    assert sum(np.sum(a * b) for a, b in zip(at.gradient(), v, strict=True)) == pytest.approx(slope, rel=1e-7)

    losses_dot, hessian = at.along(v)
    ahead, behind = (problem.inner(x, moved(c)).gradient() for c in (e, -e))
    for product, a, b in zip(hessian, ahead, behind, strict=True):
        np.testing.assert_allclose(product, (a - b) / (2 * e), rtol=1e-5, atol=1e-8)
    for i in (0, 7):
        step = e * np.eye(len(x))[i]
        slopes = [
            (g(x + s, moved(c)) - g(x + s, moved(-c))) / (2 * c) for s, c in ((step, 1e-4), (-step, 1e-4))
        ]
        assert problem.cross(x, losses_dot)[i] == pytest.approx((slopes[0] - slopes[1]) / (2 * e), rel=1e-3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of other libraries
@pytest.mark.parametrize(
    ("contestant", "entry"), PAIRS, ids=[f"{c.module}-{entry.method}" for c, entry in PAIRS]
)
def test_who_is_installed_arrives_at_the_references_iterates(contestant, entry):
    for package in contestant.packages[:-1]:
        pytest.importorskip(package)
    task = tasks.QUICK[entry.task]()
    run = getattr(importlib.import_module(f"contestants.{contestant.module}"), entry.method)(task, 1e-9)
    expected = reference.iterates(entry.iterates, task)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # other libraries' climate
        found = run()
    assert reference.error(task, found, expected) <= task.tolerance


def test_a_wrong_answer_is_seen():
    expected = reference.iterates("soba", SMALL)
    assert reference.error(SMALL, reference.iterates("itd", SMALL), expected) > 100 * SMALL.tolerance
