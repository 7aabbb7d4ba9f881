"""Functions that read a number by many ways, and the solvers that take such functions.

`python -m loop.worlds` prints what runs give when every number is 2 from the start: what a second run in another
process, after the number was changed to 2, is compared with.
"""

import json
import os
import sys
import types
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import bilevel as bl
from run_options import with_options

NUMBER = 1.0
LIST, DICT, ARRAY, NESTED = [1.0], {"a": 1.0}, np.ones(1), {"a": [types.SimpleNamespace(b=(1.0, [1.0]))]}
SPACE, MODULE = types.SimpleNamespace(a=1.0), types.ModuleType("settings")
MODULE.a, NAME = 1.0, "a"
SET, CONTEXT = {1}, ContextVar("CONTEXT", default=1.0)


class Class:
    a = 1.0


class Slots:
    __slots__ = ("a",)

    def __init__(self):
        self.a = 1.0


@dataclass(slots=True)
class Data:
    a: float = 1.0


class Object:
    def __init__(self):
        self.a = 1.0

    def method(self):
        return self.helper()

    def helper(self):
        return self.twice / 2

    @property
    def twice(self):
        return 2 * self.a

    def __call__(self):
        return self.a


SLOTS, DATA, OBJECT, DEFAULT = Slots(), Data(), Object(), [1.0]


def closure():
    held = 1.0

    def get():
        return held

    def put(value):
        nonlocal held
        held = value

    return get, put


GET, PUT = closure()


def helper():
    return NUMBER


@jax.jit
def jitted():
    return NUMBER


def body(carry, _):
    return carry + NUMBER, None


def marked():
    return marked.a


marked.a = 1.0


class Pair(NamedTuple):
    one: float

    def get(self):
        return NUMBER


PAIR = Pair(1.0)
ALIAS = [types.SimpleNamespace(a=1.0), types.SimpleNamespace(a=2.0), None]
ALIAS[2] = ALIAS[0]
HOLDER = types.SimpleNamespace(held=MODULE)


def helper_of(holder):
    return holder.held.a


def module_inside():
    import settings  # pyright: ignore[reportMissingImports]

    return settings.a


def from_inside():
    from settings import a  # pyright: ignore[reportMissingImports]

    return a


def quoted():
    return globals()["NUMBER"]


def set_environment(value):
    os.environ["BILEVEL_TEST_NUMBER"] = str(value)


def set_global(value):
    global NUMBER
    NUMBER = value


def put_in(container, key):
    return lambda value: container.__setitem__(key, value)


def put_at(thing):
    return lambda value: setattr(thing, "a", value)


def grow(value):
    SET.clear()
    SET.update(range(int(value)))


# What reads the number, and what changes it.
WAYS = {
    "a global": (lambda: NUMBER, set_global),
    "a helper's global": (lambda: helper(), set_global),
    "a list": (lambda: LIST[0], put_in(LIST, 0)),
    "a dict": (lambda: DICT["a"], put_in(DICT, "a")),
    "an array": (lambda: ARRAY[0], put_in(ARRAY, 0)),
    "containers": (lambda: NESTED["a"][0].b[1][0], put_in(NESTED["a"][0].b[1], 0)),
    "a namespace": (lambda: SPACE.a, put_at(SPACE)),
    "a module": (lambda: MODULE.a, put_at(MODULE)),
    "a module, imported inside": (module_inside, put_at(MODULE)),
    "a name of a module, imported inside": (from_inside, put_at(MODULE)),
    "a name in quotes": (lambda: getattr(MODULE, "a"), put_at(MODULE)),  # noqa: B009
    "a name in a variable": (lambda: getattr(MODULE, NAME), put_at(MODULE)),
    "a global in quotes": (quoted, set_global),
    "a dict of a module": (lambda: vars(MODULE)["a"], put_at(MODULE)),
    "the environment": (lambda: float(os.environ["BILEVEL_TEST_NUMBER"]), set_environment),
    "a context variable": (lambda: CONTEXT.get(), CONTEXT.set),
    "a class": (lambda: Class.a, put_at(Class)),
    "a slot": (lambda: SLOTS.a, put_at(SLOTS)),
    "a dataclass": (lambda: DATA.a, put_at(DATA)),
    "an object": (lambda: OBJECT.a, put_at(OBJECT)),
    "a property": (lambda: OBJECT.twice / 2, put_at(OBJECT)),
    "a method": (OBJECT.method, put_at(OBJECT)),
    "a callable object": (OBJECT, put_at(OBJECT)),
    "a default": (lambda held=DEFAULT: held[0], put_in(DEFAULT, 0)),
    "a keyword's default": (lambda *, held=DEFAULT: held[0], put_in(DEFAULT, 0)),
    "a partial": (partial(lambda held: held[0], DEFAULT), put_in(DEFAULT, 0)),
    "a closure": (GET, PUT),
    "a closure's closure": (lambda: (lambda: GET())(), PUT),
    "a jitted function": (lambda: jitted(), set_global),
    "a scan's body": (lambda: jax.lax.scan(body, 0.0, None, length=1)[0], set_global),
    "a checkpointed helper": (lambda: jax.checkpoint(jitted)(), set_global),
    "a function's attribute": (lambda: marked(), put_at(marked)),
    "a named tuple's method": (lambda: PAIR.get(), set_global),
    "an alias": (lambda: ALIAS[-1].a, lambda value: ALIAS.__setitem__(2, ALIAS[int(value) - 1])),
    "a module in an object": (lambda: helper_of(HOLDER), put_at(MODULE)),
    "a set": (lambda: float(len(SET)), grow),
}


def problem(inner=lambda: 1.0, outer=lambda: 1.0, prox=None):
    return bl.Problem(
        inner=lambda x, y: 0.5 * jnp.sum((y - inner() * x) ** 2),
        outer=lambda x, y: 0.5 * outer() * jnp.sum((y - 2.0) ** 2),
        prox=prox,
    )


def clip(a):
    return lambda x: jnp.clip(x, 0.0, 0.2 * a())


def rule(a):
    return optax.sgd(lambda count: 0.1 * a())


# A solver that takes the function, and options of the run.
SLOTS_FOR = {
    "the inner objective": lambda a: (bl.itd(problem(inner=a), inner=0.5, outer=0.1), {}),
    "the outer objective": lambda a: (bl.aid(problem(outer=a), inner=0.5, adjoint=0.5, outer=0.1), {}),
    "prox": lambda a: (
        bl.itd(problem(prox=lambda x, z, step: z / (1 + step * a())), inner=0.5, outer=0.1),
        {},
    ),
    "a projection": lambda a: (bl.itd(problem(), inner=0.5, outer=bl.projected(0.5, clip(a))), {}),
    "a schedule": lambda a: (bl.itd(problem(), inner=0.5, outer=rule(a)), {}),
    "an inner schedule": lambda a: (bl.soba(problem(), inner=rule(a), adjoint=0.5, outer=0.1), {}),
    "the record": lambda a: (
        bl.itd(problem(), inner=0.5, outer=0.1),
        {"record": lambda state, info: {"a": a() * state.y}},
    ),
    "f2sa's penalty": lambda a: (bl.f2sa(problem(), inner=0.1, outer=0.1, penalty=lambda k: 3.0 * a()), {}),
    "hoag's tolerance": lambda a: (
        bl.hoag(problem(), inner=0.1, outer=0.1, tol=lambda k: 0.1 ** (3 * a() - 2) / (k + 1)),
        {},
    ),
    "tuning_free's projection": lambda a: (bl.tuning_free(problem(), project=clip(a)), {}),
    "iaptt's projection": lambda a: (
        bl.solvers.iaptt(problem(), inner=0.1, outer=0.1, inner_steps=2, project=clip(a)),
        {},
    ),
    "bda's fading": lambda a: (
        bl.solvers.bda(problem(), inner=0.5, outer=0.5, inner_steps=3, fading=lambda t: 0.3 * a()),
        {},
    ),
}
START = jnp.array([0.3])


def result(solver, options):
    """What a run gives, in numbers."""
    found = bl.run(solver, START, START, steps=4, **with_options(options))
    seen = [found.x, found.y, found.trace["outer_value"], found.trace.get("a", 0.0)]
    return np.concatenate([np.ravel(each) for each in seen]).tolist()


def cases():
    """Every way with one taker, and every taker with one way."""
    names = list(SLOTS_FOR)
    return [(way, names[i % len(names)]) for i, way in enumerate(WAYS)]


if __name__ == "__main__":
    sys.modules["settings"] = MODULE
    for _, change in WAYS.values():
        change(2.0)
    print(json.dumps([result(*SLOTS_FOR[taker](WAYS[way][0])) for way, taker in cases()]))
