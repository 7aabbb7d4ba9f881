"""on_divergence="halve": back to where the run was good, and on with smaller steps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel.solvers.rules import Rule, as_rule
from bilevel.solvers.step_scaling import has_steps, shorter, with_smaller_steps
from run_options import with_options
from zoo import ROWS

X0, Y0 = jnp.ones(2), jnp.zeros(2)


def g(x, y):
    return jnp.sum((y - x) ** 2)  # ∇²_yy g = 2I: plain steps on y and v must stay below 1


def f(x, y):
    return 0.5 * jnp.sum((y - 2) ** 2)


PLAIN = bl.Problem(inner=g, outer=f)
WILD = bl.aid(PLAIN, inner=3.0, adjoint=0.4, outer=0.1)  # 3 and 1.5 are too large, 0.75 is not
TAME = bl.aid(PLAIN, inner=0.75, adjoint=0.1, outer=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("every", [10, 1024])
@pytest.mark.parametrize("replay", ["device", "host"])
def test_a_run_that_diverges_from_the_start_is_the_run_with_smaller_steps(every, replay):
    result = bl.run(
        WILD,
        X0,
        Y0,
        steps=1200,
        options=bl.RunOptions(every=every, snapshots=replay, on_divergence="halve"),
    )
    assert result.status.code is bl.Code.COMPLETED
    assert result.halvings == ((0, 0.5, 1.0), (0, 0.25, 1.0))
    assert (
        "went on from step 0 with 0.25 of the lower levels' step sizes and 1 of the outer"
        in result.status.message
    )
    tame = bl.run(TAME, X0, Y0, steps=1200)
    np.testing.assert_array_equal(result.x, tame.x)  # the solver is data: the same program with other numbers
    np.testing.assert_array_equal(result.trace["outer_value"], tame.trace["outer_value"])
    assert tame.halvings == ()
    still = bl.run(WILD, X0, Y0, steps=1200, options=bl.RunOptions(every=every))
    assert still.status.code is bl.Code.DIVERGED


@pytest.mark.slow
@pytest.mark.parametrize("every", [None, 1])
def test_chunks_of_a_single_step_find_the_way_back_too(every):
    """One step before it overflows all is 1e150 already: the run must go back further than the chunk before."""
    result = bl.run(
        WILD,
        X0,
        Y0,
        steps=1200,
        options=bl.RunOptions(every=every, on_divergence="halve"),
    )
    assert result.status.code is bl.Code.COMPLETED
    assert [lower for _, lower, _ in result.halvings] == [0.5, 0.25]
    assert max(step for step, *_ in result.halvings) <= 2
    np.testing.assert_allclose(result.x, bl.run(TAME, X0, Y0, steps=1200).x, rtol=1e-3)


@pytest.mark.slow
def test_nothing_is_compiled_again():
    traced = []

    def counted(x, y):
        traced.append(1)
        return f(x, y)

    problem = bl.Problem(inner=g, outer=counted)
    calm = bl.run(
        bl.aid(problem, inner=0.75, adjoint=0.1, outer=0.1),
        X0,
        Y0,
        steps=50,
        options=bl.RunOptions(on_divergence="halve"),
    )
    before = len(traced)
    one = bl.run(
        bl.aid(problem, inner=1.5, adjoint=0.2, outer=0.05),
        X0,
        Y0,
        steps=2000,
        options=bl.RunOptions(on_divergence="halve"),
    )
    after_one = len(traced)  # the first divergence has the objectives looked at, by programs of its own
    many = bl.run(
        bl.aid(problem, inner=24.0, adjoint=0.2, outer=0.05),
        X0,
        Y0,
        steps=2000,
        options=bl.RunOptions(on_divergence="halve"),
    )
    assert [len(each.halvings) for each in (calm, one, many)] == [0, 1, 5]
    assert before > 0
    assert len(traced) == after_one


@pytest.mark.slow
def test_it_goes_back_to_where_it_was_good_and_no_further():
    """An outer step of 0.1 becomes 60 at step 50. In float32 even a slow blow-up ends soon."""
    jumps = optax.sgd(lambda count: jnp.where(count < 50, jnp.float32(0.1), jnp.float32(60.0)))
    solver, start = (
        bl.aid(PLAIN, inner=0.5, adjoint=0.5, outer=jumps),
        (X0.astype(jnp.float32), Y0.astype(jnp.float32)),
    )
    result = bl.run(
        solver,
        *start,
        steps=3000,
        options=bl.RunOptions(every=50, on_divergence="halve"),
    )
    assert result.status.code is bl.Code.COMPLETED
    assert "blow-up" not in result.status.message
    assert result.halvings[0] == (50, 1.0, 0.5)  # the lower levels' steps are small enough, and stay so
    assert all(step >= 50 and lower == 1.0 for step, lower, _ in result.halvings)
    assert [outer for *_, outer in result.halvings] == [0.5 ** (k + 1) for k in range(len(result.halvings))]
    before = bl.run(solver, *start, steps=50)
    np.testing.assert_array_equal(result.trace["outer_value"][:50], before.trace["outer_value"])
    assert len(result.trace["outer_value"]) == 3000
    np.testing.assert_allclose(result.x, 2.0, atol=1e-3)  # y*(x) = x, so f is least at x = 2


@pytest.mark.slow
def test_where_a_lower_rule_cannot_be_judged_all_levels_are_halved():
    solver = bl.aid(PLAIN, inner=optax.sgd(3.0), adjoint=0.4, outer=0.1)
    result = bl.run(
        solver,
        X0,
        Y0,
        steps=1200,
        options=bl.RunOptions(every=100, on_divergence="halve"),
    )
    assert result.status.code is bl.Code.COMPLETED
    assert result.halvings == ((0, 0.5, 0.5), (0, 0.25, 0.25))
    tame = bl.run(bl.aid(PLAIN, inner=optax.sgd(0.75), adjoint=0.1, outer=0.025), X0, Y0, steps=1200)
    np.testing.assert_allclose(result.x, tame.x, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["itd 30", "itd 1", "aid 10"])
def test_a_variable_that_runs_away_is_followed_by_smaller_steps_until_they_serve(method):
    """y⁴ overflows long before y's square does, and λ = 3 + 3y² is larger on the way than the 3 at the start."""
    quartic = bl.Problem(
        inner=lambda x, y: jnp.sum(1.5 * y**2 + 0.25 * y**4 - x * y),
        outer=lambda x, y: jnp.sum(0.5 * (y - 1) ** 2 + 0.05 * x**2),
    )
    name, size = method.split()
    solver = (
        bl.itd(quartic, inner=float(size), outer=0.1)
        if name == "itd"
        else bl.aid(quartic, inner=float(size), adjoint=0.1, outer=0.1)
    )
    start = jnp.ones(1, jnp.float32), jnp.zeros(1, jnp.float32)
    still = bl.run(solver, *start, steps=500, options=bl.RunOptions(every=50))
    assert still.status.code is bl.Code.DIVERGED
    assert "the inner step size" in still.status.message
    assert "smaller steps cannot help" not in still.status.message
    result = bl.run(
        solver,
        *start,
        steps=500,
        options=bl.RunOptions(every=50, on_divergence="halve"),
    )
    assert result.status.code is bl.Code.COMPLETED, result.status


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["halve", "stop"])
def test_a_resumed_run_keeps_the_smaller_steps(policy):
    whole = bl.run(
        WILD,
        X0,
        Y0,
        steps=1300,
        options=bl.RunOptions(every=100, on_divergence="halve"),
    )
    half = bl.run(
        WILD,
        X0,
        Y0,
        steps=1100,
        options=bl.RunOptions(every=100, on_divergence="halve"),
    )
    on = bl.run(
        WILD,
        steps=200,
        options=bl.RunOptions(every=100, on_divergence=policy),
        resume=half,
    )
    assert half.halvings == on.halvings == whole.halvings != ()
    np.testing.assert_array_equal(on.x, whole.x)
    np.testing.assert_array_equal(on.trace["outer_value"], whole.trace["outer_value"])
    assert on.status == whole.status
    saved = []
    bl.run(
        WILD,
        X0,
        Y0,
        steps=1300,
        options=bl.RunOptions(every=100, on_divergence="halve"),
        hooks=[lambda e: saved.append(e.so_far())],
    )
    assert saved[-1].halvings == whole.halvings


@pytest.mark.slow
def test_retries_are_bounded():
    hopeless = bl.aid(PLAIN, inner=1e6, adjoint=0.1, outer=0.1)
    result = bl.run(hopeless, X0, Y0, steps=500, options=bl.RunOptions(on_divergence="halve"))
    assert result.status.code is bl.Code.DIVERGED
    assert len(result.halvings) == 10
    assert "Halving the step sizes 10 times did not help" in result.status.message
    assert "the inner step size" in result.status.message
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(result.state))


def test_a_warm_up_is_tried_again_too():
    result = bl.run(WILD, X0, Y0, steps=50, warmup=1500, options=bl.RunOptions(on_divergence="halve"))
    assert result.status.code is bl.Code.COMPLETED
    tame = bl.run(TAME, X0, Y0, steps=50, warmup=1500)
    np.testing.assert_array_equal(result.x, tame.x)


def numbered(steps: int):
    return [bl.Batch(rows=bl.Levels(None, jnp.array([k]))) for k in range(steps)]


@pytest.mark.slow
def test_a_loader_s_batches_are_seen_again_in_their_order():
    problem = bl.Problem(inner=g, outer=lambda x, y, *, rows: f(x, y) + 0.0 * rows[0].astype(float))
    seen = lambda state, info, batch: {"row": batch.rows.outer[0]}
    options = dict(steps=700, every=100, record=seen, probe=lambda state, info: {"y": state.y[0]})
    result = bl.run(
        bl.aid(problem, inner=3.0, adjoint=0.4, outer=0.1),
        X0,
        Y0,
        data=numbered(700),
        **with_options(options | dict(on_divergence="halve")),
    )
    assert result.status.code is bl.Code.COMPLETED
    np.testing.assert_array_equal(result.trace["row"], np.arange(700))
    np.testing.assert_array_equal(result.probes["step"], np.arange(100, 701, 100))
    tame = bl.run(
        bl.aid(problem, inner=0.75, adjoint=0.1, outer=0.1),
        X0,
        Y0,
        data=numbered(700),
        **with_options(options),
    )
    np.testing.assert_array_equal(result.x, tame.x)
    np.testing.assert_array_equal(result.probes["y"], tame.probes["y"])


@pytest.mark.slow
def test_what_smaller_steps_cannot_mend_is_not_tried_for_ever():
    a = np.ones((4, 2))
    a[2, 1] = np.nan
    fits = bl.Problem(inner=lambda x, y, a: jnp.sum((a @ y - 1) ** 2) + g(x, y), outer=f)
    result = bl.run(
        bl.aid(fits, inner=0.1, adjoint=0.1, outer=0.1),
        X0,
        Y0,
        data=bl.Batch(inner=a),
        steps=20,
        options=bl.RunOptions(on_divergence="halve"),
    )
    assert result.status.code is bl.Code.DIVERGED
    assert "clean the data" in result.status.message
    assert "Smaller steps were not tried, as they cannot help." in result.status.message
    assert result.halvings == ()

    rooted = bl.Problem(inner=g, outer=lambda x, y: f(x, y) + jnp.sqrt(jnp.sum((x - 1) ** 2)))
    result = bl.run(
        bl.aid(rooted, inner=0.1, adjoint=0.1, outer=0.1),
        X0,
        Y0,
        steps=20,
        options=bl.RunOptions(on_divergence="halve"),
    )
    assert (result.status.code, result.halvings) == (bl.Code.DIVERGED, ())
    assert "they cannot help" in result.status.message

    table = jnp.where(jnp.arange(50) < 7, 0.0, jnp.nan)
    later = bl.Problem(inner=g, outer=lambda x, y, *, rows: f(x, y) + jax.lax.stop_gradient(table[rows[0]]))
    result = bl.run(
        bl.aid(later, inner=0.1, adjoint=0.1, outer=0.1),
        X0,
        Y0,
        data=numbered(50),
        steps=50,
        options=bl.RunOptions(on_divergence="halve"),
    )
    assert (result.status.code, result.status.variable, result.steps) == (bl.Code.DIVERGED, "outer_value", 7)
    assert len(result.halvings) == 10  # a smaller step might have led elsewhere
    assert "did not help" in result.status.message


@pytest.mark.usefixtures("as_users_see_it")
def test_refused_before_any_work():
    with pytest.raises(ValueError, match=r"on_divergence must be .stop. or .halve., not .double."):
        bl.run(WILD, X0, Y0, steps=2, options=bl.RunOptions(on_divergence="double"))
    with pytest.raises(ValueError, match='snapshots="off" keeps nothing to go back to'):
        bl.run(
            WILD,
            X0,
            Y0,
            steps=2,
            options=bl.RunOptions(on_divergence="halve", snapshots="off"),
        )
    for solver in (bl.tuning_free(PLAIN), bl.solvers.s_tfbo(PLAIN), bl.solvers.d_tfbo(PLAIN)):
        with pytest.raises(ValueError, match=f"{solver.name} has no step sizes"):
            bl.run(solver, X0, Y0, steps=2, options=bl.RunOptions(on_divergence="halve"))


class Own(Rule):
    """A rule of the user's: the sign of the gradient."""

    size: float

    def init(self, point):
        return ()

    def update(self, gradient, memory, point, value=None):
        return jax.tree.map(lambda p, d: p - self.size * jnp.sign(d), point, gradient), memory


RULES = {
    "number": 0.1,
    "whole number": 1,
    "array": jnp.float32(0.1),
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "schedule": optax.sgd(optax.linear_schedule(0.1, 0.01, 100)),
    "injected": optax.inject_hyperparams(optax.sgd)(0.1),
    "clipped": optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.05)),
    "rmsprop": optax.rmsprop(0.1),
    "projected": bl.projected(0.1, optax.projections.projection_non_negative),
    "projected sgd": bl.projected(optax.sgd(0.1), optax.projections.projection_non_negative),
    "one's own": Own(0.1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_every_kind_of_rule_goes_half_the_way(name):
    rule = as_rule(RULES[name], "outer")
    point, gradient = jnp.array([3.0, 4.0]), jnp.array([1.0, -2.0])
    whole, _ = rule.update(gradient, rule.init(point), point)
    for factor in (1.0, 0.5, 0.125):
        part = shorter(rule, factor)
        after, _ = part.update(gradient, part.init(point), point)
        np.testing.assert_allclose(after - point, factor * (whole - point), rtol=1e-6)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_method_has_steps_to_halve_or_says_that_it_has_none(row):
    solver = row.make(PLAIN, 2.0)
    halves = [with_smaller_steps(solver, factor, 1.0) for factor in (1.0, 0.5, 0.25)]
    assert len({jax.tree.structure(each) for each in halves}) == 1  # one program serves them all
    changed = [not np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, halves[1:]), strict=True)]
    assert any(changed) == has_steps(solver) == (row.name not in ("tuning_free", "d_tfbo", "s_tfbo"))
