"""The hypergradient of y = U(x, y), the map that is really iterated, against retraining to convergence."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel import adjoints
from bilevel.solvers.fixed_points import adjoint_system, fixed_point
from bilevel.solvers.fixed_points.classification import classify
from bilevel.solvers.parts.inner import inner_rule
from bilevel.solvers.rules import FixedPoint, as_rule

N, STEP, STILL = 6, 0.15, 1e-300  # 1/L is 0.18; a step on x that changes nothing


def data():
    rng = np.random.default_rng(0)
    a, v = rng.normal(size=(40, N)), rng.normal(size=(30, N))
    b, c = a @ rng.normal(size=N) + 0.3 * rng.normal(size=40), v @ rng.normal(size=N)
    return tuple(map(jnp.asarray, (a, b, v, c)))


A, B, V, C = data()
X, Y = jnp.linspace(-1.5, -0.5, N), jnp.full(N, 0.3)
FROZEN = jnp.array([1.0, 1.0, 0.0, 0.0, 1.0, 0.0])
GROUPS = np.array([0, 0, 1, 1, 2, 2])


def g(x, y):
    return 0.5 * jnp.mean((A @ y - B) ** 2) + 0.5 * jnp.sum(jnp.exp(x) * y * y)


def f(x, y):
    return 0.5 * jnp.mean((V @ y - C) ** 2) + 0.01 * jnp.sum(x**2)


def ball(y):
    return optax.projections.projection_l2_ball(y, 0.5)


def simplex(y):
    with jax.numpy_dtype_promotion("standard"):  # optax divides by a whole number
        return optax.projections.projection_simplex(y)


PLAIN = bl.Problem(inner=g, outer=f)
with_prox = lambda prox: bl.Problem(inner=g, outer=f, prox=prox)
frozen = optax.chain(optax.sgd(STEP), optax.stateless(lambda u, _: u * FROZEN))
KINDS = {
    "decay": (PLAIN, optax.chain(optax.add_decayed_weights(0.5), optax.sgd(STEP))),
    "decay and momentum": (PLAIN, optax.chain(optax.add_decayed_weights(0.5), optax.sgd(0.03, momentum=0.8))),
    "decay, some frozen": (PLAIN, optax.chain(optax.add_decayed_weights(0.5), frozen)),
    "frozen": (PLAIN, frozen),
    "kept non-negative": (PLAIN, optax.chain(optax.sgd(STEP), optax.keep_params_nonnegative())),
    "kept in a box": (
        PLAIN,
        optax.chain(optax.sgd(STEP), optax.stateless(lambda u, y: jnp.clip(y + u, -0.2, 0.4) - y)),
    ),
    "projected, box": (PLAIN, bl.projected(STEP, optax.projections.projection_non_negative)),
    "projected momentum": (
        PLAIN,
        bl.projected(optax.sgd(0.07, momentum=0.5), optax.projections.projection_non_negative),
    ),
    "projected, simplex": (PLAIN, bl.projected(STEP, simplex)),
    "projected, ball": (PLAIN, bl.projected(STEP, ball)),
    "L1": (with_prox(bl.prox.l1(lambda x: 4 * jnp.exp(x))), STEP),
    "elastic net": (
        with_prox(bl.prox.elastic_net(lambda x: 3 * jnp.exp(x[0]), lambda x: jnp.exp(x[1]))),
        STEP,
    ),
    "group lasso": (with_prox(bl.prox.group_lasso(lambda x: 3 * jnp.exp(x[:3]), GROUPS)), STEP),
    "sparse groups": (
        with_prox(bl.prox.sparse_group_lasso(lambda x: jnp.exp(x[0]), lambda x: 3 * jnp.exp(x[:3]), GROUPS)),
        STEP,
    ),
    "box that moves with x": (with_prox(bl.prox.box(lambda x: 0.1 * x, lambda x: -0.2 * x)), STEP),
}
METHODS = {
    "aid": (lambda p, rule: bl.aid(p, inner=rule, adjoint=STEP, outer=STILL), 400),
    "aid, steps": (lambda p, rule: bl.aid(p, inner=rule, adjoint=adjoints.steps(STEP, 20), outer=STILL), 20),
    "aid, cg": (lambda p, rule: bl.aid(p, inner=rule, adjoint=adjoints.cg(1e-12), outer=STILL), 2),
    "aid, minres": (lambda p, rule: bl.aid(p, inner=rule, adjoint=adjoints.minres(1e-12), outer=STILL), 2),
    "aid, quasi-Newton": (
        lambda p, rule: bl.aid(p, inner=rule, adjoint=adjoints.quasi_newton(3), outer=STILL),
        30,
    ),
    "aid, neumann": (
        lambda p, rule: bl.aid(p, inner=rule, adjoint=adjoints.neumann(STEP, 400), outer=STILL),
        1,
    ),
    "soba": (lambda p, rule: bl.soba(p, inner=rule, adjoint=STEP, outer=STILL), 400),
    "hoag": (lambda p, rule: bl.hoag(p, inner=rule, outer=STILL, tol=lambda k: 1e-13), 2),
    "stocbio": (
        lambda p, rule: bl.stocbio(p, inner=rule, adjoint=STEP, outer=STILL, products=400, batches="shared"),
        1,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_implicit_method_agrees_with_retraining(kind):
    problem, rule = KINDS[kind]
    solver = bl.itd(problem, inner=rule, outer=STILL)

    def retrained(x):
        return bl.warm_up(solver, solver.init(x, Y), steps=1500).y

    def differences(x, h=1e-5):
        ends = jnp.concatenate([x[None] + h * jnp.eye(N), x[None] - h * jnp.eye(N)])
        ahead, behind = jnp.split(jax.vmap(lambda x: f(x, retrained(x)))(ends), 2)
        return (ahead - behind) / (2 * h)

    y, expected = jax.jit(lambda x: (retrained(x), differences(x)))(X)

    def hypergradients(y):
        found = {}
        for name, (make, steps) in METHODS.items():
            solver = make(problem, rule)
            record = lambda _, info: (info.hypergradient, info.inner_gradient)
            _, (estimates, residuals) = bl.scan(solver, solver.init(X, y), steps=steps, record=record)
            found[name] = estimates[-1], residuals[-1]
        return found

    for name, (estimate, residual) in jax.jit(hypergradients)(y).items():
        np.testing.assert_allclose(estimate, expected, rtol=1e-6, atol=1e-7, err_msg=name)
        assert jnp.linalg.norm(residual) < 1e-12, name  # whatever the rule, y is at rest and Info says so


@pytest.mark.slow
@pytest.mark.parametrize("name", ["L1", "box that moves with x"])
def test_unrolled_methods_differentiate_the_proximal_map(name):
    problem, _ = KINDS[name]
    implicit = bl.aid(problem, inner=STEP, adjoint=adjoints.cg(1e-12), outer=STILL)
    y = bl.warm_up(implicit, implicit.init(X, Y), steps=1500).y
    expected = implicit.step(implicit.init(X, y))[1].hypergradient
    many = {"inner_steps": 300}
    for solver in (
        bl.itd(problem, inner=STEP, outer=STILL, **many),
        bl.itd(problem, inner=STEP, outer=STILL, checkpoint_every=20, **many),
        bl.solvers.forward_itd(problem, inner=STEP, outer=STILL, **many),
        bl.solvers.rtho(problem, inner=STEP, outer=STILL, **many),
    ):
        np.testing.assert_allclose(
            jax.jit(solver.step)(solver.init(X, y))[1].hypergradient, expected, rtol=1e-8
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["decay, some frozen", "projected, ball", "L1", "box that moves with x"])
def test_the_function_for_line_searches_has_the_hypergradient(kind):
    problem, rule = KINDS[kind]
    rule = as_rule(rule, "inner")
    g, b = problem.oracles.curvature(X, Y, None), problem.oracles.outer_gradients(X, Y, None)
    memory = rule.init(Y)
    system = adjoint_system(problem, inner_rule(problem, rule, X), memory, X, Y, g, b.y, None)
    v = jnp.linspace(-1.0, 2.0, N)  # not a solution
    np.testing.assert_allclose(jax.grad(system.lagrangian(v))(X), b.x - system.inner.cross(v), rtol=1e-12)


def late(k):
    return jnp.where(k < 20, 0.0, 0.5)


REST = {  # what is zero at rest, from what optax documents of each rule: (decay, entries that move)
    "adam": (optax.adam(1e-2), 0.0),
    "momentum": (optax.sgd(0.1, momentum=0.9, nesterov=True), 0.0),
    "clipped": (optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)), 0.0),
    "warm-up from zero": (optax.sgd(optax.linear_schedule(0.0, 0.1, 10)), 0.0),
    "line search": (optax.lbfgs(), 0.0),
    "injected": (optax.inject_hyperparams(optax.adam)(1e-3), 0.0),
    "decay before momentum": (
        optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(0.1, momentum=0.9)),
        1e-4,
    ),
    "decay before Adam": (optax.chain(optax.add_decayed_weights(1e-3), optax.adam(1e-2)), 1e-3),
    "decay after clipping": (
        optax.chain(optax.clip_by_global_norm(1.0), optax.add_decayed_weights(1e-3), optax.sgd(0.1)),
        1e-3,
    ),
    "decay that begins late": (optax.chain(optax.add_decayed_weights(late), optax.sgd(0.1)), 0.5),
    "decay before a warm-up": (
        optax.chain(optax.add_decayed_weights(0.5), optax.adam(optax.linear_schedule(0.0, 0.05, 50))),
        0.5,
    ),
    "decay with a plateau": (
        optax.chain(optax.add_decayed_weights(0.5), optax.sgd(0.1), optax.contrib.reduce_on_plateau()),
        0.5,
    ),
    "unfrozen late": (optax.sgd(lambda k: jnp.where(k < 50, 0.0, 0.1)), 0.0),
    "averaged over many": (optax.MultiSteps(optax.sgd(0.1), 20).gradient_transformation(), 0.0),
    "decay of kernels": (
        optax.chain(optax.add_decayed_weights(0.1, mask={"w": True, "b": False}), optax.adam(1e-2)),
        {"w": 0.1, "b": 0.0},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REST)
def test_the_decay_of_a_rule_is_found(name):
    rule, decay = REST[name]
    y = {"w": jnp.ones((3, 2), "float32"), "b": jnp.zeros((), "float32")}
    found = fixed_point(PLAIN, as_rule(rule, "inner"), y)
    decay = decay if isinstance(decay, dict) else {"w": decay, "b": decay}
    if found.plain:
        assert set(decay.values()) == {0.0}
    else:
        for leaf, value in decay.items():
            np.testing.assert_allclose(found.decay[leaf], value, rtol=1e-4)
            assert np.all(found.active[leaf])


def test_frozen_leaves_are_found_whichever_way_they_are_frozen():
    y = {"w": jnp.ones((3, 2)), "b": jnp.zeros(())}
    labels = {"w": "train", "b": "keep"}
    rules = [
        optax.multi_transform({"train": optax.adam(1e-2), "keep": optax.set_to_zero()}, labels),
        optax.chain(optax.sgd(0.1), optax.masked(optax.set_to_zero(), {"w": False, "b": True})),
    ]
    for rule in rules:
        assert fixed_point(PLAIN, as_rule(rule, "inner"), y).active == {"w": True, "b": False}


LATE_DECAY = optax.chain(optax.trace(0.9), optax.add_decayed_weights(0.1), optax.scale(-0.1))


@pytest.mark.parametrize(
    ("method", "rule"),
    [("aid", optax.adamw(1e-3)), ("soba", optax.lion(1e-3)), ("hoag", LATE_DECAY), ("stocbio", LATE_DECAY)],
    ids=["aid", "soba", "hoag", "stocbio"],
)
def test_a_rule_whose_rest_depends_on_its_memory_is_refused_with_the_reason(method, rule):
    make, _ = METHODS[method]
    with pytest.raises(ValueError, match=r"depends on its memory.*put the decay into g"):
        make(PLAIN, rule).init(X, Y)
    bl.itd(PLAIN, inner=rule, outer=0.1).init(X, Y)  # which differentiates the steps themselves


@pytest.mark.slow
def test_what_a_trial_must_not_take_for_weight_decay_or_for_plain_descent():
    before = lambda function, then: optax.chain(optax.stateless(function), then)
    for rule in (
        before(lambda u, y: u + 0.5 * y**3, optax.sgd(0.1, momentum=0.5)),
        before(lambda u, y: u + 0.5 * (y - 1), optax.adam(0.01)),
        before(lambda u, y: u + 0.3 * jnp.roll(y, 1), optax.sgd(0.1)),
    ):
        with pytest.raises(ValueError, match="cannot be told from a trial"):
            bl.aid(PLAIN, inner=rule, adjoint=0.1, outer=0.1).init(X, Y)
    for part in (lambda u, _: u - jnp.mean(u), lambda u, _: jnp.full_like(u, jnp.mean(u))):
        with pytest.raises(ValueError, match="a part of the gradient only"):
            bl.aid(PLAIN, inner=before(part, optax.sgd(0.1)), adjoint=0.1, outer=0.1).init(X, Y)
    far = lambda y: optax.projections.projection_l2_ball(y, 20.0)
    with pytest.raises(ValueError, match="not a box"):
        bl.aid(PLAIN, inner=bl.projected(optax.sgd(0.1), far), adjoint=0.1, outer=0.1).init(X, Y)


@pytest.mark.slow
def test_a_y_that_is_wholly_frozen_has_no_adjoint():
    solver = bl.aid(PLAIN, inner=optax.set_to_zero(), adjoint=adjoints.cg(), outer=0.1)
    _, info = solver.step(solver.init(X, Y))
    np.testing.assert_array_equal(info.hypergradient, jax.grad(f)(X, Y))


def test_parts_whose_step_sizes_begin_or_end_at_zero():
    y = {"w": jnp.ones(2), "b": jnp.zeros(2)}
    fades, begins = optax.cosine_decay_schedule(0.1, 1000), lambda k: jnp.where(k < 100, 0.0, 0.1)
    parts = lambda w, b: optax.multi_transform({"w": optax.sgd(w), "b": optax.sgd(b)}, {"w": "w", "b": "b"})
    for rule in (parts(0.1, fades), parts(begins, 0.1)):
        assert fixed_point(PLAIN, as_rule(rule, "inner"), y).plain
    with pytest.raises(ValueError, match="let the schedules of all parts overlap"):
        fixed_point(PLAIN, as_rule(parts(fades, begins), "inner"), y)


@pytest.mark.slow
def test_numbers_that_are_traced_or_injected():
    start = lambda rule: bl.aid(PLAIN, inner=rule, adjoint=0.1, outer=0.1).init(X, Y).y
    with pytest.raises(ValueError, match=r"being traced.*inject_hyperparams"):
        jax.jit(lambda rate: start(optax.sgd(rate)))(0.1)
    injected = lambda rate: optax.inject_hyperparams(optax.sgd)(learning_rate=rate)
    assert jax.vmap(lambda rate: start(injected(rate)))(jnp.array([0.1, 0.2])).shape == (2, N)

    @optax.inject_hyperparams
    def decaying(learning_rate, decay):
        return optax.chain(optax.add_decayed_weights(decay), optax.sgd(learning_rate))

    def hypergradient(decay):
        solver = bl.aid(
            PLAIN,
            inner=decaying(learning_rate=STEP, decay=decay),
            adjoint=adjoints.cg(1e-12),
            outer=STILL,
            inner_steps=300,
        )
        return solver.step(solver.init(X, Y))[1].hypergradient

    without = hypergradient(0.0)  # first: what is kept of it must not decide for the next
    plain = bl.aid(PLAIN, inner=STEP, adjoint=adjoints.cg(1e-12), outer=STILL, inner_steps=300)
    np.testing.assert_allclose(without, plain.step(plain.init(X, Y))[1].hypergradient, rtol=1e-9)
    outside = bl.Problem(inner=lambda x, y: g(x, y) + 0.25 * jnp.sum(y * y), outer=f)
    plain = bl.aid(outside, inner=STEP, adjoint=adjoints.cg(1e-12), outer=STILL, inner_steps=300)
    np.testing.assert_allclose(hypergradient(0.5), plain.step(plain.init(X, Y))[1].hypergradient, rtol=1e-9)


SCHEDULED = """
import jax.numpy as jnp, optax
import bilevel as bl
from bilevel.solvers.fixed_points import fixed_point
from bilevel.solvers.rules import as_rule

problem = bl.Problem(inner=lambda x, y: jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum(y))
to_zero = lambda value: optax.linear_schedule(value, 0.0, 100)
decay = lambda value, rule: fixed_point(
    problem, as_rule(optax.chain(optax.add_decayed_weights(value), rule), "inner"), jnp.ones(5)
).decay
for rule in (optax.adam(to_zero(0.1)), optax.sgd(to_zero(0.1))):
    assert abs(decay(0.1, rule) - 0.1) < 1e-5
if tuple(map(int, optax.__version__.split(".")[:3])) > (0, 2, 5):  # which takes no schedule there
    assert decay(to_zero(0.5), optax.adam(0.05)) == 0.0
"""


@pytest.mark.slow
def test_a_schedule_that_ends_at_zero_does_so_however_the_compiler_divides():
    """A compiler that multiplies by 0.01 where optax divides by 100 leaves 1e-8 of it; tests are compiled otherwise."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    subprocess.run([sys.executable, "-c", SCHEDULED], env=environment, check=True, timeout=300)


def test_a_rule_that_is_blind_to_a_part_of_the_gradient_is_refused_with_its_decay_too():
    rule = optax.chain(optax.add_decayed_weights(0.5), optax.centralize(), optax.sgd(0.1))
    with pytest.raises(ValueError, match=r"follows a part of the gradient only"):
        fixed_point(PLAIN, as_rule(rule, "inner"), {"w": jnp.ones((3, 4))})


def test_a_rule_that_gives_nan_is_told_from_one_that_decays():
    with pytest.raises(ValueError, match=r"NaN or infinite updates of y in float16.*larger eps"):
        fixed_point(PLAIN, as_rule(optax.adam(1e-3), "inner"), {"w": jnp.ones((3, 4), "float16")})


@pytest.mark.slow
def test_a_projected_rule_that_decays_is_at_rest_where_it_rests():
    """½(y − 3)² decayed by ½: at rest y − 3 + y/2 = 0."""
    problem = bl.Problem(inner=lambda x, y: 0.5 * jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum(y))
    rule = bl.projected(KINDS["decay"][1], optax.projections.projection_non_negative)
    solver = bl.hoag(problem, inner=rule, outer=0.1)
    _, info = solver.step(solver.init(jnp.array([3.0]), jnp.array([2.0])))
    np.testing.assert_allclose(info.inner_gradient, 0.0, atol=1e-15)


def test_other_refusals():
    with pytest.raises(ValueError, match=r"not a box.*pass a step size"):
        bl.aid(PLAIN, inner=bl.projected(optax.adam(0.1), ball), adjoint=0.1, outer=0.1).init(X, Y)
    decaying = optax.inject_hyperparams(optax.adamw)(1e-3)
    with pytest.raises(ValueError, match=r"leave optax.inject_hyperparams out"):
        bl.aid(PLAIN, inner=decaying, adjoint=0.1, outer=0.1).init(X, Y)
    with pytest.raises(ValueError, match="decays y by itself"):
        bl.f2sa(PLAIN, inner=KINDS["decay"][1], outer=0.1, penalty=10.0).init(X, Y)
    bl.f2sa(PLAIN, inner=frozen, outer=0.1, penalty=10.0).init(X, Y)


class TestProx:
    sparse = with_prox(bl.prox.l1(0.1))

    def test_methods_that_do_not_mind_it_refuse_the_problem(self):
        for make in (
            lambda p: bl.f2sa(p, inner=0.1, outer=0.1, penalty=10.0),
            lambda p: bl.solvers.darts(p, inner=0.1, outer=0.1, virtual_step=0.1),
            lambda p: bl.tuning_free(p),
        ):
            with pytest.raises(ValueError, match=r"proximal map: take one of bl\.solvers\.aid"):
                make(self.sparse)

    def test_the_inner_rule_must_be_a_step_size(self):
        with pytest.raises(ValueError, match="needs a step size"):
            bl.aid(self.sparse, inner=optax.adam(0.1), adjoint=0.1, outer=0.1)

    def test_bad_arguments_are_refused(self, as_users_see_it):
        with pytest.raises(TypeError, match="prox must be a function"):
            bl.Problem(inner=g, outer=f, prox=0.1)  # pyright: ignore
        with pytest.raises(ValueError, match="not negative, not -1"):
            bl.prox.l1(-1)
        with pytest.raises(ValueError, match="not negative, not 'strong'"):
            bl.prox.l1("strong")  # pyright: ignore
        with pytest.raises(ValueError, match="from 0 on"):
            bl.prox.group_lasso(0.1, [0.5, 1.0])
        short = with_prox(bl.prox.group_lasso(0.1, [0, 1]))
        with pytest.raises(ValueError, match=r"groups has shape \(2,\), but y has \(6,\)"):
            bl.aid(short, inner=0.1, adjoint=0.1, outer=0.1).init(X, Y)
        with pytest.raises(TypeError, match=r"prox returned .* like y"):
            bl.aid(with_prox(lambda x, z, step: z[:2]), inner=0.1, adjoint=0.1, outer=0.1).init(X, Y)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("prox", "h"),
        [
            (bl.prox.l1(lambda x: jnp.exp(x)), lambda x, y: jnp.sum(jnp.exp(x) * jnp.abs(y))),
            (
                bl.prox.elastic_net(0.3, lambda x: jnp.exp(x[0])),
                lambda x, y: 0.3 * jnp.sum(jnp.abs(y)) + 0.5 * jnp.exp(x[0]) * jnp.sum(y * y),
            ),
            (
                bl.prox.sparse_group_lasso(0.2, lambda x: jnp.exp(x[:3]), GROUPS),
                lambda x, y: (
                    0.2 * jnp.sum(jnp.abs(y))
                    + jnp.sum(jnp.exp(x[:3]) * jnp.linalg.norm(y.reshape(3, 2), axis=1))
                ),
            ),
        ],
        ids=["l1", "elastic net", "sparse groups"],
    )
    def test_it_minimizes_what_it_says(self, prox, h):
        """No nearby point, and no point with entries set to zero, is better."""
        rng = np.random.default_rng(1)
        for _ in range(5):
            z, step = jnp.asarray(2 * rng.normal(size=N)), 0.7
            objective = jax.jit(lambda y, z=z, step=step: h(X, y) + jnp.sum((y - z) ** 2) / (2 * step))
            y = prox(X, z, step)
            nearby = y[None] + jnp.asarray(
                10.0 ** -rng.integers(1, 5, size=(200, 1)) * rng.normal(size=(200, N))
            )
            fewer = jnp.where(jnp.asarray(rng.random((50, N)) < 0.5), y[None], 0)
            others = jax.vmap(objective)(jnp.concatenate([nearby, fewer]))
            assert jnp.all(others >= objective(y) - 1e-12)

    @pytest.mark.slow
    def test_zeros_are_exact_and_sklearn_finds_the_same_path(self):
        linear_model = pytest.importorskip("sklearn.linear_model")
        alphas, l1_ratio = np.geomspace(2.0, 0.02, 8), 0.6
        _, path, _ = linear_model.enet_path(
            np.asarray(A), np.asarray(B), l1_ratio=l1_ratio, alphas=alphas, tol=1e-12
        )
        net = bl.prox.elastic_net(lambda x: l1_ratio * jnp.exp(x), lambda x: (1 - l1_ratio) * jnp.exp(x))
        squares = lambda x, y: 0.5 * jnp.mean((A @ y - B) ** 2)
        solver = bl.aid(bl.Problem(inner=squares, outer=f, prox=net), inner=STEP, adjoint=STEP, outer=STILL)
        solve = jax.jit(jax.vmap(lambda x: bl.warm_up(solver, solver.init(x, Y), steps=3000).y))
        found = np.asarray(solve(jnp.log(alphas))).T
        np.testing.assert_allclose(found, path, atol=1e-8)
        assert np.array_equal(found == 0, path == 0)
        assert 0 < np.sum(found == 0) < found.size

    def test_sparse_groups_satisfy_their_optimality_conditions(self):
        problem, _ = KINDS["sparse groups"]
        solver = bl.soba(problem, inner=STEP, adjoint=STEP, outer=STILL)
        y = np.asarray(bl.warm_up(solver, solver.init(X, Y), steps=3000).y)
        slope, (l1, strength) = (
            -np.asarray(jax.grad(g, 1)(X, y)),
            (np.exp(X[0]), 3 * np.exp(np.asarray(X[:3]))),
        )
        soft = lambda a: np.sign(a) * np.maximum(np.abs(a) - l1, 0)
        zeros = 0
        for j in range(3):
            members = np.flatnonzero(j == GROUPS)
            part, s = y[members], slope[members]
            if not part.any():
                assert np.linalg.norm(soft(s)) <= strength[j]
                zeros += 1
            else:
                expected = strength[j] * part / np.linalg.norm(part)
                np.testing.assert_allclose(soft(s), expected, atol=1e-9)
        assert 0 < zeros < 3


@pytest.mark.slow
def test_tolerances_of_hoag_do_not_depend_on_units():
    def counts(scale_f, scale_g):
        problem = bl.Problem(inner=lambda x, y: scale_g * g(x, y), outer=lambda x, y: scale_f * f(x, y))
        solver = bl.hoag(problem, inner=STEP / scale_g, outer=0.1 / scale_f)
        record = lambda _, info: (info.metrics["inner_steps"], info.metrics["adjoint_steps"])
        return bl.scan(solver, solver.init(X, Y), steps=5, record=record)[1]

    for scale_f, scale_g in [(2.0**12, 1.0), (1.0, 2.0**-12)]:
        for left, right in zip(counts(1.0, 1.0), counts(scale_f, scale_g), strict=True):
            np.testing.assert_array_equal(left, right)


def test_methods_that_solve_the_plain_system_refuse_rules_that_rest_elsewhere():
    implicit = {
        "qNBO": lambda rule: bl.solvers.qnbo(PLAIN, inner=rule, outer=0.1),
        "SUSTAIN": lambda rule: bl.solvers.sustain(PLAIN, inner=rule, adjoint=0.1, outer=0.1, momentum=0.5),
    }
    for name, make in implicit.items():
        for kind in ("decay", "frozen", "projected, box"):
            with pytest.raises(ValueError, match=rf"{name} needs an inner rule .* on all of y"):
                make(KINDS[kind][1]).init(X, Y)
    for make in (bl.f2sa, bl.solvers.f2ba):
        with pytest.raises(ValueError, match="decays y by itself"):
            make(PLAIN, inner=KINDS["decay"][1], outer=0.1, penalty=10.0).init(X, Y)
        make(PLAIN, inner=KINDS["projected, box"][1], outer=0.1, penalty=10.0).init(X, Y)


STATED = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": optax.adam(1e-3),
    "rmsprop": optax.rmsprop(1e-2),
    "clipped": optax.chain(optax.clip_by_global_norm(1.0), optax.clip(0.5), optax.adam(1e-3)),
}
TRIED = {
    "decay": optax.adamw(1e-3),
    "schedule": optax.sgd(optax.cosine_decay_schedule(0.1, 10)),
    "frozen": optax.sgd(0.0),
    "no eps": optax.adam(1e-3, eps=0.0),
    "half": optax.adam(1e-3, mu_dtype=jnp.bfloat16),
    "user": optax.stateless(lambda updates, _: updates),
}


@pytest.mark.parametrize("name", STATED)
def test_common_rules_state_their_fixed_point(name):
    y = {"w": jnp.ones((2, 3)), "b": jnp.ones(2)}
    found = as_rule(STATED[name], "inner").fixed_point(y)
    assert found == FixedPoint({"w": True, "b": True}, {"w": 0.0, "b": 0.0}, True)
    tried = classify(PLAIN, as_rule(STATED[name], "inner"), y)
    assert (tried.active, tried.plain) == (found.active, found.plain)


@pytest.mark.parametrize("name", TRIED)
def test_other_rules_do_not_state_a_fixed_point(name):
    assert as_rule(TRIED[name], "inner").fixed_point(jnp.ones(2)) is None


def test_half_precision_is_tried():
    assert as_rule(STATED["adam"], "inner").fixed_point(jnp.ones(2, "float16")) is None
