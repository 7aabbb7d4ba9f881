"""What a step reports and hands to its rules means the same in every solver; its numbers are data."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel.batch import first
from bilevel.loop.data.streams import draw
from bilevel.solvers import algorithms
from bilevel.solvers.parts.tasks import MetaLearner
from bilevel.solvers.rules import as_rule
from marks import slow
from zoo import PROBLEMS, QUICK, ROWS, SOME_SLOW, Row

every_row = pytest.mark.parametrize(("row", "problem"), [(row, row.problems[-1]) for row in ROWS], ids=str)
some_rows_slow = pytest.mark.parametrize(
    ("row", "problem"),
    [(pytest.param if row in QUICK else slow)(row, row.problems[-1]) for row in ROWS],
    ids=str,
)


def build(row, problem):
    case = PROBLEMS[problem](float)
    return case, row.make(case.problem, case.L)


def step_s_batch(case, solver):
    """One batch, or as many as the step draws where there are data to draw from."""
    if case.data is None or solver.draws == 1:
        return case.data
    stream = bl.iid(case.data, size=8, seed=0)
    return draw(stream, stream.start(0), solver.draws)[1]


class ThirdStep(NamedTuple):
    """A row's third step: the states before and after it, what it reports, and how often it was traced."""

    row: Row
    case: Any
    solver: bl.Solver
    batch: Any
    step: Callable
    traces: list
    before: Any
    after: Any
    info: bl.Info


def third_step(row, case, solver) -> ThirdStep:
    batch, traces = step_s_batch(case, solver), []

    @jax.jit
    def step(solver, state, batch):
        traces.append(1)
        return solver.step(state, batch)

    after = jax.jit(solver.init)(case.x0, case.y0, batch)
    for _ in range(3):
        before = after
        after, info = step(solver, before, batch)
    return ThirdStep(row, case, solver, batch, step, traces, before, after, info)


@pytest.fixture(scope="module", params=SOME_SLOW, ids=str)
def third(request):
    return third_step(request.param, *build(request.param, request.param.problems[-1]))


def assert_trees_close(a, b, **tolerance):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(left, right, **tolerance)


def inner_gradient(case, solver, state, batch):
    gradient = jax.grad(case.problem.g, 1)
    if not isinstance(solver, MetaLearner):
        return gradient(state.x, solver.sets_out(state), first(batch))
    # One inner problem a task, all of them at x.
    return jax.vmap(lambda y, batch: gradient(state.x, y, batch))(solver.sets_out(state), batch)


def test_the_inner_gradient_is_that_of_g_where_the_step_sets_out(third):
    expected = inner_gradient(third.case, third.solver, third.before, third.batch)
    if third.row.name == "aid_decoupled_decay":  # reports g's gradient and the decay, together zero at rest
        decay = jax.tree.map(lambda a, b: a - b, third.info.inner_gradient, expected)
        signs = jax.tree.map(lambda d, y: np.all(d * y >= 0) and np.any(d != 0), decay, third.before.y)
        assert all(jax.tree.leaves(signs))
        return
    assert_trees_close(third.info.inner_gradient, expected, rtol=1e-9, atol=1e-12)
    assert any(np.any(leaf != 0) for leaf in jax.tree.leaves(expected))


def test_another_step_size_or_the_same_solver_made_again_compiles_nothing(third):
    for each in (scaled(third.solver, 1.1), third.row.make(third.case.problem, third.case.L)):
        third.step(each, third.before, third.batch)
    assert len(third.traces) == 1


class Captured(NamedTuple):
    """What a rule was handed, and the gradient of the function it was handed with it."""

    handed: Any
    of_value: Any


def capturing(rate: float = 0.1) -> optax.GradientTransformationExtraArgs:
    """Gradient descent that insists on `value`, `grad` and `value_fn`, and remembers what they were."""

    def init(params):
        return Captured(optax.tree.zeros_like(params), optax.tree.zeros_like(params))

    def update(updates, state, params=None, *, value, grad, value_fn):
        assert jnp.shape(value) == ()
        del state, grad
        return optax.tree.scale(-rate, updates), Captured(updates, jax.grad(value_fn)(params))

    return optax.GradientTransformationExtraArgs(init, update)


def with_rules(solver, replaced):
    is_rule = lambda value: isinstance(value, bl.Rule)
    captures = as_rule(capturing(), "captured")
    swap = lambda path, value: captures if is_rule(value) and replaced(jax.tree_util.keystr(path)) else value
    return jax.tree_util.tree_map_with_path(swap, solver, is_leaf=is_rule)


def captured(state):
    is_captured = lambda value: isinstance(value, Captured)
    return [leaf for leaf in jax.tree.leaves(state, is_leaf=is_captured) if is_captured(leaf)]


# Reverse and forward mode differentiate the inner rule itself, so these have a plain one.
UNROLLED = {"ITD", "forward ITD", "RTHO", "BDA", "MAML", "IAPTT-GM", "SAMA"}
WITHOUT_RULES = {"tuning-free", "S-TFBO", "D-TFBO"}
SCALED_BY_THE_PENALTY = {"F2SA", "F3SA", "MEHA", "V-PBGD", "G-PBGD"}


@some_rows_slow
def test_a_rule_s_value_function_has_the_gradient_that_the_rule_is_handed(row, problem):
    """Of the outer, inner, adjoint, start and auxiliary rules; the outer one's gradient is the reported hypergradient.

    ∇_x g is quadratic in y in all the table's problems, so the differences of DARTS and SAMA are exact; F3SA's momentum
    is a linear term of its function.
    """
    case, solver = build(row, problem)
    if solver.name in WITHOUT_RULES:
        assert solver.rule("outer") is None
        return
    solver = with_rules(solver, lambda path: ".inner" not in path or solver.name not in UNROLLED)
    third = third_step(row, case, solver)
    after, info = third.after, third.info
    for handed, of_value in captured(after):
        assert_trees_close(of_value, handed, rtol=1e-7, atol=1e-9)
        assert any(np.any(leaf != 0) for leaf in jax.tree.leaves(handed))
    (outer,) = captured(after.outer)
    by = info.metrics["penalty"] if solver.name in SCALED_BY_THE_PENALTY else 1.0
    expected = jax.tree.map(lambda h: h / by, info.hypergradient)
    assert_trees_close(outer.handed, expected, rtol=1e-11, atol=1e-14)


# All their numbers are inside optax rules or schedules, which are functions.


def scaled(solver, factor):
    return jax.tree.map(lambda leaf: factor * leaf, solver)


@every_row
def test_a_solver_s_numbers_are_its_leaves(row, problem):
    """tests/solvers/test_contract.py sweeps them."""
    _, solver = build(row, problem)
    assert jax.tree.leaves(solver)


@some_rows_slow
def test_numbers_of_another_precision_leave_the_state_s_type_alone(row, problem):
    case = PROBLEMS[problem](jnp.float32)
    describe = lambda tree: jax.tree.map(lambda a: (a.shape, a.dtype, a.weak_type), tree)
    solver = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), row.make(case.problem, case.L))
    state = jax.eval_shape(solver.init, case.x0, case.y0, case.data)
    after, info = jax.eval_shape(solver.step, state, case.data)
    assert describe(after) == describe(state)
    assert describe(jax.eval_shape(solver.warm_up, state, case.data)) == describe(state)
    assert {leaf.dtype for leaf in jax.tree.leaves((state.x, state.y, info.hypergradient))} == {
        jnp.dtype("float32")
    }


def factories():
    modules = [
        importlib.import_module(f"{algorithms.__name__}.{found.name}")
        for found in pkgutil.iter_modules(algorithms.__path__)
    ]
    public = {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and isinstance(value.__annotations__.get("return"), type)
        and issubclass(value.__annotations__["return"], bl.Solver)
    }
    return public


@pytest.mark.parametrize(("name", "factory"), factories().items(), ids=factories())
def test_options_are_keywords(name, factory):
    parameters = list(inspect.signature(factory).parameters.values())
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == ["problem"]
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters if p.name not in positional)
    steps = [p for p in parameters if p.name in ("inner", "outer") or (p.name, name) == ("adjoint", "aid")]
    assert all(p.default is p.empty for p in (parameters[0], *steps))
    assert getattr(bl.solvers, name) is factory


def test_every_factory_is_looked_at_and_has_a_row():
    made = {
        type(row.make(case.problem, case.L)) for row in ROWS for case in [PROBLEMS[row.problems[-1]](float)]
    }
    assert made == {factory.__annotations__["return"] for factory in factories().values()}
    assert len(made) >= 18
