"""Every attribute and every answer of a hook means in a sweep what it means in a run."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl

X0, Y0 = jnp.ones(2), jnp.zeros(2)
PROBLEM = bl.Problem(inner=lambda x, y: jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum((y - 2.0) ** 2))
SOLVERS = [bl.aid(PROBLEM, inner=0.2, adjoint=0.2, outer=rate) for rate in (0.05, 0.1)]
STEPS, EVERY = 40, 10
Stop = bl.hooks.Stop


class Told(bl.hooks.Hook):
    """Writes down what it is told; `answer` says what it returns after each chunk."""

    def __init__(self, log: list, name: str = "a", answer: Callable = lambda event: None, **attributes):
        self.log, self.name, self.answer = log, name, answer
        for attribute, value in attributes.items():
            setattr(self, attribute, value)

    def begin(self, event):
        self.log.append((self.name, "begin", event.step, event.first, event.total))

    def __call__(self, event):
        self.log.append((self.name, "event", event.step, event.first, event.total))
        return self.answer(event)

    def end(self, result):
        self.log.append((self.name, "end", int(np.max(result.steps))))

    def close(self):
        self.log.append((self.name, "close"))


def at(step: int, said: object) -> Callable:
    """Returns or raises something once that step was reached."""

    def answer(event):
        if event.step < step:
            return None
        if isinstance(said, BaseException):
            raise said
        return said

    return answer


CASES: dict[str, Callable[[list], list]] = {
    "nothing": lambda log: [Told(log)],
    "a stop": lambda log: [Told(log, answer=at(20, Stop("enough.")))],
    "a stop with a code": lambda log: [Told(log, answer=at(20, Stop("close.", bl.Code.CONVERGED)))],
    "a stop at an earlier step": lambda log: [Told(log, answer=at(20, Stop("enough.", step=13)))],
    "a stop at the start of the chunk": lambda log: [Told(log, answer=at(20, Stop("enough.", step=10)))],
    "a stop before the first step": lambda log: [Told(log, answer=at(10, Stop("enough.", step=0)))],
    "a stop long ago": lambda log: [Told(log, answer=at(20, Stop("enough.", step=4)))],
    "a stop ahead": lambda log: [Told(log, answer=at(20, Stop("enough.", step=33)))],
    "two stops": lambda log: [
        Told(log, "late", at(10, Stop("late.", step=9))),
        Told(log, "early", at(10, Stop("early.", step=3))),
    ],
    "stride": lambda log: [Told(log, stride=7)],
    "two strides": lambda log: [Told(log, stride=7), Told(log, "b", stride=6)],
    "decides": lambda log: [
        Told(log, "sees", at(10, Stop("not asked.", step=1))),
        Told(log, "decides", at(20, Stop("enough.", step=13)), decides=True),
    ],
    "decides first": lambda log: [
        Told(log, "sees", at(20, Stop("second.", step=11))),
        Told(log, "decides", at(20, Stop("first.", step=13)), decides=True),
    ],
    "last": lambda log: [Told(log, "last", last=True), Told(log, "a"), Told(log, "b", decides=True)],
    "note": lambda log: [Told(log, note=" A note."), Told(log, "b", note=" Another.")],
    "once": lambda log: [Told(log, once=True)],
    "reads_info": lambda log: [Told(log, reads_info=False)],
    "get_state": lambda log: [Told(log, get_state=dict, set_state=lambda state: log.append("not asked"))],
    "it raises": lambda log: [Told(log, "a", at(20, OSError("disk full"))), Told(log, "b")],
    "a stop of another kind": lambda log: [
        Told(log, answer=at(20, _with(Stop("enough."), step="ten"))),
        Told(log, "b"),
    ],
    "Ctrl-C": lambda log: [Told(log, "a", at(20, KeyboardInterrupt())), Told(log, "b")],
    "a begin that raises": lambda log: [Told(log), _broken(Told(log, "b")), Told(log, "c")],
}


def _with(stop, step):
    object.__setattr__(stop, "step", step)
    return stop


def _broken(hook):
    def begin(event):
        raise OSError("no terminal")

    hook.begin = begin
    return hook


def outcome(go: Callable, hooks: list):
    """The result, also of a run that ended with an error, and the error."""
    try:
        return go(hooks), None
    except bl.RunError as error:
        return error.result, error


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_as_in_a_run(name):
    in_run, in_sweep = [], []
    run = lambda hooks: bl.run(
        SOLVERS[1], X0, Y0, steps=STEPS, options=bl.RunOptions(every=EVERY), hooks=hooks
    )
    sweep = lambda hooks: bl.sweep(SOLVERS, X0, Y0, steps=STEPS, every=EVERY, hooks=hooks)
    alone, error = outcome(run, CASES[name](in_run))
    swept, errors = outcome(sweep, CASES[name](in_sweep))
    assert (error is None) == (errors is None)
    if name == "a begin that raises":
        assert swept is None  # there is nothing to return; a run returns its start
        assert [entry[:2] for entry in in_sweep if entry[0] == "c"] == [("c", "begin"), ("c", "close")]
        return
    assert in_sweep == in_run
    lane = swept[1]
    assert (lane.steps, lane.status.code) == (alone.steps, alone.status.code)
    assert len(lane.trace["outer_value"]) == alone.steps
    np.testing.assert_allclose(lane.x, alone.x, rtol=1e-12)
    for words in (
        "enough.",
        "late.",
        "early.",
        "not asked.",
        "first.",
        "second.",
        " A note. Another.",
        "kept nothing",
    ):
        assert all((words in each.message) == (words in alone.status.message) for each in swept.status)


@pytest.mark.parametrize("refused", [True, False])
def test_of_one_run_is_refused_before_any_work(refused):
    log, traced = [], []
    outer = lambda x, y: (traced.append(1), jnp.sum(y**2))[1]
    solver = bl.aid(bl.Problem(inner=PROBLEM.inner, outer=outer), inner=0.1, adjoint=0.1, outer=0.1)
    hook = Told(log, of_one_run=refused)
    assert bl.run(SOLVERS[0], X0, Y0, steps=2, hooks=[hook]).steps == 2
    log.clear()
    if not refused:
        assert bl.sweep([solver], X0, Y0, steps=2, hooks=[hook]).steps == 2
        return
    with pytest.raises(TypeError, match="follows one run"):
        bl.sweep([solver], X0, Y0, steps=2, hooks=[hook])
    assert log == traced == []


def test_the_table_has_every_attribute():
    fields = {"decides", "last", "stride", "note", "once", "of_one_run", "reads_info"}
    of_probes = {
        "measures",
        "names",
        "rows",
        "asks",
        "diagnosis",
        "saves",
        "steers",
        "watches_probes",
    }  # set by our own hooks
    assert set(bl.hooks.Hook.__annotations__) == fields | of_probes
    assert fields - {"of_one_run"} <= set(CASES)


def test_an_object_with_a_hook_s_attributes_works_for_one_release():
    log = []
    untyped = type("Old", (), {name: value for name, value in vars(Told).items() if name != "__dict__"})
    with pytest.warns(DeprecationWarning, match="Old has the attribute 'begin'.*bl.hooks.Hook"):
        bl.run(SOLVERS[0], X0, Y0, steps=14, hooks=[untyped(log, stride=7, note="Seen.")])
    assert [entry[:3] for entry in log] == [
        ("a", "begin", 0),
        ("a", "event", 7),
        ("a", "event", 14),
        ("a", "end", 14),
    ]


def test_a_plain_object_that_can_be_called_is_a_hook():
    log = []
    called = type("Called", (), {"__call__": lambda self, event: log.append(event.step)})
    bl.run(SOLVERS[0], X0, Y0, steps=14, options=bl.RunOptions(every=7), hooks=[called()])
    assert log == [7, 14]


def test_an_event_says_what_is_newest_in_every_lane():
    seen = []
    look = lambda event: seen.append((event.first, event.last("outer_value"), event.newest(), event.solver))
    swept = bl.sweep(SOLVERS, X0, Y0, steps=6, every=3, hooks=[look])
    assert [first for first, *_ in seen] == [0, 3]
    np.testing.assert_array_equal(seen[-1][1], swept.trace["outer_value"][:, -1])
    np.testing.assert_array_equal(seen[-1][2]["hypergradient_norm"], swept.trace["hypergradient_norm"][:, -1])


def test_a_stop_before_the_first_step_leaves_no_scores():
    swept = bl.sweep(SOLVERS, X0, Y0, steps=6, hooks=[lambda event: Stop("no.", step=0)])
    assert (swept.best, swept.steps.tolist()) == (None, [0, 0])
    np.testing.assert_array_equal(swept.x, np.stack([X0, X0]))


def test_a_hook_that_deletes_the_run_s_arrays_is_blamed_itself():
    hook = lambda event: event.state.x.delete() if event.step == 20 else None
    with pytest.raises(
        bl.RunError, match=r"a hook raised RuntimeError \(it deleted or donated arrays"
    ) as caught:
        bl.run(SOLVERS[0], X0, Y0, steps=STEPS, options=bl.RunOptions(every=EVERY), hooks=[hook])
    assert caught.value.result.steps == 10  # what was kept
    again = bl.run(SOLVERS[0], steps=30, options=bl.RunOptions(every=EVERY), resume=caught.value.result)
    np.testing.assert_array_equal(
        again.x, bl.run(SOLVERS[0], X0, Y0, steps=STEPS, options=bl.RunOptions(every=EVERY)).x
    )
