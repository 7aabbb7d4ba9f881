"""A thinned trace: steps 0, k, 2k, … and the last, whatever the chunks, breaks and returns on the way."""

import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.loop.trace import Log
from run_options import with_options

X0, Y0 = jnp.ones(2), jnp.zeros(2)
Q = bl.problems.quadratic(kappa=4.0)
AID = bl.aid(Q.problem, inner=1 / Q.L, adjoint=1 / Q.L, outer=0.1)
KEEP = lambda state, info: {"y": state.y}


def kept(steps: int, thin: int) -> list[int]:
    """The rule, in the plainest words."""
    return [k for k in range(steps) if k % thin == 0 or k == steps - 1]


def check(thinned: bl.Result, whole: bl.Result, thin: int) -> None:
    wanted = kept(thinned.steps, thin)
    assert list(thinned.trace["step"]) == wanted
    assert set(thinned.trace) == {*whole.trace, "step"}
    for name, column in whole.trace.items():
        np.testing.assert_array_equal(thinned.trace[name], np.asarray(column)[wanted])


@pytest.fixture(scope="module")
def whole():
    return bl.run(AID, X0, Y0, steps=47, record=KEEP)


@pytest.mark.slow
@pytest.mark.parametrize("thin", [1, 2, 10, 46, 47, 1000])
@pytest.mark.parametrize(("every", "replay"), [(None, "auto"), (1, "device"), (7, "host"), (10, "off")])
def test_the_rows_of_a_rule_and_the_last(whole, thin, every, replay):
    seen = []
    hook = lambda event: seen.extend(event.trace["outer_value"])
    options = dict(record=KEEP, thin=thin, every=every, snapshots=replay)
    result = bl.run(AID, X0, Y0, steps=47, hooks=[hook], **with_options(options))
    check(result, whole, thin)
    np.testing.assert_array_equal(seen, whole.trace["outer_value"])  # hooks see all of them
    assert f"outer_value={whole.trace['outer_value'][-1]:.6g}" in repr(result)
    assert "step" not in whole.trace
    half = bl.run(
        AID, X0, Y0, steps=23, **with_options(options)
    )  # 22 is the last, and in general no multiple of k
    check(half, bl.run(AID, X0, Y0, steps=23, record=KEEP), thin)
    check(bl.run(AID, steps=24, resume=half, **with_options(options)), whole, thin)


@pytest.mark.slow
@pytest.mark.parametrize("replay", ["device", "host"])
@pytest.mark.parametrize("every", [1, 8, 1000])
def test_a_run_that_goes_back_ends_with_the_row_of_its_last_step(replay, every):
    whole = bl.run(AID, X0, Y0, steps=500, tol=1e-2, options=bl.RunOptions(every=every))
    thinned = bl.run(
        AID,
        X0,
        Y0,
        steps=500,
        tol=1e-2,
        options=bl.RunOptions(every=every, snapshots=replay, thin=4),
    )
    assert whole.steps == thinned.steps > 20
    check(thinned, whole, 4)
    wild = bl.aid(Q.problem, inner=1 / Q.L, adjoint=1 / Q.L, outer=50.0)
    whole = bl.run(wild, X0, Y0, steps=5_000, options=bl.RunOptions(every=every))
    thinned = bl.run(
        wild,
        X0,
        Y0,
        steps=5_000,
        options=bl.RunOptions(every=every, snapshots=replay, thin=9),
    )
    assert whole.status.code is bl.Code.DIVERGED
    assert whole.status == thinned.status
    check(thinned, whole, 9)


def test_what_hooks_save_on_the_way_can_be_gone_on_from(whole):
    saved = []
    hook = lambda event: saved.append(event.so_far())
    bl.run(AID, X0, Y0, steps=47, options=bl.RunOptions(every=5, thin=10), record=KEEP, hooks=[hook])
    for each in saved[:-1]:
        assert list(each.trace["step"]) == kept(each.steps, 10)
        check(
            bl.run(AID, steps=47 - each.steps, resume=each, record=KEEP, options=bl.RunOptions(thin=10)),
            whole,
            10,
        )


@pytest.mark.slow
def test_remarks_are_made_of_a_thinned_trace_too():
    wavy = bl.Problem(
        inner=lambda x, y: 0.5 * jnp.sum((y - x) ** 2),
        outer=lambda x, y: jnp.sum(jnp.sqrt(1 + (10 * y) ** 2)),
    )
    result = bl.run(
        bl.aid(wavy, inner=1.0, adjoint=1.0, outer=50.0),
        0.1 * X0,
        0.1 * X0,
        steps=40,
        options=bl.RunOptions(thin=1000),
    )
    assert len(result.trace["step"]) == 2
    assert "finite blow-up" in result.status.message


@pytest.mark.usefixtures("as_users_see_it")
def test_names_and_breaks_that_do_not_fit_are_refused_before_any_work(whole):
    named = lambda state, info: {"step": info.outer_value}
    assert "step" in bl.run(AID, X0, Y0, steps=2, record=named).trace  # no harm where nothing is thinned
    with pytest.raises(ValueError, match=r'record returned "step".*choose another name'):
        bl.run(AID, X0, Y0, steps=2, record=named, options=bl.RunOptions(thin=2))
    with pytest.raises(
        bl.RunError, match=r'a probe\'s "step" is the step it was called at: choose another name'
    ):
        bl.run(AID, X0, Y0, steps=2, options=bl.RunOptions(probe=lambda state, info: {"step": 1.0}))
    with pytest.raises(ValueError, match="the earlier run had thin=None, this one has thin=3: pass the same"):
        bl.run(AID, steps=2, resume=whole, record=KEEP, options=bl.RunOptions(thin=3))
    thinned = bl.run(AID, X0, Y0, steps=5, options=bl.RunOptions(thin=2))
    with pytest.raises(ValueError, match="had thin=2, this one has thin=None"):
        bl.run(AID, steps=2, resume=thinned)
    for bad in (0, -3, 1.5, "all"):
        with pytest.raises((ValueError, TypeError), match="thin"):
            bl.run(AID, X0, Y0, steps=2, options=bl.RunOptions(thin=bad))


def test_the_log_of_a_million_steps_holds_what_it_keeps_and_the_last_chunk():
    log, chunk = Log(thin=1000), 10_000
    for start in range(0, 1_000_000, chunk):
        log.settle(start)
        log.add({"outer_value": np.arange(start, start + chunk)}, start)
        held = [part.rows["outer_value"] for part in (*log._settled, *log._recent)]
        assert sum(map(len, held)) <= start // 1000 + 2 * chunk
        assert all(column.base is None for column in held)  # no view of something larger
        assert len(held) < 20
    assert list(log.trace["outer_value"]) == [*range(0, 1_000_000, 1000), 999_999]


def test_a_hook_may_write_to_its_rows_for_every_length_of_chunks():
    q = bl.problems.quadratic(kappa=4.0)
    solver, writable = bl.aid(q.problem, inner=1 / q.L, adjoint=1 / q.L, outer=0.1 / q.L), []
    hook = lambda event: writable.append(event.trace["outer_value"].flags.writeable)
    for every in (1000, 1024):  # the second fills the buffer of a short run
        bl.run(
            solver, jnp.ones(2), jnp.ones(2), steps=every, options=bl.RunOptions(every=every), hooks=[hook]
        )
    assert writable == [True, True]
