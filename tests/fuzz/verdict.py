"""Whether a call ended as it may: a sound result, or a refusal in our words. Otherwise what is wrong, in a sentence."""

import ast
import dataclasses
import inspect
import linecache
import signal
import traceback
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

import bilevel as bl
from bilevel.words import shown
from fuzz.values import Traced

OURS = Path(bl.__file__).parent
HERE = Path(__file__).parent
LIMIT = 30  # seconds that no call needs
SYNONYMS = {"alpha": "step size", "eta": "step size", "outer": "step size", "inner": "step size"}
REFUSALS = (TypeError, ValueError, KeyError, IndexError, bl.RunError, bl.data.DataError)


class Hung(BaseException):
    """A call did not come back."""


def outcome(function: Callable, arguments: dict[str, Any], fuzzed: dict[str, str], may: bool) -> str | None:
    """`None` if all is well. `fuzzed` names the arguments that are odd and their values; `may` they be accepted?"""
    try:
        with _limit(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = _call(function, arguments)
    except Hung as error:
        return f"hangs in {_place(error)}"
    except Exception as error:
        return _refusal(error, arguments, fuzzed)
    if not may:
        return "accepted"
    return _unsound(made)


def _call(function: Callable, arguments: dict[str, Any]) -> Any:
    traced = [name for name, value in arguments.items() if value is Traced]
    if not traced:
        return function(**arguments)
    made = []

    def inside(t):
        made.append(function(**arguments | dict.fromkeys(traced, t)))
        return t

    jax.eval_shape(inside, jax.ShapeDtypeStruct((), np.float32))
    return None  # what was made inside has leaked


def _refusal(error: Exception, arguments: dict[str, Any], fuzzed: dict[str, str]) -> str | None:
    kind, message = type(error).__name__, error.args[0] if isinstance(error, KeyError) else str(error)
    told = f"{kind}: {message[:160]!r} at {_place(error)}"
    if not isinstance(error, REFUSALS):
        return f"not a documented exception: {told}"
    if not _raised_by_us(error):
        return f"not our words: {told}"
    if len(message) > 1500:
        return f"{len(message)} characters: {told}"
    if len(message.split()) < 6:
        return f"too short to help: {told}"
    words = message.lower().replace("_", " ")
    named_so = [SYNONYMS[name] in words for name in fuzzed if name in SYNONYMS]
    values = [arguments[name] for name in fuzzed]
    named = [name.lower().replace("_", " ").rstrip("s0") in words for name in fuzzed]
    named += [
        type(value).__name__.lower() in words
        or shown(value)[:12] in message
        or (value is Traced and "trac" in words)
        for value in values
    ]
    named += named_so
    named += [any(text in message for text in _looks(value)) for value in values]
    if not any(named) and not isinstance(error, bl.data.DataError):  # which names the file
        return f"names neither {' nor '.join(fuzzed)}: {told}"
    return None


def _looks(value: Any) -> list[str]:
    """Other ways to name a value: the shape of an array, the digits of a number."""
    if (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and value == value
        and abs(value) < 1e308
    ):
        return [f"{value:.2e}"[:3]]
    shape = (
        ()
        if isinstance(value, type)
        else getattr(value, "shape", (len(value),) if isinstance(value, list | tuple | range) else ())
    )
    return [str(shape), str(list(shape))] if shape else []


def _raised_by_us(error: BaseException) -> bool:
    """Raised by a `raise` of the library, or anything at all in a function of the user's."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    file = frame.f_code.co_filename
    if file.startswith(str(HERE)):
        return frame.f_code.co_name in ("<lambda>", "coroutine", "inner", "outer")
    return file.startswith(str(OURS)) and line in _raises(file)


@cache
def _raises(file: str) -> frozenset[int]:
    """The lines of a file that belong to a `raise`."""
    nodes = [
        node for node in ast.walk(ast.parse("".join(linecache.getlines(file)))) if isinstance(node, ast.Raise)
    ]
    return frozenset(
        line for node in nodes for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    )


def _place(error: BaseException) -> str:
    """The last place in the library, and what was called there."""
    frames = [(f.f_code, line) for f, line in traceback.walk_tb(error.__traceback__)]
    ours = [(code, line) for code, line in frames if code.co_filename.startswith(str(OURS))]
    if not ours:
        return "the call"
    code, line = ours[-1]
    return f"{Path(code.co_filename).relative_to(OURS)}:{line} {linecache.getline(code.co_filename, line).strip()[:70]}"


def _unsound(made: Any) -> str | None:
    if isinstance(made, bl.Result) and made.status.code in (bl.Code.COMPLETED, bl.Code.CONVERGED):
        for name, part in (("x", made.x), ("y", made.y), ("trace", made.trace)):
            if not all(np.all(np.isfinite(np.asarray(leaf, float))) for leaf in jax.tree.leaves(part)):
                return f"{made.status.code.value} with {name} not finite"
    if inspect.isgenerator(made) or inspect.iscoroutine(made):
        return f"returned a {type(made).__name__}"
    if type(made).__module__.startswith("bilevel.theory") and dataclasses.is_dataclass(made):
        for field in dataclasses.fields(made):
            value = getattr(made, field.name)
            numbers = isinstance(value, float | np.ndarray) and np.asarray(value).dtype.kind == "f"
            if numbers and np.any(np.isnan(value)):
                return f"{field.name} is NaN"
    if isinstance(made, float | np.floating) and np.isnan(made):
        return "returned NaN"
    return None


@contextmanager
def _limit():
    def ring(*_):
        raise Hung

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
