"""What is not what a method asks for is refused before any work; what cannot be solved is left as it is."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel.oracles import Curvature

PROBLEM = bl.Problem(outer=lambda x, y: jnp.sum((y - 1) ** 2), inner=lambda x, y: jnp.sum((y - x) ** 2))


def _minres(H, b, dtype, **options):
    H, b = jnp.asarray(H, dtype), jnp.asarray(b, dtype)
    inner = Curvature(lambda v: H @ v, lambda v: v)
    v, _, said = bl.adjoints.minres(1e-6, **options).solve(inner, b, jnp.zeros_like(b), ())
    return np.asarray(v, float), float(said["adjoint_residual"]), int(said["adjoint_steps"])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_minres_ends_at_least_squares_where_the_hessian_is_singular(dtype):
    rows, columns, rng = 20, 60, np.random.default_rng(0)
    A, b = rng.standard_normal((rows, columns)), rng.standard_normal(columns)
    H = A.T @ A / rows
    best = np.linalg.norm(b - H @ np.linalg.lstsq(H, b, rcond=1e-10)[0])
    v, left, steps = _minres(H, b, dtype)
    assert best * (1 - 1e-5) <= left <= best * (1 + 1e-5)
    assert np.linalg.norm(v) < 1e3 * np.linalg.norm(b)
    assert steps < 3 * rows


@pytest.mark.slow
@pytest.mark.parametrize("preconditioner", [None, bl.adjoints.nystrom(5, 1e-3)])
def test_minres_still_solves_what_is_ill_conditioned_and_indefinite(preconditioner):
    rng = np.random.default_rng(1)
    Q, _ = np.linalg.qr(rng.standard_normal((40, 40)))
    H = (Q * np.geomspace(1e-6, 1, 40) * rng.choice([-1, 1], 40)) @ Q.T
    b = rng.standard_normal(40)
    _, left, _ = _minres(H, b, "float64", max_steps=2000, preconditioner=preconditioner)
    assert left <= 1.01e-6 * np.linalg.norm(b)


def test_minres_never_makes_the_residual_grow():
    """In float32 this solution is out of reach; no step of it may be for the worse."""
    rng = np.random.default_rng(2)
    Q, _ = np.linalg.qr(rng.standard_normal((40, 40)))
    H = (Q * np.geomspace(1e-7, 1, 40)) @ Q.T
    b = rng.standard_normal(40)
    _, left, _ = _minres(H, b, "float32")
    assert left <= np.linalg.norm(b) * (1 + 1e-5)


@pytest.mark.parametrize(
    "wrong", [None, "1", jnp.ones(2), jnp.nan, -1.0, 0.0, True], ids=lambda value: str(value).replace(" ", "")
)
@pytest.mark.parametrize(
    "make",
    [
        lambda k: bl.hoag(PROBLEM, inner=0.1, outer=0.1, tol=k),
        lambda k: bl.solvers.v_pbgd(PROBLEM, inner=0.1, outer=0.1, penalty=k),
        lambda k: bl.f2sa(PROBLEM, inner=0.1, outer=0.1, penalty=k),
        lambda k: bl.solvers.fsla(PROBLEM, inner=0.1, adjoint=0.1, outer=0.1, momentum=k),
    ],
    ids=["hoag", "v_pbgd", "f2sa", "fsla"],
)
def test_a_schedule_is_looked_at_where_it_begins(make, wrong):
    with pytest.raises(ValueError, match="at step 0 must be a positive number, not"):
        make(lambda k: wrong)
    make(optax.linear_schedule(0.5, 1.0, 10))


def test_schedules_that_go_wrong_later_or_are_no_weight():
    with pytest.raises(ValueError, match=r"tol at step 1000 must be.*not nan"):
        bl.hoag(PROBLEM, inner=0.1, outer=0.1, tol=lambda k: jnp.where(k > 9, jnp.nan, 0.1))
    bl.hoag(PROBLEM, inner=0.1, outer=0.1, tol=optax.exponential_decay(0.01, 1, 0.5))  # underflows
    with pytest.raises(ValueError, match=r"momentum at step 0.*at most 1, not 2.0"):
        bl.solvers.sustain(PROBLEM, inner=0.1, adjoint=0.1, outer=0.1, momentum=lambda k: 2.0)
    with pytest.raises(ValueError, match=r"fading of inner step 0 must be.*not nan"):
        bl.solvers.bda(PROBLEM, inner=0.1, outer=0.1, inner_steps=2, fading=lambda t: jnp.nan)
    with pytest.raises(ValueError, match=r"damping must be.*not False"):
        bl.hoag(PROBLEM, inner=0.1, outer=0.1, damping=False)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: bl.saba(p, inner=0.1, adjoint=0.1, outer=0.1),
        lambda p: bl.itd(p, inner=0.1, outer=0.1, inner_steps=2),
    ],
)
@pytest.mark.parametrize("wrong", [None, "problem", lambda x, y: 0.0])
def test_what_is_no_problem(make, wrong, as_users_see_it):
    with pytest.raises(TypeError, match=f"problem must be a bl.Problem, not {type(wrong).__name__}"):
        make(wrong)


@pytest.mark.parametrize(
    ("project", "what"),
    [
        (lambda z: z[:2], r"returned float\d\d\[2\], not a tree like"),
        (lambda z: (z, z), "returned .*not a tree like"),
        (lambda z: z.astype(jnp.float16), "returned float16"),
        (lambda z: None, "returned None"),
        (lambda z: "z", ".* returns no arrays"),
        (lambda x, z: z, "must be a function from x's tree to itself, not <lambda>.x, z."),
    ],
)
@pytest.mark.parametrize("level", ["inner", "outer"])
@pytest.mark.parametrize("make", [bl.aid, bl.itd, bl.f2sa], ids=["aid", "itd", "f2sa"])
def test_a_projection_returns_what_it_is_given(make, level, project, what):
    more = {bl.aid: {"adjoint": 0.1}, bl.itd: {"inner_steps": 2}, bl.f2sa: {"penalty": 2.0}}[make]
    made = lambda: make(
        PROBLEM, **({"inner": 0.1, "outer": 0.1} | {level: bl.projected(0.1, project)}), **more
    )
    with pytest.raises(TypeError, match=f"project {what}"):
        made().init(jnp.ones(3), jnp.ones(3))


def _with_prox(prox):
    return bl.Problem(
        outer=lambda x, y: jnp.sum((y - 1) ** 2), inner=lambda x, y: jnp.sum((y - x) ** 2), prox=prox
    )


@pytest.mark.parametrize(
    ("prox", "error", "what"),
    [
        (bl.prox.l1(lambda x: None), TypeError, "strength of prox returned None"),
        (bl.prox.l1(lambda x: "x"), TypeError, "strength of prox returned 'x'"),
        (bl.prox.l1(lambda x: {"a": x[0]}), TypeError, "strength of prox returned the tree"),
        (bl.prox.elastic_net(0.1, lambda x: x[:2]), ValueError, r"l2 of prox has shape \(2,\)"),
        (bl.prox.box(lambda x: jnp.ones((2, 3)), 2.0), ValueError, r"low of prox has shape \(2, 3\)"),
        (bl.prox.group_lasso(np.ones(3), [0, 0, 1]), ValueError, r"shape \(3,\), but there are 2 groups"),
        (lambda x, z: z, TypeError, r"prox must take \(x, z, step\)"),
        (lambda x, z, step: "z", TypeError, r"prox must .* return the new y"),
    ],
)
def test_a_proximal_map_is_tried_before_work(prox, error, what):
    with pytest.raises(error, match=what):
        bl.aid(_with_prox(prox), inner=0.1, adjoint=0.1, outer=0.1).init(jnp.ones(3), jnp.ones(3))


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: bl.prox.l1("0.5"), "strength must be .* not '0.5'"),
        (lambda: bl.prox.l1(True), "strength must be .* not True"),
        (lambda: bl.prox.l1(float("inf")), "strength must be .* not inf"),
        (lambda: bl.prox.l1(np.array([1.0, -1.0])), "strength must be .* not array"),
        (lambda: bl.prox.box(None, 1.0), "low must be .* not None.*infinity for no bound"),
        (lambda: bl.prox.box(2.0, -2.0), "low is 2.0 and high -2.0"),
        (lambda: bl.prox.group_lasso(0.1, [[0], [1, 2]]), "groups must hold"),
        (lambda: bl.prox.group_lasso(0.1, [0, 10**12]), "number 1000000000000 for only 2 entries"),
    ],
)
def test_what_is_no_strength_bound_or_group(make, what, as_users_see_it):
    with pytest.raises(ValueError, match=what):
        make()


@pytest.mark.parametrize(
    "strength", [np.array([1, 2, 3]), jnp.array([1.0, 2.0, 3.0]), lambda x: np.array([1, 2, 3])]
)
def test_a_constant_array_is_a_strength(strength):
    out = bl.prox.l1(strength)(jnp.ones(3), jnp.ones(3), 0.25)
    np.testing.assert_allclose(out, [0.75, 0.5, 0.25])


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ({"penalty": lambda x, y: (jnp.sum(y**2), {})}, "penalty of a composed .* returned tuple"),
        ({"loss": lambda x, p: (jnp.sum(p["a"] ** 2), {}, 0)}, r"loss of a composed .* \(.*, dict, int\)"),
        ({"loss": lambda x, p: (jnp.sum(p["a"] ** 2), 0.0)}, r"loss of a composed .* \(.*, float\)"),
        ({"model": lambda x, y: {"a": y, "n": jnp.arange(3)}}, r"predictions\['n'\] .* dtype int"),
    ],
    ids=["penalty with metrics", "loss of three", "loss without a dict", "whole predictions"],
)
def test_parts_of_a_composed_objective(parts, what, as_users_see_it):
    parts = {"model": lambda x, y: {"a": y - x}, "loss": lambda x, p: jnp.sum(p["a"] ** 2)} | parts
    problem = bl.Problem(outer=lambda x, y: jnp.sum(y**2), inner=bl.composed(**parts))
    solver = bl.aid(problem, inner=0.1, adjoint=bl.adjoints.gauss_newton(bl.adjoints.cg()), outer=0.1)
    with pytest.raises(TypeError, match=what):
        jax.eval_shape(solver.step, solver.init(jnp.ones(3), jnp.ones(3)))


def test_tasks_that_do_not_fit():
    loss = lambda x, y, data: jnp.mean((data - y["a"]) ** 2)
    solver = bl.maml(bl.Problem(outer=loss, inner=loss), inner=0.1, outer=0.1)
    x, data = {"a": jnp.ones(3)}, jnp.ones((4, 5, 3))
    for y in (jnp.ones(3), {"a": jnp.ones(2)}):
        with pytest.raises(ValueError, match=r"y starts from x.*pass y0=x0"):
            solver.init(x, y, bl.Batch(data, data))
    for data in (jnp.ones((0, 5, 3)), {"a": jnp.ones((0, 3))}):
        with pytest.raises(ValueError, match="at least one task"):
            solver.adapt(x, bl.Batch(data))
    with pytest.raises(TypeError, match=r"cannot be evaluated at this x, \[3\]"):
        solver.adapt(x["a"], bl.Batch(jnp.ones((4, 5, 3))))


@pytest.mark.parametrize("entries", [8, 3])
def test_entries_for_examples_that_meet_a_batch_of_some_are_told_of_rows(entries):
    inner = lambda x, y, batch: jnp.sum(x * (y["a"] - batch) ** 2)
    problem = bl.Problem(inner=inner, outer=lambda x, y: jnp.sum(y["a"] ** 2))
    data = bl.epochs(bl.Batch(inner=jnp.ones(8)), size=4)
    y0 = {"a": jnp.zeros(()), "b": jnp.zeros((2, 3))}
    with pytest.raises(TypeError, match=r"y of 7 numbers: a float..\[\], b float..\[2, 3\]") as raised:
        bl.run(bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.1), jnp.ones(entries), y0, data=data, steps=1)
    assert ("take x[rows]" in str(raised.value)) == (entries == 8)  # three are not the examples'


@pytest.mark.parametrize("data", [jnp.ones(()), {}], ids=["no axis", "nothing"])
@pytest.mark.parametrize("make", [bl.saba, bl.solvers.srba], ids=["saba", "srba"])
def test_methods_that_remember_batches_need_rows(make, data):
    loss = lambda x, y, data: jnp.sum((y - x) ** 2)
    solver = make(bl.Problem(outer=loss, inner=loss), inner=0.1, adjoint=0.1, outer=0.1)
    with pytest.raises(ValueError, match="need one row per example, but their shapes are"):
        bl.run(solver, jnp.ones(2), jnp.ones(2), data=bl.Batch(data, data), steps=1)


def test_where_batches_come_from():
    batch = bl.Batch(jnp.ones((4, 2)), jnp.ones((4, 2)))
    for seed in ("a", 2.5, None):
        with pytest.raises(ValueError, match="seed must be a whole number"):
            bl.blocks(batch, 2, seed=seed)
    loss = lambda x, y, data: jnp.sum((y - x) ** 2) * jnp.mean(data)
    solver = bl.saba(bl.Problem(outer=loss, inner=loss), inner=0.1, adjoint=0.1, outer=0.1)
    with pytest.raises(ValueError, match=r"data=bl\.blocks"):
        bl.run(solver, jnp.ones(2), jnp.ones(2), data=(batch for _ in range(3)), steps=1)


def test_multi_steps_must_be_made_a_transformation(as_users_see_it):
    with pytest.raises(TypeError, match=r"pass its \.gradient_transformation\(\)"):
        bl.itd(PROBLEM, inner=optax.MultiSteps(optax.sgd(0.1), 2), outer=0.1)
