"""Meta-learners: estimates against closed forms, autodiff and finite differences; adaptation by hand."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import bilevel as bl
from run_options import with_options

# Five quadratic tasks: support ½(y − c)ᵀA(y − c), query ½(y − d)ᵀE(y − d).
RNG = np.random.default_rng(3)
SPREAD = lambda: (lambda r: np.einsum("tij,tkj->tik", r, r) / 2 + 0.5 * np.eye(2))(RNG.normal(size=(5, 2, 2)))
A, E, C, D = SPREAD(), SPREAD(), RNG.normal(size=(5, 2)), RNG.normal(size=(5, 2))
X = np.array([0.7, -0.4])
EYE = np.eye(2)
ALPHA, LAMBDA = 0.1, 0.8


def bowl(x, y, task):
    matrix, center = task
    return 0.5 * (y - center) @ matrix @ (y - center)


BOWLS = bl.Problem(inner=bowl, outer=bowl)
BOWL_DATA = bl.Batch(inner=(jnp.asarray(A), jnp.asarray(C)), outer=(jnp.asarray(E), jnp.asarray(D)))


# Six regressions whose losses are not quadratic and contain x too; x and y are trees.
def curved(x, y, examples):
    a, b = examples
    miss = a @ y["w"] + y["b"] - b
    return jnp.mean(jnp.log(jnp.cosh(miss))) + 0.1 * jnp.sum(x["w"] * y["w"] ** 2) + 0.05 * y["b"] ** 4


CURVED = bl.Problem(inner=curved, outer=curved)
START = {"w": jnp.array([0.3, 0.2]), "b": jnp.array(0.4)}


def examples(tasks, rows, seed):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(tasks, rows, 2))
    b = np.einsum("tij,tj->ti", a, rng.normal(size=(tasks, 2))) + rng.normal(size=(tasks, 1))
    return jnp.asarray(a), jnp.asarray(b)


DATA = bl.Batch(inner=examples(6, 4, 1), outer=examples(6, 3, 2))
NEW = bl.Batch(inner=examples(3, 5, 4))
ROWS = bl.Problem(inner=lambda x, y, rows: jnp.sum(rows[:, None] * y), outer=lambda x, y: jnp.sum(y))
MOMENTUM = optax.sgd(0.1, momentum=0.5)

MAKE = {
    "maml": lambda problem, rule, n: bl.maml(problem, inner=rule, outer=0.05, inner_steps=n),
    "fomaml": lambda problem, rule, n: bl.solvers.fomaml(problem, inner=rule, outer=0.05, inner_steps=n),
    "reptile": lambda problem, rule, n: bl.solvers.reptile(problem, inner=rule, outer=0.05, inner_steps=n),
    "imaml": lambda problem, rule, n: bl.imaml(
        problem, inner=rule, outer=0.05, inner_steps=n, proximal_weight=LAMBDA
    ),
}


def one_step(solver, x, data):
    return jax.jit(solver.step)(solver.init(x, x, data), data)


def assert_trees_close(a, b, **tolerance):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(left, right, **tolerance)


def descended(n):
    """y after n gradient steps from X, by the powers of P = I − αA."""
    powers = np.stack([np.linalg.matrix_power(EYE - ALPHA * a, n) for a in A])
    return C + np.einsum("tij,tj->ti", powers, X - C)


def query_gradient(y):
    return np.einsum("tij,tj->ti", E, y - D)


def tied_solution():
    """argmin ½(y − c)ᵀA(y − c) + (λ/2)‖y − x‖²."""
    return np.stack(
        [np.linalg.solve(a + LAMBDA * EYE, a @ c + LAMBDA * X) for a, c in zip(A, C, strict=True)]
    )


def implicit_gradient(y):
    """The mean of (I + A/λ)⁻¹∇f."""
    pairs = zip(A, query_gradient(y), strict=True)
    return np.mean([np.linalg.solve(EYE + a / LAMBDA, b) for a, b in pairs], axis=0)


@pytest.mark.mathematics("fomaml", "reptile", "imaml")
@pytest.mark.parametrize(
    ("name", "steps", "y", "estimate"),
    [
        ("fomaml", 1, descended(1), query_gradient(descended(1)).mean(0)),
        ("fomaml", 4, descended(4), query_gradient(descended(4)).mean(0)),
        ("reptile", 4, descended(4), (X - descended(4)).mean(0)),
        ("reptile", 1, descended(1), ALPHA * np.einsum("tij,tj->ti", A, X - C).mean(0)),  # joint training
        ("imaml", 400, tied_solution(), implicit_gradient(tied_solution())),
    ],
)
def test_closed_forms_on_quadratic_tasks(name, steps, y, estimate):
    solver = MAKE[name](BOWLS, ALPHA, steps)
    state, info = one_step(solver, jnp.asarray(X), BOWL_DATA)
    np.testing.assert_allclose(info.hypergradient, estimate, rtol=1e-6)
    np.testing.assert_allclose(state.y, y, rtol=1e-9)
    np.testing.assert_allclose(state.x, X - 0.05 * info.hypergradient, rtol=1e-12)
    value = np.mean(0.5 * np.einsum("ti,ti->t", query_gradient(y), y - D))
    np.testing.assert_allclose(info.outer_value, value, rtol=1e-9)


def test_imaml_reaches_the_best_start_of_tied_adaptation():
    """With R = (A + λI)⁻¹, y* = R(Ac + λx): the best x solves Σ λRE(R(Ac + λx) − d) = 0."""
    R = np.linalg.inv(A + LAMBDA * EYE)
    left = np.einsum("tij,tjk,tkl->il", LAMBDA * R, E, LAMBDA * R)
    fixed = np.einsum("tij,tjk,tk->ti", R, A, C) - D
    best = np.linalg.solve(left, -np.einsum("tij,tjk,tk->i", LAMBDA * R, E, fixed))
    solver = bl.imaml(BOWLS, inner=ALPHA, outer=1.0, proximal_weight=LAMBDA, inner_steps=300)
    result = bl.run(solver, X, X, data=BOWL_DATA, steps=150)
    np.testing.assert_allclose(result.x, best, rtol=1e-7)
    assert result.trace["adjoint_residual"].max() < 1e-4


@pytest.mark.slow
def test_imaml_s_estimate_is_the_slope_of_solving_the_tied_problems_again():
    """Central differences of x ↦ mean f(x, y*(x)), y* by Newton's method on ĝ to convergence; the losses contain x."""
    flat, unravel = ravel_pytree(START)

    def tied(x, y, support):
        return curved(unravel(x), unravel(y), support) + 0.5 * LAMBDA * jnp.sum((y - x) ** 2)

    @jax.jit
    def meta_loss(x):
        def one_task(support, query):
            newton = lambda y, _: (
                y - jnp.linalg.solve(jax.hessian(tied, 1)(x, y, support), jax.grad(tied, 1)(x, y, support)),
                None,
            )
            y, _ = jax.lax.scan(newton, x, length=12)
            return curved(unravel(x), unravel(y), query), jnp.linalg.norm(jax.grad(tied, 1)(x, y, support))

        values, left = jax.vmap(one_task)(DATA.inner, DATA.outer)
        return jnp.mean(values), jnp.max(left)

    assert meta_loss(flat)[1] < 1e-14
    h = 1e-5
    slope = [(meta_loss(flat + h * e)[0] - meta_loss(flat - h * e)[0]) / (2 * h) for e in np.eye(flat.size)]
    solver = bl.imaml(
        CURVED, inner=0.3, outer=0.05, proximal_weight=LAMBDA, inner_steps=200, adjoint=bl.adjoints.cg(1e-12)
    )
    _, info = one_step(solver, START, DATA)
    np.testing.assert_allclose(ravel_pytree(info.hypergradient)[0], slope, rtol=1e-7)
    np.testing.assert_allclose(info.outer_value, meta_loss(flat)[0], rtol=1e-10)


@pytest.mark.slow
def test_imaml_ties_gauss_newton_curvature_too():
    """Of a model that is linear in y it is the Hessian."""
    inner = bl.composed(
        model=lambda x, y, task: task[0] @ y["w"] + y["b"],
        loss=lambda x, p, task: jnp.mean(jnp.log(jnp.cosh(p - task[1]))),
    )
    problem, cg = bl.Problem(inner=inner, outer=curved), bl.adjoints.cg(1e-12)
    make = lambda adjoint: bl.imaml(
        problem, inner=0.1, outer=0.1, proximal_weight=LAMBDA, inner_steps=3, adjoint=adjoint
    )
    (_, exact), (_, other) = (
        one_step(make(adjoint), START, DATA) for adjoint in (cg, bl.adjoints.gauss_newton(cg))
    )
    assert_trees_close(exact.hypergradient, other.hypergradient, rtol=1e-9)


def adapted_by_hand(gradient, x, rule, steps):
    y, memory = x, rule.init(x)
    for _ in range(steps):
        updates, memory = rule.update(gradient(y), memory, y)
        y = optax.apply_updates(y, updates)
    return y


def test_fomaml_is_maml_with_the_derivatives_of_the_inner_gradients_dropped():
    @jax.jit
    def meta_loss(x):
        def one_task(support, query):
            gradient = lambda y: jax.lax.stop_gradient(jax.grad(curved, 1)(x, y, support))
            return curved(x, adapted_by_hand(gradient, x, MOMENTUM, 3), query)

        return jnp.mean(jax.vmap(one_task)(DATA.inner, DATA.outer))

    _, info = one_step(MAKE["fomaml"](CURVED, MOMENTUM, 3), START, DATA)
    value, expected = jax.value_and_grad(meta_loss)(START)
    np.testing.assert_allclose(info.outer_value, value, rtol=1e-12)
    assert_trees_close(info.hypergradient, expected, rtol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "steps"), [("maml", None), ("fomaml", 5), ("reptile", None), ("imaml", 5)])
def test_adapt_is_the_inner_loop_written_by_hand(name, steps):
    solver = MAKE[name](CURVED, MOMENTUM, 2)
    found = solver.adapt(START, NEW, steps=steps)

    @jax.jit
    def by_hand(support):
        tie = LAMBDA if name == "imaml" else 0.0
        gradient = lambda y: jax.tree.map(
            lambda g, a, b: g + tie * (a - b), jax.grad(curved, 1)(START, y, support), y, START
        )
        return adapted_by_hand(gradient, START, MOMENTUM, steps or 2)

    assert found["w"].shape == (3, 2)
    for i in range(3):
        expected = by_hand(jax.tree.map(lambda a, i=i: a[i], NEW.inner))
        assert_trees_close(jax.tree.map(lambda a, i=i: a[i], found), expected, rtol=1e-12)


@pytest.mark.slow
def test_maml_adapts_as_its_differentiated_loop_does():
    solver = MAKE["maml"](CURVED, 0.1, 3)
    state, _ = one_step(solver, START, DATA)
    assert_trees_close(solver.adapt(START, DATA), state.y, rtol=1e-13)


def test_adapt_gives_each_task_a_key_and_the_model_s_state():
    def noisy(x, y, examples, *, key, state):
        return curved(x, y, examples) + state * jax.random.normal(key) * y["b"], {}, state

    solver = bl.solvers.fomaml(bl.Problem(inner=noisy, outer=curved), inner=0.1, outer=0.05)
    batch = bl.Batch(inner=NEW.inner, key=jax.random.key(0), state=jnp.array(2.0))
    shift = (
        solver.adapt(START, batch)["b"]
        - bl.solvers.fomaml(CURVED, inner=0.1, outer=0.05).adapt(START, NEW)["b"]
    ) / -0.2
    keys = jax.random.split(batch.key, 3)
    expected = jax.vmap(lambda key: jax.random.normal(jax.random.fold_in(key, 0)))(keys)
    np.testing.assert_allclose(shift, expected, rtol=1e-10)


@pytest.mark.parametrize("name", ["fomaml", pytest.param("imaml", marks=pytest.mark.slow)])
def test_adapt_one_takes_a_task_without_an_axis_of_tasks(name):
    solver = MAKE[name](CURVED, MOMENTUM, 2)
    support = jax.tree.map(lambda a: np.asarray(a[1]), NEW.inner)
    found = solver.adapt_one(START, bl.Batch(inner=support))
    tie = LAMBDA if name == "imaml" else 0.0
    pull = lambda g, a, b: g + tie * (a - b)
    gradient = lambda y: jax.tree.map(pull, jax.grad(curved, 1)(START, y, support), y, START)
    assert_trees_close(
        found, jax.jit(adapted_by_hand, static_argnums=(0, 2, 3))(gradient, START, MOMENTUM, 2), rtol=1e-12
    )


@pytest.mark.slow
def test_adapt_one_is_adapt_to_a_stack_of_one():
    """With a key, a state and more steps; also inside jit and vmap."""

    def noisy(x, y, examples, *, key, state):
        return curved(x, y, examples) + state * jax.random.normal(key) * y["b"], {}, state

    solver = bl.solvers.fomaml(bl.Problem(inner=noisy, outer=curved), inner=0.1, outer=0.05)
    rest = dict(key=jax.random.key(0), state=jnp.array(2.0))
    one = lambda support: solver.adapt_one(START, bl.Batch(inner=support, **rest), steps=3)
    stacks = [jax.tree.map(lambda a, i=i: a[i : i + 1], NEW.inner) for i in range(3)]
    expected = [solver.adapt(START, bl.Batch(inner=stack, **rest), steps=3) for stack in stacks]
    for stack, both in zip(stacks, expected, strict=True):
        support = jax.tree.map(lambda a: a[0], stack)
        for found in (one(support), jax.jit(one)(support)):
            assert_trees_close(found, jax.tree.map(lambda a: a[0], both), rtol=1e-12)
    together = jax.tree.map(lambda *rows: jnp.concatenate(rows), *expected)
    assert_trees_close(jax.vmap(one)(NEW.inner), together, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [bl.iid, bl.epochs])
def test_a_minibatch_has_the_same_tasks_at_both_levels(stream):
    """The data are the tasks' numbers; once in one run and once in two halves."""
    away = lambda x, y, number: (y - number) ** 2
    solver = bl.solvers.fomaml(bl.Problem(inner=away, outer=away), inner=0.1, outer=0.1)
    data = stream(bl.Batch(inner=jnp.arange(7.0), outer=jnp.arange(7.0)), 3)
    seen = lambda state, info, batch: {"inner": batch.inner, "outer": batch.outer, "rows": batch.rows}
    run = lambda *start, **how: bl.run(solver, *start, data=data, record=seen, **with_options(how))
    whole, half = run(0.0, 0.0, steps=8, warmup=1).trace, run(0.0, 0.0, steps=4, warmup=1)
    for trace in (whole, run(steps=4, resume=half).trace):
        for other in (trace["outer"], trace["rows"].inner, trace["rows"].outer, whole["inner"]):
            np.testing.assert_array_equal(trace["inner"], other)
    assert len(np.unique(whole["inner"])) == 7


@pytest.mark.usefixtures("as_users_see_it")
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s: s.adapt(START, NEW.inner), TypeError, "data must be a bl.Batch, not tuple: pass"),
        (lambda s: s.adapt(START, None), ValueError, "adaptation by FOMAML needs data of many tasks"),
        (lambda s: s.adapt(START, bl.Batch(outer=NEW.inner)), ValueError, "no arrays"),
        (
            lambda s: s.adapt(START, bl.Batch(inner=(NEW.inner[0], NEW.inner[1][:2]))),
            ValueError,
            r"numbers of rows are \[2, 3\]",
        ),
        (lambda s: s.adapt({}, NEW), ValueError, "x has no arrays in it"),
        (
            lambda s: s.adapt(START, bl.Batch(inner=(NEW.inner[0], 3.0))),
            ValueError,
            r"rows are \[3, 'none'\]",
        ),
        (
            lambda s: s.adapt_one(START, NEW.inner),
            TypeError,
            r"data must be a bl.Batch, not tuple .*inner=support",
        ),
        (
            lambda s: s.adapt_one(START, bl.Batch(outer=NEW.inner)),
            ValueError,
            "needs the support examples of the task",
        ),
        (
            lambda s: replace(s, problem=ROWS).adapt(jnp.ones(2), bl.Batch(inner=jnp.ones(5))),
            TypeError,
            "tasks like those of the run, or one task to adapt_one",
        ),
        (lambda s: s.adapt(START | {"b": jnp.array(jnp.nan)}, NEW), ValueError, r"x\['b'\] contains NaN"),
        (lambda s: s.adapt(START | {"b": jnp.array(1)}, NEW), TypeError, r"x\['b'\] has dtype int"),
        (
            lambda s: s.adapt(START, NEW, steps=0),
            ValueError,
            "steps must be a whole number of at least 1, not 0",
        ),
        (
            lambda s: bl.run(s, START, START, data=bl.iid(bl.Batch(DATA.inner, NEW.inner), 2), steps=1),
            ValueError,
            "2 of 6 inner and 2 of 3 outer rows were asked for: give both levels one row per task",
        ),
        (
            lambda s: bl.solvers.fomaml(CURVED, inner=0.1, outer=0.1, inner_steps=0),
            ValueError,
            "inner_steps must be",
        ),
        (
            lambda s: bl.solvers.reptile(CURVED, inner=0.1, outer=0.1, inner_steps=1.5),
            ValueError,
            "inner_steps must be",
        ),
        (
            lambda s: bl.solvers.reptile(CURVED, inner=-1.0, outer=0.1),
            ValueError,
            "inner step size must be a positive number",
        ),
        (
            lambda s: bl.imaml(CURVED, inner=0.1, outer=0.1, proximal_weight=0.0),
            ValueError,
            "proximal weight must be a positive",
        ),
        (
            lambda s: bl.imaml(CURVED, inner=0.1, outer=0.1, proximal_weight=1.0, adjoint=0.1),
            TypeError,
            "adjoint must be one of bl.adjoints, not 0.1",
        ),
        (lambda s: s.init(START, START, None), ValueError, "FOMAML needs data of many tasks"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call(bl.solvers.fomaml(CURVED, inner=0.1, outer=0.05))
