"""Checks of single values: numbers, counts, seeds, choices, paths, and objects of a class."""

import math
import os
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from bilevel.callables import check_callable
from bilevel.problem import Problem
from bilevel.words import shown

MOST = 2**31 - 1  # the largest count of a loop on the device
MANY = 2**63 - 1  # the largest count of a loop on the host


def as_number(value: Any) -> float | None:
    """Return a real number or an array of rank 0 as a float; `None` for anything else."""
    if isinstance(value, bool | np.bool_ | Tracer):
        return None
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        deleted = isinstance(value, jax.Array) and value.is_deleted()
        if np.ma.isMaskedArray(value) or deleted or value.ndim or not _real(value.dtype):
            return None
    elif not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number beyond every float
        return math.inf


def _real(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, np.floating) or jnp.issubdtype(dtype, np.integer)


def check_positive(value: Any, name: str, alternative: str = "", traced: bool = True) -> None:
    """Raise if the value is not a positive finite number. Traced numbers, if allowed, have no value yet."""
    if traced and isinstance(value, Tracer) and value.ndim == 0 and _real(value.dtype):
        return
    number = as_number(value)
    if number is None or not (math.isfinite(number) and number > 0):
        raise ValueError(
            f"the {name} must be a positive number, not {shown(value)}: pass e.g. 1e-2 {alternative}".rstrip()
        )
    if isinstance(value, int | np.integer) and value > MOST:
        raise ValueError(f"the {name} is the whole number {value}, beyond 32 bits: write it as {number!r}")


def check_not_negative(value: Any, name: str, traced: bool = True) -> None:
    """Raise if the value is not a finite number of at least zero."""
    if as_number(value) != 0:
        check_positive(value, name, "or 0 for none", traced)


def check_finite(value: Any, name: str) -> float:
    """Return a finite number of any sign; raise for anything else."""
    number = as_number(value)
    if number is None or not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, not {shown(value)}: pass e.g. {name}=0.0")
    return number


def check_schedule(schedule: Any, k: Any, check: Callable[[Any], Any], name: str = "schedule") -> Any:
    """Return the function of a step number; raise if its value at step k does not pass `check`."""
    example = "optax.exponential_decay(0.1, transition_steps=1, decay_rate=0.9)"
    check_callable(schedule, name, 1, "a function of the step number", example)
    try:
        with jax.ensure_compile_time_eval():
            value = schedule(k)
    except Exception as error:
        raise TypeError(
            f"{name} cannot be called with the step's number, where it raises: {error}"
        ) from error
    known = isinstance(value, np.ndarray | np.generic | jax.Array) and not isinstance(value, Tracer)
    check(value.item() if known and value.ndim == 0 else value)
    return schedule


def check_count(value: Any, name: str, least: int = 1, most: int | float = MOST, such_as: int = 100) -> int:
    """Return a whole number from `least` to `most`; raise for anything else."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least:
        option = f"{name}=" if name.isidentifier() else ""
        raise ValueError(
            f"{name} must be a whole number of at least {least}, not {shown(value)}: pass e.g. "
            f"{option}{max(least, such_as)}"
        )
    if value > most:
        raise ValueError(f"{name} must be at most {most:,}, not {shown(value)}: pass a smaller one")
    return int(value)


def check_seed(seed: Any, name: str = "seed") -> np.uint32:
    """Return a whole number of 32 bits; raise for anything else."""
    return np.uint32(check_count(seed, name, least=0, most=2**32 - 1))


def check_traced_seed(seed: Any) -> Any:
    """Return a seed, which may be a traced whole number."""
    if isinstance(seed, Tracer):
        if seed.ndim or not jnp.issubdtype(seed.dtype, np.integer):
            raise TypeError(
                f"seed must be a whole number, possibly traced, not {seed.dtype}{list(seed.shape)}: pass e.g. seed=0"
            )
        return seed
    known = isinstance(seed, jax.Array) and not seed.is_deleted() and seed.ndim == 0
    return check_seed(np.asarray(seed)[()] if known and jnp.issubdtype(seed.dtype, np.integer) else seed)


def check_choice(value: Any, name: str, choices: Sequence[str]) -> str:
    """Return one of the choices; raise for anything else."""
    if not isinstance(value, str) or value not in choices:
        quoted = [f'"{choice}"' for choice in choices]
        listed = " or ".join(quoted) if len(quoted) == 2 else f"one of {', '.join(quoted)}"
        raise ValueError(f"{name} must be {listed}, not {shown(value)}")
    return value


def check_kind(value: Any, kind: Any, name: str, what: str, fix: str) -> Any:
    """Return a value of that class; raise otherwise. `what` and `fix` are parts of the error."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {what}, not {_instead(value)}: {fix}")
    return value


def check_problem(problem: Any) -> Problem:
    fix = "pass bl.Problem(inner=g, outer=f), or instance.problem"
    return check_kind(problem, Problem, "problem", "a bl.Problem", fix)


def check_flag(value: Any, name: str) -> bool:
    return check_kind(value, bool, name, "True or False", f"pass {name}=True, or leave it out")


def check_text(value: Any, name: str, example: str) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{name} must be a text that is not empty, not {shown(value)}: pass e.g. {example}")
    return value


def _instead(value: Any) -> str:
    """Return a description of a wrong value; a class is often passed in place of its instance."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "NoneType" if value is None else f"{type(value).__name__} {shown(value)}"


def check_path(path: Any, name: str) -> Path:
    """Return the path of a file or folder, which need not exist; raise for anything else."""
    named = isinstance(path, str | os.PathLike) and isinstance(os.fspath(path), str)
    if not named or not os.fspath(path) or "\0" in os.fspath(path):
        raise ValueError(
            f'{name} must be the path of a file or folder, not {shown(path)}: pass e.g. {name}="runs/a"'
        )
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} has characters that no file can be called by, in {shown(path)}: rename it"
        ) from error
    return Path(path)


def is_ours(error: Exception) -> bool:
    """Return whether code of this library raised the error."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "").startswith("bilevel.")
