"""Which run is the same run: what may not differ for `resume="auto"`, and what may."""

import functools
import sys
import types
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.readings import parts
from loop.checkpoints.tiny import START, go, inner
from run_options import with_options

LAMBDA = 0.5


def closes_over(thing, use=lambda thing, y: jnp.sum(y**2)):
    return lambda x, y: use(thing, y)


def power(n):
    return lambda x, y: jnp.sum(jnp.abs(y) ** n)


def calls(function):
    return lambda x, y: jnp.sum(function(y))


class Weighted:
    def __init__(self, weight):
        self.weight = weight

    def __call__(self, x, y):
        return self.weight * self.of(y)

    def of(self, y):
        return jnp.sum(y**2)

    def method(self, x, y):
        return self(x, y)


class Other(Weighted):
    def of(self, y):
        return jnp.sum(jnp.abs(y))


class Net(eqx.Module):
    w: jax.Array

    def __call__(self, x, y):
        return jnp.sum(self.w * y**2)


def scaled(x, y, *, c):
    return c * jnp.sum(y**2)


PAIRS = {
    "a whole number": (power(2), power(4)),
    "words": (closes_over("a"), closes_over("b")),
    "a function": (calls(lambda y: y**2), calls(lambda y: y**4)),
    "a library's function": (calls(jnp.cosh), calls(jnp.square)),
    "a jitted function": (jax.jit(closes_over(1.0)), jax.jit(closes_over(2.0))),
    "an object": (Weighted(1.0), Weighted(2.0)),
    "a method": (Weighted(1.0).method, Weighted(2.0).method),
    "a subclass": (Weighted(1.0), Other(1.0)),
    "a partial": (functools.partial(scaled, c=1), functools.partial(scaled, c=2)),
    "a module": (closes_over(Net(jnp.ones(2))), closes_over(Net(2 * jnp.ones(2)))),
    "a module itself": (Net(jnp.ones(2)), Net(2 * jnp.ones(2))),
    "whole numbers in another order": (closes_over(np.array([1, 2])), closes_over(np.array([2, 1]))),
    "complex": (closes_over(1j), closes_over(2j)),
    "words in an array": (closes_over(np.array(["a"])), closes_over(np.array(["b"]))),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PAIRS)
def test_another_objective_is_refused_and_the_same_is_not(tmp_path, kind):
    one, other = PAIRS[kind]
    go(tmp_path, outer=one)
    assert go(tmp_path, 5, outer=one).steps == 5
    with pytest.raises(ValueError, match=r"outer objective"):
        go(tmp_path, 6, outer=other)


@pytest.mark.slow
def test_globals_that_an_objective_reads_count_and_those_it_sets_do_not(tmp_path, monkeypatch):
    here = sys.modules[__name__]
    helper = lambda y: jnp.sum(y**2)
    monkeypatch.setattr(here, "HELPER", helper, raising=False)
    monkeypatch.setattr(here, "COUNT", 0, raising=False)
    seen = []

    def outer(x, y):
        global COUNT
        COUNT += 1
        seen.append(1)
        return LAMBDA * HELPER(y)  # noqa: F821

    go(tmp_path, outer=outer)
    assert go(tmp_path, 5, outer=outer).steps == 5
    for name, value in {"LAMBDA": 0.7, "HELPER": lambda y: jnp.sum(jnp.abs(y))}.items():
        with monkeypatch.context() as changed:
            changed.setattr(here, name, value)
            with pytest.raises(ValueError, match="the outer objective"):
                go(tmp_path, 6, outer=outer)
    assert go(tmp_path, 6, outer=outer).steps == 6


@pytest.mark.slow
def test_functions_that_share_what_they_close_over_are_walked_once(tmp_path):
    a, b = (lambda y: jnp.sum(y**2)), (lambda y: jnp.sum(y**4))
    for _ in range(40):
        a, b = b, (lambda y, _a=a, _b=b: _b(y))
    assert len(parts(b)) < 200  # by every way to each of them, it would be 2⁴⁰ or so
    go(tmp_path, outer=lambda x, y: b(y))


@pytest.mark.slow
def test_prox_and_warm_up_count(tmp_path):
    go(tmp_path / "prox", prox=lambda x, z, step: z)
    with pytest.raises(ValueError, match="prox"):
        go(tmp_path / "prox", 5, prox=lambda x, z, step: jnp.maximum(z, 0))
    go(tmp_path / "warm")
    with pytest.raises(ValueError, match="its warmup was 0, here it is 5"):
        go(tmp_path / "warm", 5, warmup=5)


@pytest.mark.slow
def test_data_in_another_order_with_other_labels_or_without_a_nan(tmp_path):
    def fit(x, y, batch):
        return jnp.mean((batch[0] @ y - batch[1]) ** 2) + jnp.sum((y - x) ** 2)

    solver = bl.aid(bl.Problem(inner=fit, outer=fit), inner=0.01, adjoint=0.01, outer=0.01)
    rows = np.random.default_rng(0).normal(size=(30, 2))
    labels = np.arange(30) % 2
    spoiled = rows.copy()
    spoiled[3, 1] = np.nan

    def run(folder, steps, rows, labels):
        data = bl.Batch(inner=(rows, labels), outer=(rows, labels))
        return bl.run(
            solver, START, START, steps=steps, data=data, checkpoint=tmp_path / folder, resume="auto"
        )

    run("a", 3, rows, labels)
    for other in ((rows[::-1], labels), (rows, 1 - labels), (rows, labels[::-1])):
        with pytest.raises(ValueError, match="its data had other values"):
            run("a", 4, *other)
    assert run("b", 3, spoiled, labels).status.code is bl.Code.DIVERGED  # at once, so that nothing is saved
    assert run("b", 4, rows, labels).status.code is bl.Code.COMPLETED


@pytest.mark.slow
def test_a_start_in_another_order(tmp_path):
    solver = bl.aid(bl.Problem(inner=inner, outer=inner), inner=0.1, adjoint=0.1, outer=0.1)
    ask = dict(checkpoint=tmp_path, resume="auto")
    bl.run(solver, jnp.linspace(-1, 1, 9), jnp.ones(9), steps=2, **with_options(ask))
    with pytest.raises(ValueError, match="it started from another x0"):
        bl.run(solver, jnp.linspace(1, -1, 9), jnp.ones(9), steps=3, **with_options(ask))


class Settings:
    target = 1.0


@dataclass(slots=True)
class Slotted:
    target: float = 1.0


MODULE = types.ModuleType("settings")
MODULE.target, SLOTTED, HIDDEN, CHOSEN = 1.0, Slotted(), [64], {1, 2}  # type: ignore[attr-defined]

# What an objective reads, and a change of it in place.
CHANGES = {
    "a class attribute": (lambda: Settings.target, lambda: setattr(Settings, "target", 3.0)),
    "a slot": (lambda: SLOTTED.target, lambda: setattr(SLOTTED, "target", 3.0)),
    "a module": (lambda: MODULE.target, lambda: setattr(MODULE, "target", 3.0)),
    "a list of whole numbers": (lambda: HIDDEN[0], lambda: HIDDEN.__setitem__(0, 32)),
    "a set": (lambda: len(CHOSEN), lambda: CHOSEN.add(3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_in_place_of_what_is_read_is_refused_by_its_name(tmp_path, kind):
    read, change = CHANGES[kind]
    outer = lambda x, y: read() * jnp.sum(y**2)
    go(tmp_path, outer=outer)
    assert go(tmp_path, 5, outer=outer).steps == 5
    change()
    with pytest.raises(
        ValueError, match=r"the outer objective read .*, here it is|the outer objective had other"
    ):
        go(tmp_path, 6, outer=outer)


class Model(eqx.Module):
    w: jax.Array

    def __call__(self):
        return SLOTTED.target * self.w


def test_what_the_class_of_y_reads_is_compared(tmp_path, monkeypatch):
    outer = lambda x, y: jnp.sum(y() ** 2)
    problem = bl.Problem(inner=lambda x, y: jnp.sum((y.w - x) ** 2), outer=outer)
    solver = bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.1)
    go = lambda steps: bl.run(solver, START, Model(START), steps=steps, checkpoint=tmp_path, resume="auto")
    monkeypatch.setattr(SLOTTED, "target", 1.0)
    go(2)
    assert go(3).steps == 3
    monkeypatch.setattr(SLOTTED, "target", 2.0)
    with pytest.raises(ValueError, match=r"the classes of x, y and the data read SLOTTED.target = 1.0"):
        go(4)


def test_a_record_of_other_code_is_refused(tmp_path):
    go(tmp_path, record=lambda state, info: {"a": state.y})
    with pytest.raises(ValueError, match="the record had other code"):
        go(tmp_path, 5, record=lambda state, info: {"a": 2 * state.y})


class Batches:
    """A loader that says where it stands."""

    def __init__(self, *values):
        self.values, self.at = values, 0

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        return bl.Batch(inner=np.full(2, self.values[self.at - 1]), outer=np.ones(2))

    def get_state(self):
        return self.at

    def set_state(self, at):
        self.at = at


def test_a_loader_of_other_data_is_refused_and_later_batches_are_not_vouched_for(tmp_path):
    fit = lambda x, y, batch: jnp.mean((batch - y) ** 2) + jnp.sum((y - x) ** 2)
    solver = bl.aid(bl.Problem(inner=fit, outer=fit), inner=0.1, adjoint=0.1, outer=0.1)

    def run(steps, first, last):
        data = Batches(first, 2.0, 3.0, last, 5.0)
        return bl.run(solver, START, START, steps=steps, data=data, checkpoint=tmp_path, resume="auto")

    assert "verify" not in run(2, 1.0, 4.0).status.message
    again = run(3, 1.0, 5.0)
    assert (
        "Cannot verify that the batches of the loader after the first are unchanged." in again.status.message
    )
    with pytest.raises(ValueError, match="the first batch of its loader had other values"):
        run(4, 1.5, 4.0)


def test_what_cannot_be_looked_into_is_reported(tmp_path):
    stream = iter([1.0])
    outer = lambda x, y: jnp.sum(y**2) + 0.0 * stream.__length_hint__()
    go(tmp_path, outer=outer)
    message = go(tmp_path, 5, outer=outer).status.message
    assert (
        "Cannot verify that stream (builtins.list_iterator) that the outer objective reads is unchanged."
        in message
    )


def test_an_array_that_hardly_differs_is_reported(tmp_path):
    """It may have been rounded by another device, or one of many entries may have been changed."""
    table, labels = np.ones(10_000), np.zeros(10_000, int)
    outer = lambda x, y: jnp.sum((y - table[3] - labels[3]) ** 2)
    go(tmp_path, outer=outer)
    assert "Not equal" not in go(tmp_path, 5, outer=outer).status.message
    table[3] = 1.05
    message = go(tmp_path, 6, outer=outer).status.message
    assert message.endswith(
        "Not equal to the saved run, but close enough for rounding on another device: the array table that the "
        "outer objective reads."
    )
    table[3], labels[3] = 1.0, 1
    with pytest.raises(ValueError, match="read the array labels, which had other values"):
        go(tmp_path, 7, outer=outer)


def test_data_and_starts_that_hardly_differ_are_reported(tmp_path):
    fit = lambda x, y, batch: jnp.mean((batch - y[0]) ** 2) + jnp.sum((y - x) ** 2)
    solver = bl.aid(bl.Problem(inner=fit, outer=fit), inner=0.1, adjoint=0.1, outer=0.1)

    def run(steps, start, rows):
        data = bl.Batch(inner=rows, outer=rows)
        return bl.run(solver, start, start, steps=steps, data=data, checkpoint=tmp_path, resume="auto")

    rows = jnp.ones(10_000)
    run(2, START, rows)
    again = run(3, START * (1 + 1e-6), rows.at[5].set(1.05))
    assert again.status.message.endswith("another device: its start (x0, y0 or model_state), its data.")


def test_a_record_made_again_with_another_global_is_recorded():
    solver = bl.aid(
        bl.Problem(inner=inner, outer=lambda x, y: jnp.sum(y**2)), inner=0.1, adjoint=0.1, outer=0.1
    )
    space, seen = {}, []
    for space["scale"] in (1.0, 10.0):
        record = eval("lambda state, info: {'m': scale}", space)
        seen += bl.run(solver, *START, steps=1, record=record).trace["m"].tolist()
    assert seen == [1.0, 10.0]
