"""Objectives as people write them: what they may ask for, what they may return, and what is refused in which words."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.loop.state import OBJECTIVES
from run_options import with_options

Z = jnp.zeros(2)
ROWS = 6
TARGETS = jnp.arange(2.0 * ROWS).reshape(ROWS, 2)
FULL = bl.Batch(inner=TARGETS, outer=TARGETS)


def g(x, y, *_):
    return jnp.sum((y - x) ** 2)


def f(x, y, *_):
    return jnp.sum((y - 1.0) ** 2)


def solver_of(inner=g, outer=f):
    return bl.aid(bl.Problem(inner=inner, outer=outer), inner=0.1, adjoint=0.1, outer=0.1)


def solve(inner=g, outer=f, **options):
    return bl.run(solver_of(inner, outer), Z, Z, **with_options({"steps": 3} | options))


def code(key):
    """A key as one number."""
    return jax.random.bits(key)


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


# Signatures

COUNT = {"n": jnp.int32(0)}


def counted(loss, state):
    return loss, {"n": state["n"]}, {"n": state["n"] + 1}


def method_holder():
    class Loss:
        def __call__(self, x, y, batch, *, key):
            return g(x, y), {"key": code(key)}

        def method(self, x, y, *, rows=None):
            return g(x, y)

    return Loss()


ACCEPTED = {
    "(x, y)": (lambda x, y: g(x, y), None, "never", set()),
    "(x, y, batch)": (lambda x, y, batch: g(x, y), FULL, "required", set()),
    "(x, y, batch=None)": (lambda x, y, batch=None: g(x, y), None, "optional", set()),
    "(x, y, batch=None) with data": (lambda x, y, batch=None: g(x, y), FULL, "optional", set()),
    "(x, y, *, key)": (lambda x, y, *, key: g(x, y), None, "never", {"key"}),
    "(x, y, *, key=None)": (lambda x, y, *, key=None: g(x, y), None, "never", {"key"}),
    "(x, y, batch, key)": (lambda x, y, batch, key: g(x, y), FULL, "required", {"key"}),
    "(x, y, batch, key=None, rows=None)": (
        lambda x, y, batch, key=None, rows=None: g(x, y),
        FULL,
        "required",
        {"key", "rows"},
    ),
    "(x, y, batch=None, *, key)": (lambda x, y, batch=None, *, key: g(x, y), None, "optional", {"key"}),
    "(x, y, batch, *, key, rows, state)": (
        lambda x, y, batch, *, key, rows, state: counted(g(x, y), state),
        FULL,
        "required",
        {"key", "rows", "state"},
    ),
    "(x, y, *, state=None)": (lambda x, y, *, state=None: (g(x, y), {}, state), None, "never", {"state"}),
    "a batch called rows": (lambda x, y, rows: g(x, y) + jnp.sum(rows), FULL, "required", set()),
    "an unknown keyword with a default": (lambda x, y, *, scale=2.0: scale * g(x, y), None, "never", set()),
    "a fourth argument with a default": (lambda x, y, b, c=2.0: c * g(x, y), FULL, "required", set()),
    "(x, y, *rest)": (lambda x, y, *rest: g(x, y), FULL, "optional", set()),
    "(x, y, **rest)": (lambda x, y, **rest: g(x, y), None, "never", set()),
    "a partial": (functools.partial(lambda x, y, *, scale: scale * g(x, y), scale=2.0), None, "never", set()),
    "jitted": (jax.jit(lambda x, y, batch, *, key: g(x, y)), FULL, "required", {"key"}),
    "an object": (method_holder(), FULL, "required", {"key"}),
    "a method": (method_holder().method, None, "never", {"rows"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ACCEPTED)
def test_signatures_that_are_understood(name):
    function, data, batch, extras = ACCEPTED[name]
    problem = bl.Problem(inner=function, outer=f)
    assert (problem.g.batch, problem.g.extras) == (batch, extras)
    data = None if data is None else bl.Batch(inner=data.inner)
    given = COUNT if "state" in problem.g.needs else None
    result = bl.run(
        bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.1), Z, Z, steps=2, data=data, model_state=given
    )
    assert result.status.code is bl.Code.COMPLETED


REFUSED_SIGNATURES = {
    "one argument": (
        lambda x: x,
        ["must take (x, y) or (x, y, batch)", "its signature is (x)", "functools.partial"],
    ),
    "an unknown keyword": (
        lambda x, y, *, scale: g(x, y),
        ["key, rows, state", "(x, y, *, scale)", "functools.partial"],
    ),
    "an unknown fourth": (lambda x, y, b, c: g(x, y), ["(x, y, b, c)", "functools.partial"]),
    "a misspelled extra": (lambda x, y, *, keys: g(x, y), ["(x, y, *, keys)", "keywords key, rows, state"]),
    "key by position only": (lambda x, y, b, key, /: g(x, y), ["(x, y, b, key, /)"]),
    "key as the third": (
        lambda x, y, key: g(x, y),
        ["third argument", "`key`", "(x, y, *, key)", "another name"],
    ),
    "state as the third": (lambda x, y, state=None: g(x, y), ["`state`", "(x, y, *, state)"]),
    "no function": (3.0, ["must be a function of (x, y) or (x, y, batch), not float", "the function itself"]),
}


@pytest.mark.parametrize("level", ["inner", "outer"])
@pytest.mark.parametrize("name", REFUSED_SIGNATURES)
def test_signatures_that_are_refused(name, level, as_users_see_it):
    function, words = REFUSED_SIGNATURES[name]
    with pytest.raises(TypeError) as refusal:
        bl.Problem(**({"inner": g, "outer": f} | {level: function}))
    assert f"the {level} objective" in str(refusal.value)
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.slow
def test_what_a_partial_binds_stays_bound():
    noisy = lambda x, y, *, key: (g(x, y), {"key": code(key)})
    fixed = functools.partial(noisy, key=jax.random.key(3))
    assert bl.Problem(inner=fixed, outer=f).g.extras == frozenset()
    assert set(solve(inner=fixed).trace["inner/key"]) == {int(code(jax.random.key(3)))}


# What an objective asks for and does not get


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            dict(inner=lambda x, y, *, state: counted(g(x, y), state)),
            ["inner", "`state`", "model_state=...", "bl.start"],
        ),
        (dict(outer=lambda x, y, *, state: f(x, y)), ["outer", "`state`", "model_state=..."]),
        (
            dict(inner=lambda x, y, *, rows: g(x, y)),
            ["inner", "`rows`", "bl.epochs", "rows=bl.Levels(inner=..., outer=...)"],
        ),
        (
            dict(inner=lambda x, y, b, *, rows: g(x, y), data=bl.Batch(inner=(jnp.ones(3), jnp.ones(2)))),
            ["`rows`", "one row per example"],
        ),
        (dict(inner=lambda x, y, b: g(x, y)), ["(x, y, batch)", "no inner data", "data=bl.Batch(inner=...)"]),
        (
            dict(data=bl.Batch(inner=TARGETS), inner=lambda x, y: g(x, y)),
            ["only (x, y)", "inner data were given"],
        ),
    ],
)
def test_what_is_asked_for_must_be_there(options, words):
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        solve(**options)
    for word in words:
        assert word in str(refusal.value)


def test_rows_from_a_loader_that_gives_none():
    inner = lambda x, y, batch, *, rows: g(x, y)
    with pytest.raises(
        ValueError, match=r"asks for `rows`, but there is none: .* from a loader, .*bl\.Levels"
    ):
        solve(inner=inner, data=[bl.Batch(inner=TARGETS)])


@pytest.mark.slow
def test_a_step_by_hand_says_what_it_lacks():
    solver = solver_of(lambda x, y, *, key: g(x, y))
    with pytest.raises(
        ValueError, match=r"asks for `key`, .* by hand, pass bl\.Batch\(\.\.\., key=jax\.random\.key"
    ):
        solver.init(Z, Z)
    by_hand = bl.Batch(key=jax.random.key(0))
    solver.step(solver.init(Z, Z, by_hand), by_hand)


def test_scan_from_a_bare_state_needs_a_run_for_keys():
    solver = solver_of(lambda x, y, *, key: g(x, y))
    state = solver.init(Z, Z, bl.Batch(key=jax.random.key(0)))
    with pytest.raises(TypeError, match=r"ask for `key`.*bl\.start\(solver, x0, y0, data"):
        bl.scan(solver, state, steps=2)


# What an objective returns

BAD_RETURNS = {
    "a vector": (
        dict(outer=lambda x, y: y),
        ValueError,
        ["outer objective must return a scalar", "(2,)", "jnp.mean"],
    ),
    "nothing": (dict(inner=lambda x, y: None), ValueError, ["inner objective must return a scalar", "None"]),
    "a word": (dict(outer=lambda x, y: "low"), TypeError, ["outer objective returned a loss that is a str"]),
    "an integer": (dict(outer=lambda x, y: jnp.int32(1)), TypeError, ["floating scalar", "int32"]),
    "a list": (dict(outer=lambda x, y: [f(x, y), {}]), ValueError, ["must return a scalar"]),
    "a pair without a dict": (
        dict(outer=lambda x, y: (f(x, y), y)),
        TypeError,
        [
            "the outer objective must return a loss, or (loss, metrics)",
            "float64[2]",
            "dict of scalars by name",
        ],
    ),
    "three parts from the outer": (
        dict(outer=lambda x, y, *, state: (f(x, y), {}, state), model_state=COUNT),
        TypeError,
        ["the outer objective", "(float64[], dict, dict)", "only an inner objective that takes `state`"],
    ),
    "three parts without state": (
        dict(inner=lambda x, y: (g(x, y), {}, COUNT)),
        TypeError,
        ["the inner objective", "only an inner objective that takes `state` returns a third part"],
    ),
    "a loss alone with state": (
        dict(inner=lambda x, y, *, state: g(x, y), model_state=COUNT),
        TypeError,
        ["takes `state` must return (loss, metrics, state), with {} for no metrics, but returned float64[]"],
    ),
    "loss and state": (
        dict(inner=lambda x, y, *, state: (g(x, y), state), model_state=COUNT),
        TypeError,
        ["must return (loss, metrics, state)", "(float64[], dict)"],
    ),
    "metrics and state the wrong way round": (
        dict(inner=lambda x, y, *, state: (g(x, y), state, {}), model_state=jnp.zeros(2)),
        TypeError,
        ["must return (loss, metrics, state)", "(float64[], float64[2], dict)"],
    ),
    "a vector metric": (
        dict(inner=lambda x, y: (g(x, y), {"y": y})),
        ValueError,
        ["the inner objective's metrics must be scalars by name, but 'y' is (2,)", "jnp.mean"],
    ),
    "a nested metric": (
        dict(outer=lambda x, y: (f(x, y), {"a": {"b": y[0]}})),
        ValueError,
        ["the outer objective's metrics must be scalars", "'a' is {'b': ()}"],
    ),
    "no metric": (dict(outer=lambda x, y: (f(x, y), {"a": None})), ValueError, ["'a' is None"]),
    "a word as a metric": (
        dict(inner=lambda x, y: (g(x, y), {"phase": "warm"})),
        TypeError,
        ["the metric 'phase' that is a str", "scalar"],
    ),
    "a metric without a name": (
        dict(inner=lambda x, y: (g(x, y), {3: y[0]})),
        TypeError,
        ["by name, but 3 is a int", "string"],
    ),
    "a state that grows": (
        dict(
            inner=lambda x, y, *, state: (g(x, y), {}, jnp.concatenate([state, state])),
            model_state=jnp.zeros(2),
        ),
        ValueError,
        ["given a state of float64[2] and returned one of float64[4]", "same tree, shapes and dtypes"],
    ),
    "a state of another dtype": (
        dict(
            inner=lambda x, y, *, state: (g(x, y), {}, {"n": state["n"].astype(jnp.float32)}),
            model_state={"n": jnp.float64(0)},
        ),
        ValueError,
        ["{'n': 'float64[]'}", "{'n': 'float32[]'}"],
    ),
    "a state with another leaf": (
        dict(inner=lambda x, y, *, state: (g(x, y), {}, {**state, "m": 1.0}), model_state=COUNT),
        ValueError,
        ["'m'", "same tree"],
    ),
    "a state out of nowhere": (
        dict(inner=lambda x, y, *, state=None: (g(x, y), {}, COUNT)),
        ValueError,
        ["was given no state and returned one", "model_state=..."],
    ),
    "a model state that is no number": (
        dict(inner=lambda x, y, *, state: counted(g(x, y), state), model_state={"n": "zero"}),
        TypeError,
        ["model_state['n'] is a str", "not an array of numbers"],
    ),
}


@pytest.mark.parametrize("name", BAD_RETURNS)
def test_returns_that_are_refused(name, as_users_see_it):
    options, error, words = BAD_RETURNS[name]
    with pytest.raises(error) as refusal:
        solve(**options)
    assert not isinstance(refusal.value, bl.RunError)
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.slow
def test_an_optional_state_that_is_not_there_is_left_out():
    seen = []

    def inner(x, y, *, state=None):
        seen.append(state)
        return g(x, y), {}, state

    assert solve(inner=inner).model_state is None
    assert all(state is None for state in seen)
    assert solve(inner=inner, model_state=jnp.ones(3)).model_state.shape == (3,)


@pytest.mark.slow
def test_a_state_of_python_numbers_and_of_other_byte_orders():
    inner = lambda x, y, *, state: (g(x, y), {}, {"n": state["n"] + jnp.ones((), state["n"].dtype)})
    for start, dtype in ((0.0, np.float64), (np.zeros((), ">f4"), np.float32), (0, np.int64)):
        end = solve(inner=inner, model_state={"n": start}).model_state["n"]
        assert (float(end), end.dtype, end.weak_type) == (3.0, dtype, False)


@pytest.mark.slow
def test_a_function_may_write_into_the_state_it_is_given():
    """Each evaluation has a tree of its own: one that was written into would leak from one to the next."""

    def inner(x, y, *, state):
        state["n"] = state["n"] + 1
        return g(x, y), {}, state

    start = {"n": jnp.int32(0)}
    result = solve(inner=inner, model_state=start, steps=5)
    assert int(result.model_state["n"]) == 5
    assert int(start["n"]) == 0


# Rows


@pytest.mark.slow
def test_rows_of_a_full_batch_are_all_of_them_in_order():
    inner = lambda x, y, batch, *, rows: (
        g(x, y),
        {"good": jnp.all(rows == jnp.arange(ROWS, dtype=rows.dtype))},
    )
    outer = lambda x, y, batch, *, rows: (f(x, y), {"count": rows.shape[0]})
    result = solve(
        inner, outer, data=bl.Batch(inner=TARGETS, outer={"a": jnp.ones(4), "b": jnp.ones((4, 2))})
    )
    assert result.trace["inner/good"].all()
    np.testing.assert_array_equal(result.trace["outer/count"], 4)


@pytest.mark.slow
@pytest.mark.parametrize("make", [bl.epochs, bl.iid])
def test_rows_of_minibatches_name_the_rows_that_came(make):
    right = lambda batch, rows: jnp.all(batch == TARGETS[rows])
    inner = lambda x, y, batch, *, rows: (g(x, y), {"right": right(batch, rows), "first": rows[0]})
    outer = lambda x, y, batch, *, rows: (f(x, y), {"right": right(batch, rows), "first": rows[0]})
    result = solve(inner, outer, data=make(FULL, bl.Levels(2, 3)), steps=12)
    assert result.trace["inner/right"].all()
    assert result.trace["outer/right"].all()
    assert len(set(result.trace["inner/first"])) > 1
    assert not np.array_equal(result.trace["inner/first"], result.trace["outer/first"])


@pytest.mark.slow
def test_a_level_without_a_size_has_all_rows():
    outer = lambda x, y, batch, *, rows: (
        f(x, y),
        {"all": jnp.all(rows == jnp.arange(ROWS, dtype=rows.dtype))},
    )
    assert solve(outer=outer, data=bl.epochs(FULL, bl.Levels(2, None))).trace["outer/all"].all()


@pytest.mark.slow
def test_rows_that_a_loader_or_a_batch_names():
    inner = lambda x, y, batch, *, rows: (g(x, y), {"row": rows[0]})
    named = lambda k: bl.Batch(inner=TARGETS, rows=bl.Levels(inner=np.array([10 * k])))
    np.testing.assert_array_equal(solve(inner, data=map(named, range(3))).trace["inner/row"], [0, 10, 20])
    np.testing.assert_array_equal(solve(inner, data=named(4)).trace["inner/row"], [40, 40, 40])


@pytest.mark.slow
def test_each_of_independent_draws_has_its_rows_and_its_key():
    seen = []

    def inner(x, y, batch, *, rows, key):
        jax.debug.callback(lambda *at: seen.append(tuple(map(int, at))), rows[0], code(key))
        return jnp.sum((y - x) ** 2) + jnp.sum((batch - TARGETS[rows]) ** 2)

    solver = bl.soba(
        bl.Problem(inner=inner, outer=f), inner=0.1, adjoint=0.1, outer=0.1, batches="independent"
    )
    bl.run(solver, Z, Z, data=bl.epochs(FULL, bl.Levels(1, None)), steps=1, options=bl.RunOptions(every=1))
    jax.effects_barrier()
    assert len({row for row, _ in seen}) == 3  # of one epoch, none twice
    assert len({key for _, key in seen}) == 3


# Keys


def keyed_inner(x, y, *, key):
    return g(x, y), {"key": code(key)}


def keyed_outer(x, y, *, key):
    return f(x, y), {"key": code(key)}


KEYED = solver_of(keyed_inner, keyed_outer)


def keys_of(**options):
    result = bl.run(KEYED, Z, Z, **with_options(options))
    return result.trace["inner/key"].tolist(), result.trace["outer/key"].tolist()


@pytest.mark.slow
def test_keys_are_a_function_of_seed_and_step_and_differ_between_the_levels():
    inner, outer = keys_of(steps=20, seed=4)
    base = jax.random.fold_in(jax.random.key(4), OBJECTIVES)  # apart from a data stream's of the same seed
    expected = [
        [int(code(jax.random.fold_in(jax.random.fold_in(base, step), level))) for step in range(20)]
        for level in (0, 1)
    ]
    assert [inner, outer] == expected
    assert len({*inner, *outer}) == 40
    other = keys_of(steps=20, seed=5)
    assert not {*inner, *outer} & {*other[0], *other[1]}


@pytest.mark.slow
@pytest.mark.parametrize("solver", [bl.aid, bl.itd, bl.soba])
def test_all_evaluations_within_a_step_have_one_key(solver):
    seen = []

    def inner(x, y, *, key):
        jax.debug.callback(lambda key: seen.append(int(key)), code(key))
        return jnp.sum((y - x) ** 2 + 0.01 * y**4), {"key": code(key)}

    problem = bl.Problem(inner=inner, outer=f)
    sizes = {"inner": 0.1, "outer": 0.1} | ({} if solver is bl.itd else {"adjoint": 0.1})
    more = {} if solver is bl.soba else {"inner_steps": 3, "batches": "shared"}
    result = bl.run(solver(problem, **sizes, **more), Z, Z, steps=5, options=bl.RunOptions(every=5))
    jax.effects_barrier()
    assert set(seen) == set(result.trace["inner/key"].tolist())
    assert len(set(seen)) == 5
    assert len(seen) > 5


def noisy(x, y, batch, *, key, rows, state):
    noise = jax.random.normal(key, (2,))
    loss = jnp.sum((y - x - 0.1 * noise) ** 2) + 0.01 * jnp.sum((y - jnp.mean(batch, axis=0)) ** 2)
    return loss, {"noise": noise[0], "row": rows[0]}, 0.9 * state + 0.1 * jnp.mean(batch)


def judged(x, y, batch, *, key, state):
    return jnp.mean((y - jnp.mean(batch, axis=0)) ** 2) + 0.1 * state, {"key": code(key), "state": state}


@pytest.fixture(scope="module")
def stochastic():
    return solver_of(noisy, judged), bl.epochs(FULL, bl.Levels(4, None), seed=3)


@pytest.fixture(scope="module")
def unbroken(stochastic):
    solver, data = stochastic
    return bl.run(
        solver,
        Z,
        Z,
        data=data,
        steps=11,
        options=bl.RunOptions(every=11),
        seed=2,
        warmup=2,
        model_state=jnp.float64(0),
    )


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3, None])
def test_chunks_change_nothing(stochastic, unbroken, every):
    solver, data = stochastic
    other = bl.run(
        solver,
        Z,
        Z,
        data=data,
        steps=11,
        options=bl.RunOptions(every=every),
        seed=2,
        warmup=2,
        model_state=jnp.float64(0),
    )
    same((other.run, other.trace), (unbroken.run, unbroken.trace))


@pytest.mark.slow
@pytest.mark.parametrize("cut", [1, 4, 10])
def test_resuming_changes_nothing(stochastic, unbroken, cut):
    solver, data = stochastic
    half = bl.run(solver, Z, Z, data=data, steps=cut, seed=2, warmup=2, model_state=jnp.float64(0))
    rest = bl.run(solver, data=data, steps=11 - cut, options=bl.RunOptions(every=3), resume=half)
    same((rest.run, rest.trace, rest.model_state), (unbroken.run, unbroken.trace, unbroken.model_state))


@pytest.mark.slow
def test_scan_from_a_started_run_is_the_same_loop(stochastic, unbroken):
    solver, data = stochastic

    @jax.jit
    def go(data, seed):
        run = bl.start(solver, Z, Z, data, seed=seed, model_state=jnp.float64(0))
        run = bl.warm_up(solver, run, data, steps=2)
        run, first = bl.scan(solver, run, data, steps=5)
        return bl.scan(solver, run, data, steps=6), first

    (run, rest), first = go(data, 2)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12)
    jax.tree.map(close, (run.x, run.y, run.model), (unbroken.x, unbroken.y, unbroken.model_state))
    joined = {name: np.concatenate([first[name], rest[name]]) for name in first}
    jax.tree.map(close, joined, unbroken.trace)
    np.testing.assert_array_equal(joined["outer/key"], unbroken.trace["outer/key"])


@pytest.mark.slow
def test_scan_under_vmap_over_seeds(stochastic):
    solver, data = stochastic

    @jax.jit
    @jax.vmap
    def keys(seed):
        run = bl.start(solver, Z, Z, data, seed=seed, model_state=jnp.float64(0))
        return bl.scan(solver, run, data, steps=4)[1]["outer/key"]

    many = keys(jnp.arange(3))
    for seed in range(3):
        alone = bl.run(solver, Z, Z, data=data, steps=4, seed=seed, model_state=jnp.float64(0))
        np.testing.assert_array_equal(many[seed], alone.trace["outer/key"])


@pytest.mark.slow
def test_each_warm_up_step_has_a_key_of_its_own_that_no_step_has():
    seen = []

    def inner(x, y, *, key):
        jax.debug.callback(lambda key: seen.append(int(key)), code(key))
        return g(x, y), {"key": code(key)}

    result = solve(inner=inner, warmup=4, steps=3)
    jax.effects_barrier()
    in_steps = set(result.trace["inner/key"].tolist())
    assert len(in_steps) == 3
    assert len(set(seen)) == 4 + 3
    assert in_steps == set(solve(inner=inner, steps=3).trace["inner/key"].tolist())


def test_what_a_resumed_run_would_not_heed_is_refused():
    earlier = bl.run(KEYED, Z, Z, steps=3, seed=3)
    solver = solver_of(keyed_inner, keyed_outer)
    for extra in ({"seed": 5}, {"model_state": jnp.zeros(1)}, {"warmup": 2}, {"x0": Z}):
        with pytest.raises(ValueError, match=r"a resumed run starts where the other ended: leave .* out"):
            bl.run(solver, steps=2, resume=earlier, **with_options(extra))


# The state


@pytest.mark.slow
def test_the_state_is_updated_once_a_step_where_the_inner_level_sets_out():
    inner = lambda x, y, *, state: (
        g(x, y),
        {"before": state["sum"]},
        {"sum": state["sum"] + y[0], "n": state["n"] + 1},
    )
    outer = lambda x, y, *, state: (f(x, y), {"read": state["sum"]})
    solver = bl.aid(bl.Problem(inner=inner, outer=outer), inner=0.1, adjoint=0.1, outer=0.1)
    start = {"sum": jnp.float64(0), "n": jnp.int32(0)}
    result = bl.run(
        solver, Z + 1.0, Z, steps=6, model_state=start, record=lambda state, info: {"y": state.y[0]}
    )
    set_out = np.concatenate([[0.0], result.trace["y"][:-1]])
    np.testing.assert_allclose(result.trace["inner/before"], np.cumsum(set_out) - set_out, rtol=1e-12)
    np.testing.assert_array_equal(result.trace["outer/read"], result.trace["inner/before"])
    np.testing.assert_allclose(result.model_state["sum"], set_out.sum(), rtol=1e-12)
    assert int(result.model_state["n"]) == 6


@pytest.mark.slow
def test_a_warm_up_step_updates_the_state():
    inner = lambda x, y, *, state: counted(g(x, y), state)
    assert int(solve(inner, model_state=COUNT, warmup=4, steps=3).model_state["n"]) == 7


@pytest.mark.slow
def test_a_state_that_only_the_outer_objective_reads_stays():
    outer = lambda x, y, *, state: f(x, y) + jnp.sum(state)
    np.testing.assert_array_equal(solve(outer=outer, model_state=jnp.arange(3.0)).model_state, np.arange(3.0))


# Metrics


@pytest.mark.slow
def test_metrics_go_into_the_trace_by_level_with_their_dtypes():
    inner = lambda x, y: (
        g(x, y),
        {"loss": g(x, y), "whole": jnp.int32(3), "flag": y[0] > 100.0, "number": 2.5},
    )
    outer = lambda x, y: (f(x, y), {"loss": f(x, y)})
    trace = solve(inner, outer, steps=5, every=2).trace
    kinds = {name.removeprefix("inner/"): v.dtype for name, v in trace.items() if name.startswith("inner/")}
    assert kinds == {"loss": np.float64, "whole": np.int32, "flag": np.bool_, "number": np.float64}
    assert all(type(values) is np.ndarray and values.shape == (5,) for values in trace.values())
    np.testing.assert_array_equal(trace["inner/whole"], 3)
    assert not trace["inner/flag"].any()


METHODS = {
    "AID": lambda p: bl.aid(p, inner=0.1, adjoint=0.1, outer=0.1, inner_steps=2),
    "AID, three draws": lambda p: bl.aid(p, inner=0.1, adjoint=0.1, outer=0.1, batches="independent"),
    "ITD": lambda p: bl.itd(p, inner=0.1, outer=0.1, inner_steps=2),
    "SOBA": lambda p: bl.soba(p, inner=0.1, adjoint=0.1, outer=0.1),
    "SOBA, three draws": lambda p: bl.soba(p, inner=0.1, adjoint=0.1, outer=0.1, batches="independent"),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_the_outer_metrics_belong_to_the_outer_value(method):
    """A metric that is the loss must be the loss in the trace: same point, same batch."""
    loss = lambda y, batch: jnp.sum((y - jnp.mean(batch, axis=0)) ** 2)
    outer = lambda x, y, batch: (loss(y, batch), {"loss": loss(y, batch)})
    solver = METHODS[method](bl.Problem(inner=g, outer=outer))
    result = bl.run(solver, Z, Z + 0.5, data=bl.epochs(bl.Batch(outer=TARGETS), bl.Levels(None, 2)), steps=5)
    np.testing.assert_allclose(result.trace["outer/loss"], result.trace["outer_value"], rtol=1e-12)


@pytest.mark.slow
def test_metrics_in_a_sweep():
    inner = lambda x, y, *, key, state: (g(x, y), {"key": code(key), "n": state["n"]}, {"n": state["n"] + 1})
    outer = lambda x, y: (f(x, y), {"first": y[0], "positive": y[0] > 0.0})
    solver = solver_of(inner, outer)
    found = bl.sweep(
        solver, Z, Z + 0.5, steps=4, seeds=[0, 7], model_state=COUNT, metric="outer/first", mode="max"
    )
    assert found.trace["inner/n"].shape == (2, 4)
    for lane, seed in enumerate((0, 7)):
        alone = bl.run(solver, Z, Z + 0.5, steps=4, seed=seed, model_state=COUNT)
        for name in ("inner/key", "inner/n", "outer/positive"):
            np.testing.assert_array_equal(found[lane].trace[name], alone.trace[name])
            assert found[lane].trace[name].dtype == alone.trace[name].dtype
        assert int(found[lane].model_state["n"]) == 4
    with pytest.raises(ValueError, match=r"no 'outer/accuracy': choose from .*outer/first"):
        bl.sweep(solver, Z, Z, steps=2, model_state=COUNT, metric="outer/accuracy")


@pytest.fixture(scope="module")
def spoiled():
    late = lambda n, step: jnp.where(n >= step, jnp.nan, 0.0)
    inner = lambda x, y, *, state: (g(x, y), {"late": late(state["n"], 6)}, {"n": state["n"] + 1})
    outer = lambda x, y, *, state: (f(x, y), {"early": late(state["n"], 4), "whole": state["n"]})
    return solver_of(inner, outer)


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3, 8, None])
def test_a_metric_that_is_not_finite_is_named_and_stops_nothing(spoiled, every):
    result = bl.run(spoiled, Z, Z, model_state=COUNT, steps=8, options=bl.RunOptions(every=every))
    assert (result.status.code, result.steps) == (bl.Code.COMPLETED, 8)
    assert (result.status.variable, result.status.step) == ("outer/early", 4)
    assert "The metric 'outer/early' was not finite at step 4." in result.status.message
    assert np.isfinite(result.trace["outer/early"][:4]).all()
    assert np.isnan(result.trace["outer/early"][4:]).all()


@pytest.mark.slow
def test_a_run_that_diverges_names_the_variable_and_no_metric_beyond_its_end():
    inner = lambda x, y: (g(x, y), {"loss": g(x, y)})
    solver = bl.aid(bl.Problem(inner=inner, outer=f), inner=50.0, adjoint=0.1, outer=0.1)
    result = bl.run(solver, Z + 1.0, Z, steps=400, options=bl.RunOptions(every=400))
    assert result.status.code is bl.Code.DIVERGED
    assert result.status.variable in ("x", "y", "v")
    assert np.isfinite(result.trace["inner/loss"]).all()
    assert "metric" not in result.status.message


@pytest.mark.slow
def test_half_precision_metrics_are_looked_at_and_the_user_s_own_columns_are_not():
    inner = lambda x, y: (g(x, y), {"half": jnp.asarray(jnp.nan, jnp.bfloat16)})
    result = solve(inner, record=lambda state, info: {"inner/tree": {"x": state.x}})
    assert (result.status.variable, result.status.step) == ("inner/half", 0)
