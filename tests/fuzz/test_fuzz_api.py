"""Every public function with odd values in place of its arguments: a refusal in our words, or a sound result."""

import inspect
import random
from types import ModuleType

import jax
import pytest

import bilevel as bl
from bilevel.checks import derivatives
from fuzz.call import Call
from fuzz.kinds import KINDS
from fuzz.run import attempt, attempts
from fuzz.table import CALLS
from fuzz.table.rest import ELSEWHERE, RETURNED
from fuzz.verdict import outcome

NAMES = list(dict.fromkeys(call.name for call in CALLS))
PAIRS = 3  # of odd values at once, for each function of two arguments or more


@pytest.fixture(autouse=True)
def climate(as_users_see_it, monkeypatch):
    """Use the library as users do: single precision, and the usual promotion and broadcasting."""
    monkeypatch.setattr(derivatives, "explain", remembering(derivatives.explain))
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def remembering(explain):
    """Return `explain` with a memory: it compiles six programs to find a missing derivative, after every refusal."""
    nothing_missing = {}  # the arguments by their ids, kept so that no id is used again

    def explained(error, *arguments):
        seen = tuple(map(id, arguments))
        if seen in nothing_missing:
            return error
        found = explain(error, *arguments)
        if found is error:
            nothing_missing[seen] = arguments
        return found

    return explained


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_one_odd_value(name):
    wrong = {}
    for call in (call for call in CALLS if call.name == name):
        assert attempt(call, {}) is None  # the valid call is one
        wrong |= {str(odd): found for odd in attempts(call) if (found := attempt(call, odd))}
    assert wrong == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_two_odd_values(name):
    """Whichever of them is seen first: it is that one which must be named."""
    wrong, draw = {}, random.Random(name)
    for call in (call for call in CALLS if call.name == name and len(call.kinds) > 1):
        for _ in range(PAIRS):
            odd = {
                argument: draw.choice(refused(call, argument))
                for argument in draw.sample(list(call.kinds), 2)
            }
            if found := attempt(call, odd):
                wrong[str(odd)] = found
    assert wrong == {}


def refused(call: Call, argument: str) -> list[str]:
    """Those that are not accepted, so that no work is done; all if all are."""
    kind = KINDS[call.kinds[argument]]
    may = {*kind.may, *call.also.get(argument, ()), *call.skip.get(argument, ())}
    return [value for value in kind.values if value not in may] or ["none"]


def test_there_are_enough_of_them():
    assert sum(1 for call in CALLS for _ in attempts(call)) >= 2000


def public(module: ModuleType, prefix: str) -> dict[str, object]:
    names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    found = {f"{prefix}.{name}": getattr(module, name) for name in names}
    own = lambda value: module is not bl.prox or getattr(value, "__module__", "") == module.__name__
    return {name: value for name, value in found.items() if own(value)}


def test_every_public_function_is_in_the_table():
    rooms = ("prox", "problems", "data", "theory", "hooks", "adjoints", "plot")
    offered = public(bl, "bl")
    for room in rooms:
        offered |= public(getattr(bl, room), f"bl.{room}")
    ours = lambda value: callable(value) and getattr(value, "__module__", "").startswith("bilevel")
    wanted = {name for name, value in offered.items() if ours(value)}
    assert wanted - set(NAMES) - RETURNED - ELSEWHERE == set()


def test_every_argument_is_given_odd_values():
    left_out = {}
    for name in NAMES:
        calls = [call for call in CALLS if call.name == name]
        try:
            parameters = inspect.signature(calls[0].function).parameters
        except ValueError:
            continue
        plain = [p.name for p in parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        if missing := set(plain) - {argument for call in calls for argument in call.kinds}:
            left_out[name] = missing
    # What an instance is called, and what its yardstick is called, are words; Batch's other fields are the loop's.
    known = {
        "bl.Batch": {"rows", "key", "state", "whole", "block"},
        "bl.problems.Instance": {"name", "x0", "y0", "data", "label"},
        "bilevel.solvers.rules.as_rule": {"level"},
        "bl.data.mnist": {"download"},
        "bl.data.space_ga": {"download"},
        "bl.data.space_ga_scale": {"download"},
        "bilevel.checks.prepare": {"names"},
    }
    assert {
        name: missing - known.get(name, set())
        for name, missing in left_out.items()
        if missing - known.get(name, set())
    } == {}


def test_the_judge_is_strict():
    """What users saw before is told apart from what they should see."""
    assert "not a documented exception" in outcome(
        lambda **a: bl.Batch(**a).nothing, {"inner": 3}, {"inner": "three"}, False
    )
    assert outcome(lambda value: value, {"value": 3}, {"value": "three"}, False) == "accepted"
    assert "not our words" in outcome(
        lambda value: jax.numpy.asarray(value), {"value": "a"}, {"value": "text"}, False
    )
    assert outcome(lambda value: float("nan"), {"value": 3}, {"value": "three"}, True) == "returned NaN"
