"""Input that used to be taken silently, or that ended in an error from inside JAX: it is refused, and the fix named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.data import Examples
from bilevel.problems.reweighting import initial_mlp
from bilevel.problems.scores import accuracy
from run_options import with_options

INPUTS = np.random.default_rng(0).normal(size=(6, 4))
LABELS = np.array([0, 1, 2, 0, 1, 2])
PROBLEM = bl.Problem(inner=lambda x, y: 0.5 * jnp.sum((y - x) ** 2), outer=lambda x, y: 0.5 * jnp.sum(y * y))
WITH_DATA = bl.Problem(
    inner=lambda x, y, b: 0.5 * jnp.sum((y - x - jnp.mean(b)) ** 2), outer=lambda x, y: 0.5 * jnp.sum(y * y)
)
SOLVER = bl.aid(PROBLEM, inner=0.1, adjoint=0.1, outer=0.1)

pytestmark = pytest.mark.usefixtures("as_users_see_it")


@pytest.mark.parametrize("level", ["train", "valid"])
@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_that_is_no_class(level, label):
    """−1 would count as the last class, and one too many would have no gradient at all."""
    good, wrong = Examples(INPUTS, LABELS), Examples(INPUTS, np.where(LABELS == 1, label, LABELS))
    given = {"train": good, "valid": good} | {level: wrong}
    with pytest.raises(ValueError, match=rf"{level}.targets run from .*{label}.*expected 0\.\.2"):
        bl.problems.data_reweighting(**given, y0=initial_mlp(4, 5, 3, seed=0))
    with pytest.raises(ValueError, match=r"expected 0\.\.2"):
        bl.data.corrupt_labels(wrong.targets, 0.5, classes=3, seed=0)
    with pytest.raises(ValueError, match=r"expected 0\.\.2"):
        accuracy(np.ones((6, 3)), wrong.targets)


def test_a_ridge_wants_signs():
    """With labels 0 and 1 every example of class 0 would have a constant loss."""
    examples = Examples(INPUTS, (LABELS > 0).astype(float))
    with pytest.raises(ValueError, match="must be −1 and"):
        bl.problems.RidgeLogistic(examples, examples)


def test_rows_that_there_are_not():
    """A JAX array repeats its last row in their place."""
    for inputs in (INPUTS, jnp.asarray(INPUTS)):
        with pytest.raises(ValueError, match="rows has the number 6, but there are 6 examples"):
            Examples(inputs, jnp.asarray(LABELS)).take(np.array([0, 6]))


@pytest.mark.parametrize("traced", ["x0", "data", "seed", "model_state", "nothing"])
def test_a_run_inside_a_transformation_points_to_scan(traced):
    solver = bl.aid(WITH_DATA, inner=0.1, adjoint=0.1, outer=0.1) if traced == "data" else SOLVER

    def run(t):
        given = {"x0": {"x0": t}, "data": {"data": bl.Batch(inner=t)}, "seed": {"seed": t}}
        more = given.get(traced, {"model_state": t} if traced == "model_state" else {})
        return bl.run(solver, **with_options({"x0": np.ones(2), "y0": np.ones(2)} | more), steps=1).x

    words = "everything" if traced == "nothing" else traced
    with pytest.raises(TypeError, match=rf"inside jit, vmap or grad, where {words} is traced: use bl.scan"):
        jax.jit(run)(jnp.ones(2))
    if traced != "nothing":
        with pytest.raises(TypeError, match=r"use bl\.scan"):
            jax.vmap(run)(jnp.ones((2, 2)))


def test_a_sweep_inside_a_transformation_points_to_scan():
    with pytest.raises(TypeError, match=r"bl.sweep drives the host.*x0 is traced: use bl.scan"):
        jax.jit(lambda x: bl.sweep(SOLVER, x, x, steps=1).x)(jnp.ones(2))


@pytest.mark.slow
def test_double_precision_in_a_program_that_has_none():
    wide, earlier = jnp.ones(2), bl.run(SOLVER, jnp.ones(2), jnp.ones(2), steps=1)
    assert wide.dtype == jnp.float64
    with jax.enable_x64(False):
        x = jnp.ones(2)
        calls = {
            "x0": lambda: bl.run(SOLVER, wide, x, steps=1),
            "the state of resume.x": lambda: bl.run(SOLVER, resume=earlier, steps=1),
            "state.solver.x": lambda: bl.scan(SOLVER, earlier.run, steps=1),
            "data.inner": lambda: bl.run(
                bl.aid(WITH_DATA, inner=0.1, adjoint=0.1, outer=0.1), x, x, steps=1, data=bl.Batch(inner=wide)
            ),
        }
        for name, call in calls.items():
            with pytest.raises(
                ValueError, match=rf"{name} has dtype float64, made with x64 on, which is off now"
            ):
                call()


@pytest.mark.parametrize(
    "adjoint", [bl.adjoints.cg(), bl.adjoints.nystrom(1, 0.1), 0.1], ids=["cg", "nystrom", "step"]
)
def test_nothing_to_optimize(adjoint):
    with pytest.raises(ValueError, match=r"y0 has no entries, only float64\[0\]"):
        bl.run(bl.aid(PROBLEM, inner=0.1, adjoint=adjoint, outer=0.1), jnp.ones(2), jnp.zeros(0), steps=1)


def test_whole_numbers_beyond_the_bits_of_a_device():
    with pytest.raises(
        ValueError, match=r"the inner step size is the whole number 1099511627776, .*1099511627776\.0"
    ):
        bl.aid(PROBLEM, inner=2**40, adjoint=0.1, outer=0.1)
    with pytest.raises(ValueError, match="inner_steps must be at most 2,147,483,647"):
        bl.itd(PROBLEM, inner=0.1, outer=0.1, inner_steps=2**31)
    with pytest.raises(ValueError, match="seed must be at most"):
        bl.run(SOLVER, jnp.ones(2), jnp.ones(2), steps=1, seed=2**32)


def test_a_state_of_another_solver_or_of_other_data():
    state = bl.itd(PROBLEM, inner=0.1, outer=0.1).init(jnp.ones(2), jnp.ones(2))
    for call in (
        lambda: bl.scan(SOLVER, state, steps=1),
        lambda: SOLVER.step(state),
        lambda: SOLVER.warm_up(3),
    ):
        with pytest.raises(TypeError, match="state must be a ImplicitState of AID, not"):
            call()
    run = bl.start(
        bl.aid(WITH_DATA, inner=0.1, adjoint=0.1, outer=0.1),
        jnp.ones(2),
        jnp.ones(2),
        bl.Batch(inner=jnp.ones((4, 2))),
    )
    with pytest.raises(ValueError, match="belongs to a run on other data"):
        bl.scan(
            bl.aid(WITH_DATA, inner=0.1, adjoint=0.1, outer=0.1),
            run,
            bl.iid(bl.Batch(inner=jnp.ones((4, 2))), 2),
            steps=1,
        )
