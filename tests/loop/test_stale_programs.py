"""A run uses what its functions read now, not what they read when an earlier run was compiled."""

import ctypes
import gc
import json
import os
import subprocess
import sys
import threading
import types
import weakref
from collections import ChainMap, UserDict, UserList, defaultdict, deque
from configparser import ConfigParser
from contextvars import ContextVar
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings, strategies as st

import bilevel as bl
from bilevel.readings import Reading, parts
from loop import worlds

X = jnp.ones(2)


@pytest.fixture(autouse=True)
def settings_module(monkeypatch):
    monkeypatch.setitem(sys.modules, "settings", worlds.MODULE)


def in_a_fresh_process():
    tests = Path(__file__).parents[1]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tests), *filter(None, sys.path)]),
        "JAX_ENABLE_X64": "1",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": os.environ["BILEVEL_TESTS_XLA_FLAGS"],  # compiled quickly, as here
    }
    done = subprocess.run(
        [sys.executable, "-m", "loop.worlds"], cwd=tests, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(worlds.cases(), json.loads(done.stdout), strict=True))


@pytest.mark.slow
def test_a_second_run_equals_that_of_a_fresh_process():
    """With functions made again, and with the same objects."""
    found = {}
    for made in ("again", "once"):
        for way, taker in worlds.cases():
            read, change = worlds.WAYS[way]
            taken = worlds.SLOTS_FOR[taker](read)
            change(1.0)
            first = worlds.result(*taken)
            change(2.0)
            second = worlds.result(*(worlds.SLOTS_FOR[taker](read) if made == "again" else taken))
            change(1.0)
            found[made, way, taker] = first, second
    expected = in_a_fresh_process()  # after the runs here, whose compiled code it finds on the disk
    for case, (first, second) in found.items():
        np.testing.assert_allclose(second, expected[case[1:]], rtol=1e-9, err_msg=str(case))
        assert not np.allclose(first, second), f"{case} shows nothing"


@pytest.mark.parametrize("way", worlds.WAYS)
def test_what_is_read_is_seen(way):
    read, change = worlds.WAYS[way]
    change(1.0)
    before = Reading(read)
    assert Reading(read) == before
    assert before.is_current(read)
    change(2.0)
    assert read() == 2.0
    assert not before.is_current(read)
    after = Reading(read)
    change(1.0)
    assert after != before
    assert Reading(read) == before


# A number within objects within objects: how to hold it, and how to get it out again.
HOLDERS = {
    "list": (lambda held: [0, held], lambda get: lambda: get()[1]),
    "tuple": (lambda held: (held,), lambda get: lambda: get()[0]),
    "dict": (lambda held: {"k": held}, lambda get: lambda: get()["k"]),
    "namespace": (lambda held: types.SimpleNamespace(k=held), lambda get: lambda: get().k),
    "class": (
        lambda held: type("Held", (), {"k": staticmethod(lambda: held)}),
        lambda get: lambda: get().k(),
    ),
    "slots": (lambda held: _slotted(held), lambda get: lambda: get().k),
    "partial": (lambda held: partial(lambda k: k, held), lambda get: lambda: get()()),
    "default": (lambda held: lambda k=held: k, lambda get: lambda: get()()),
    "closure": (lambda held: lambda: held, lambda get: lambda: get()()),
    "method": (lambda held: _Holder(held).get, lambda get: lambda: get()()),
}


class _Slotted:
    __slots__ = ("k",)


def _slotted(held):
    made = _Slotted()
    made.k = held
    return made


class _Holder:
    def __init__(self, held):
        self.held = held

    def get(self):
        return self.held


LEAVES = {
    "list": (lambda: [1.0], lambda leaf: leaf.__setitem__(0, 2.0), lambda leaf: leaf[0]),
    "dict": (lambda: {"v": 1.0}, lambda leaf: leaf.update(v=2.0), lambda leaf: leaf["v"]),
    "array": (lambda: np.ones(3), lambda leaf: leaf.__setitem__(2, 2.0), lambda leaf: leaf[2]),
    "bytes": (lambda: bytearray(b"\1"), lambda leaf: leaf.__setitem__(0, 2), lambda leaf: float(leaf[0])),
    "object": (lambda: _Holder(1.0), lambda leaf: setattr(leaf, "held", 2.0), lambda leaf: leaf.held),
}


@given(st.lists(st.sampled_from(sorted(HOLDERS)), max_size=5), st.sampled_from(sorted(LEAVES)))
@settings(max_examples=150, deadline=None)
def test_a_number_is_seen_however_deep_it_is(chain, kind):
    """Python itself tells whether the function read the change."""
    make, change, value = LEAVES[kind]
    leaf = make()
    held = leaf
    for name in chain:
        held = HOLDERS[name][0](held)
    get = lambda: held
    for name in reversed(chain):
        get = HOLDERS[name][1](get)
    read = lambda: value(get())
    before, first = Reading(read), read()
    assert Reading(read) == before
    assert before.is_current(read)
    change(leaf)
    assert (first, read()) == (1.0, 2.0)
    assert Reading(read) != before
    assert not before.is_current(read)


def _other(value=7.0, *, key=8.0):
    return value + key


def _function():
    held = 1.0

    def function(value=1.0, *, key=2.0):
        return held + value + key

    return function


class _Left(_Holder):
    more = 1.0


class _Array:
    numbers = 1.0

    def __array__(self, dtype=None, copy=None):
        return np.full(2, self.numbers)


class _Hashed(_Holder):
    def __hash__(self):
        return 1


class _Meta(type):
    more = 1.0


class _WithMeta(metaclass=_Meta):
    def __class_getitem__(cls, item):
        return ITEMS[0]


class _Unreadable:
    def __array__(self, dtype=None, copy=None):
        raise TypeError("these numbers are on another device")


class _Attached(_Unreadable):
    def __init__(self):
        self.hidden = ctypes.c_double(1.0)

    def detach(self):
        return np.full(2, self.hidden.value)


def _parser():
    parser = ConfigParser()
    parser["training"] = {"rate": "0.1"}
    return parser


def _add(thing):
    thing.held += 1


KEPT, ITEMS, CONTEXT, LOCAL = _Holder(1.0), [1.0], ContextVar("CONTEXT", default=1.0), threading.local()
# Every kind of object that can change, and ways to change it.
MUTABLE = {
    "code": (_function, lambda f: setattr(f, "__code__", f.__code__.replace(co_name="g"))),
    "defaults": (_function, lambda f: setattr(f, "__defaults__", (3.0,))),
    "keyword defaults": (_function, lambda f: setattr(f, "__kwdefaults__", {"key": 3.0})),
    "a keyword default in place": (_function, lambda f: f.__kwdefaults__.update(key=3.0)),
    "an attribute of a function": (_function, lambda f: setattr(f, "more", 1.0)),
    "a cell": (_function, lambda f: setattr(f.__closure__[0], "cell_contents", 3.0)),
    "an empty cell": (_function, lambda f: delattr(f.__closure__[0], "cell_contents")),
    "a partial": (lambda: partial(_other, 1.0), lambda f: f.__setstate__((_other, (2.0,), {}, {}))),
    "a partial's keywords": (lambda: partial(_other, key=1.0), lambda f: f.keywords.update(key=3.0)),
    "a class of an object": (lambda: _Left(1.0), lambda a: setattr(a, "__class__", _Holder)),
    "a new attribute": (lambda: _Holder(1.0), lambda a: setattr(a, "more", 1.0)),
    "a deleted attribute": (lambda: _Holder(1.0), lambda a: delattr(a, "held")),
    "a slot": (lambda: _slotted(1.0), lambda a: setattr(a, "k", 3.0)),
    "a deleted slot": (lambda: _slotted(1.0), lambda a: delattr(a, "k")),
    "a member of a class": (lambda: type("A", (), {"k": 1.0}), lambda a: setattr(a, "k", 3.0)),
    "a base of a class": (lambda: type("A", (_Left,), {}), lambda a: setattr(a, "__bases__", (_Holder,))),
    "a longer list": (lambda: [1.0], lambda a: a.append(1.0)),
    "the order of a dict": (lambda: {"a": 1, "b": 1}, lambda a: a.update(a=a.pop("a"))),
    "a set": (lambda: {1}, lambda a: a.add(2)),
    "a deque": (lambda: deque([1.0]), lambda a: a.append(2.0)),
    "a user's dict": (lambda: UserDict(a=1.0), lambda a: a.update(a=2.0)),
    "a chain of dicts": (lambda: ChainMap({"a": 1.0}), lambda a: a.maps[0].update(a=2.0)),
    "a view of a dict": (lambda: types.MappingProxyType(DICT), lambda a: DICT.update(b=DICT["b"] + 1)),
    "a bound method of a list": (lambda: [1.0].count, lambda a: a.__self__.append(2.0)),
    "the shape of an array": (lambda: np.ones(4), lambda a: a.resize((2, 2), refcheck=False)),
    "a mask": (lambda: np.ma.masked_array([1.0, 2.0], [True, False]), lambda a: a.mask.__setitem__(1, True)),
    "an array of objects": (lambda: np.array([1.0, None], object), lambda a: a.__setitem__(0, 2.0)),
    "a buffer": (lambda: memoryview(bytearray(b"ab")), lambda a: a.__setitem__(0, 3)),
    "an object with numbers": (_Array, lambda a: setattr(_Array, "numbers", _Array.numbers + 1.0)),
    "a bound method of an array": (lambda: np.ones(2).sum, lambda a: a.__self__.__setitem__(0, 3.0)),
    "a bound operator of an array": (lambda: np.ones(2).__add__, lambda a: a.__self__.__setitem__(0, 3.0)),
    "an object in a set": (lambda: {_Hashed(1.0)}, lambda a: _add(*a)),
    "an object in a frozen set": (lambda: frozenset({_Hashed(1.0)}), lambda a: _add(*a)),
    "a default factory": (
        lambda: defaultdict(_function()),
        lambda a: setattr(a.default_factory, "more", 1.0),
    ),
    "a user's list": (lambda: UserList([1.0]), lambda a: a.append(2.0)),
    "a parser": (_parser, lambda a: a["training"].update(rate="0.2")),
    "a section of a parser": (lambda: _parser()["training"], lambda a: a.update(rate="0.2")),
    "the values of a dict": (lambda: DICT.values(), lambda a: DICT.update(b=DICT["b"] + 1)),
    "a weak reference": (lambda: weakref.ref(KEPT), lambda a: _add(a())),
    "a weak proxy": (lambda: weakref.proxy(KEPT), _add),
    "a weak dict": (lambda: weakref.WeakValueDictionary(a=KEPT), lambda a: _add(a["a"])),
    "a context variable": (lambda: CONTEXT, lambda a: a.set(a.get() + 1)),
    "the contents of a cell": (lambda: types.CellType(1.0), lambda a: setattr(a, "cell_contents", 2.0)),
    "a thread's object": (lambda: LOCAL, lambda a: setattr(a, "held", 2.0)),
    "a metaclass": (lambda: _WithMeta, lambda a: setattr(_Meta, "more", 2.0)),
    "items of a class": (lambda: _WithMeta, lambda a: ITEMS.append(2.0)),
    "numbers that require gradients": (_Attached, lambda a: setattr(a.hidden, "value", 2.0)),
    "a jitted function": (
        lambda: jax.jit(_function()),
        lambda f: setattr(f.__wrapped__, "__defaults__", (3.0,)),
    ),
}
DICT = {"b": 1.0}


@pytest.mark.parametrize("kind", MUTABLE)
def test_a_change_of_anything_mutable_is_seen(kind):
    make, change = MUTABLE[kind]
    value = make()
    before = Reading(value)
    assert Reading(value) == before
    change(value)
    assert not before.is_current(value)
    assert Reading(value) != before


def test_numbers_that_cannot_be_read_are_equal_to_no_others():
    value = _Unreadable()
    before = Reading(value)
    assert not before.is_current(value)
    assert Reading(value) != before


def test_a_counter_that_becomes_a_setting_is_seen():
    space = {"count": 1}
    exec("def read():\n    global count\n    count += 1\n    return count", space)
    before = Reading(space["read"])
    space["read"]()
    assert before.is_current(space["read"])
    space["count"] = 2.5
    assert not before.is_current(space["read"])
    assert Reading(space["read"]) != before


def test_what_a_function_only_collects_in_or_counts_is_not_read():
    seen, count, values, counts = [], 0, {}, {"y": 0}

    def outer(x, y):
        nonlocal count
        count += 1
        seen.append(1)
        values["y"] = y.shape
        counts["y"] += 1
        return jnp.sum((y - 2.0) ** 2)

    solver = bl.itd(bl.Problem(inner=lambda x, y: jnp.sum((y - x) ** 2), outer=outer), inner=0.1, outer=0.1)
    bl.run(solver, X, X, steps=2)
    traced = len(seen)
    bl.run(solver, X, X, steps=2)
    assert len(seen) == traced == count == counts["y"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [
        lambda: optax.adam(1e-3),
        lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, mask=True)),
        lambda: optax.sgd(optax.cosine_decay_schedule(0.1, 10), momentum=0.9),
    ],
)
def test_a_rule_made_again_compiles_nothing(rule):
    traces = []

    def outer(x, y):
        traces.append(1)
        return jnp.sum((y - 2.0) ** 2)

    problem = bl.Problem(inner=lambda x, y: jnp.sum((y - x) ** 2), outer=outer)
    with jax.numpy_dtype_promotion("standard"):
        run = lambda: bl.run(bl.itd(problem, inner=0.1, outer=rule()), X, X, steps=3).x
        first, traced = run(), len(traces)
        np.testing.assert_array_equal(run(), first)
    assert len(traces) == traced


@pytest.mark.slow
def test_numbers_within_optax_rules_are_swept_and_equal_single_runs():
    problem = bl.Problem(inner=lambda x, y: jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum((y - 2.0) ** 2))
    numbers = [(0.1, 0.9, 1.0), (0.05, 0.5, 0.3)]
    make = lambda rate, b1, most: bl.itd(
        problem,
        inner=0.1,
        outer=optax.chain(optax.clip(most), optax.adam(optax.cosine_decay_schedule(rate, 9), b1=b1)),
    )
    with jax.numpy_dtype_promotion("standard"):
        swept = bl.sweep([make(*each) for each in numbers], X, X, steps=6)
        for i, each in enumerate(numbers):
            np.testing.assert_allclose(swept[i].x, bl.run(make(*each), X, X, steps=6).x, rtol=1e-12)
    assert not np.allclose(swept[0].x, swept[1].x)


class _Scaled(eqx.Module):
    numbers: jax.Array
    settings: worlds.Object = eqx.field(static=True)

    def __call__(self):
        return self.settings.a * worlds.NUMBER * self.numbers


TREES = {
    "run": lambda solver, y: bl.run(solver, X, y, steps=4).y.numbers,
    "run with data": lambda solver, y: (
        bl.run(solver, X, y, steps=4, data=bl.Batch(inner=y, outer=y)).y.numbers
    ),
    "sweep": lambda solver, y: bl.sweep([solver, solver], X, y, steps=4)[0].y.numbers,
    "hypergradient": lambda solver, y: bl.hypergradient(solver.problem, X, y),
}


@pytest.mark.parametrize(
    "change", [worlds.set_global, worlds.put_at(worlds.OBJECT)], ids=["global", "static"]
)
@pytest.mark.parametrize("way", TREES)
def test_classes_of_trees_are_followed(way, change):
    """The functions of the problem do not name the class of y: they call its methods."""
    if way == "run with data":
        functions = {
            "inner": lambda x, y, batch: 0.5 * jnp.sum((y.numbers - x * batch()) ** 2),
            "outer": lambda x, y, batch: jnp.sum((y.numbers - 2.0) ** 2),
        }
    else:
        functions = {
            "inner": lambda x, y: 0.5 * jnp.sum((y() - x) ** 2),
            "outer": lambda x, y: jnp.sum((y() - 2.0) ** 2),
        }
    fresh = lambda: bl.itd(bl.Problem(**functions), inner=0.1, outer=0.1)
    solver, y, found = fresh(), _Scaled(X, worlds.OBJECT), []
    try:
        for value in (1.0, 2.0, 1.0):
            change(value)
            found.append(TREES[way](solver, y))
            np.testing.assert_array_equal(found[-1], TREES[way](fresh(), y))
    finally:
        change(1.0)
    assert not np.allclose(found[0], found[1])


def test_functions_are_equal_to_themselves_only():
    make = lambda: lambda x: jnp.clip(x, 0.0, 1.0)
    rules = [bl.projected(0.1, make()) for _ in "ab"]
    assert jax.tree.structure(rules[0]) != jax.tree.structure(rules[1])
    shared = make()
    same = [bl.projected(0.1, shared) for _ in "ab"]
    assert jax.tree.structure(same[0]) == jax.tree.structure(same[1])
    box = _Box()  # Python makes a method at every access to it
    methods = [bl.projected(0.1, each.clip) for each in (box, box, _Box())]
    assert jax.tree.structure(methods[0]) == jax.tree.structure(methods[1])
    assert jax.tree.structure(methods[0]) != jax.tree.structure(methods[2])


class _Box:
    def clip(self, x):
        return jnp.clip(x, 0.0, 1.0)


def test_equal_solvers_have_equal_hashes():
    problem = worlds.problem()
    one, same, other = (bl.aid(problem, inner=0.1, adjoint=0.1, outer=beta) for beta in (0.1, 0.1, 0.2))
    assert one == same
    assert hash(one) == hash(same)
    assert len({one, same}) == 1
    assert one != other


@pytest.mark.slow
def test_compiled_programs_of_a_problem_are_bounded():
    problem = bl.Problem(inner=lambda x, y: jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum((y - 2.0) ** 2))
    gc.collect()
    for size in range(1, 22):
        bl.run(bl.itd(problem, inner=0.1, outer=0.1), jnp.ones(size), jnp.ones(size), steps=1)
    assert len(problem.memory.values("programs")) <= 16


def test_a_number_of_a_rule_that_changes_in_place_is_seen():
    problem = bl.Problem(inner=lambda x, y: jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum((y - 2.0) ** 2))
    rate = np.array(-0.1)
    solver = bl.itd(problem, inner=0.1, outer=optax.scale(rate))
    first = bl.run(solver, X, X, steps=2).x
    rate[...] = -0.2
    other = bl.itd(problem, inner=0.1, outer=optax.scale(np.array(-0.2)))
    again = bl.run(solver, X, X, steps=2).x
    np.testing.assert_array_equal(again, bl.run(other, X, X, steps=2).x)
    assert not np.array_equal(again, first)


def test_a_run_writes_nothing_on_its_problem():
    def inner(x, y):
        return jnp.sum((y - x) ** 2), {"size": jnp.sum(y)}

    problem = bl.Problem(inner=inner, outer=lambda x, y: jnp.sum((y - 2.0) ** 2))
    before, objectives = dict(vars(problem)), [dict(vars(each)) for each in (problem.f, problem.g)]
    result = bl.run(bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.1), X, X, steps=3, warmup=2)
    assert "inner/size" in result.trace
    assert vars(problem) == before
    assert [vars(each) for each in (problem.f, problem.g)] == objectives


def test_parts_are_named_by_how_they_are_reached():
    found = {part.path: part.value for part in parts(worlds.WAYS["containers"][0])}
    assert found["NESTED['a'][0].b[1][0]"] == worlds.NESTED["a"][0].b[1][0]
