"""Odd values by name. Each is made anew for a call, in the users' climate, as some can be used once only."""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import bilevel as bl
from fuzz.valid import CONSTANTS, DATA, EXAMPLES, NOISE, PROBLEM, SOLVER, result, run_state


class Silent:
    """Has nothing, not even a name for itself."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")


async def coroutine(x, y):
    return x


def deleted() -> jax.Array:
    array = jnp.ones(2)
    array.delete()
    return array


def double(*shape: int) -> jax.Array:
    """float64, as made by somebody with x64 on."""
    with jax.enable_x64(True):
        return jnp.ones(shape, jnp.float64)


NUMBERS = {
    "true": lambda: True,
    "zero": lambda: 0,
    "minus one": lambda: -1,
    "one": lambda: 1,
    "2^31": lambda: 2**31,
    "2^32": lambda: 2**32,
    "2^63": lambda: 2**63,
    "2^64": lambda: 2**64,
    "10^30": lambda: 10**30,
    "5000 digits": lambda: 10**5000,
    "half": lambda: 0.5,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "minus inf": lambda: -math.inf,
    "tiny": lambda: 1e-320,
    "large": lambda: 1e308,
    "complex": lambda: 1j,
    "tracer": lambda: Traced,
    "double scalar": lambda: double(),
    "long double": lambda: np.longdouble(2) ** 5000,
}
OBJECTS = {
    "none": lambda: None,
    "text": lambda: "abc",
    "empty text": lambda: "",
    "text of a number": lambda: "1",
    "text with NUL": lambda: "a\0b",
    "text with a surrogate": lambda: "\ud800",
    "bytes": lambda: b"abc",
    "list": lambda: ["a", 1.0],
    "empty list": lambda: [],
    "nested list": lambda: [[1.0], [2.0, 3.0]],
    "empty tuple": lambda: (),
    "empty dict": lambda: {},
    "mixed keys": lambda: {1: jnp.ones(2), "a": jnp.ones(2)},
    "set": lambda: {1, 2},
    "generator": lambda: (i for i in range(3)),
    "range": lambda: range(3),
    "class": lambda: int,
    "module": lambda: math,
    "function of nothing": lambda: lambda: 0.0,
    "function of one": lambda: lambda a: 0.0,
    "function of five": lambda: lambda a, b, c, d, e: 0.0,
    "function with a keyword": lambda: lambda *, a: 0.0,
    "coroutine": lambda: coroutine,
    "bare": lambda: object(),
    "silent": Silent,
    "path": lambda: Path("/nonexistent/folder/file"),
    "path with NUL": lambda: Path("a\0b"),
}
ARRAYS = {
    "nan array": lambda: np.array([1.0, math.nan]),
    "long doubles": lambda: np.ones(2, np.longdouble),
    "objects": lambda: np.array([1.0, None], object),
    "strings": lambda: np.array(["a", "b"]),
    "one string": lambda: np.array("1"),
    "structured": lambda: np.zeros(2, [("a", float), ("b", int)]),
    "masked": lambda: np.ma.masked_array([1.0, 2.0], [True, False]),
    "big-endian": lambda: np.ones(2, ">f8"),
    "dates": lambda: np.zeros(2, "datetime64[s]"),
    "deleted": deleted,
    "zero-size": lambda: jnp.zeros(0),
    "complexes": lambda: np.ones(2, complex),
    "truths": lambda: np.ones(2, bool),
    "whole numbers": lambda: np.arange(2),
    "floats": lambda: jnp.ones(2),
    "matrix": lambda: np.ones((2, 3)),
    "random key": lambda: jax.random.key(0),
    "doubles": lambda: double(2),
}
OURS = {
    "problem": lambda: PROBLEM,
    "solver": lambda: SOLVER,
    "result": result,
    "run": run_state,
    "constants": lambda: CONSTANTS,
    "blocks": lambda: CONSTANTS.blocks,
    "noise": lambda: NOISE,
    "certificate": lambda: bl.theory.aid(CONSTANTS),
    "batch": lambda: DATA,
    "stream": lambda: bl.iid(DATA, 2),
    "rule": lambda: optax.sgd(0.1),
    "adjoint": lambda: bl.adjoints.cg(),
    "hook": lambda: bl.hooks.Best(),
    "examples": lambda: EXAMPLES,
}
ODD = NUMBERS | OBJECTS | ARRAYS | OURS


class Traced:
    """Stands for a tracer, which is there inside a transformation only: the call is then made inside `jax.jit`."""
