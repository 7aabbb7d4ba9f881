"""Objects: an argument is of the class that it must be of."""

import os
import traceback
from pathlib import Path
from typing import Any

from bilevel.problem import Problem
from bilevel.words import shown


def check_kind(value: Any, kind: Any, name: str, what: str, fix: str) -> Any:
    """The value, once it is of that class; `what` and `fix` say in words what it must be and where to get it."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {what}, not {_instead(value)}: {fix}")
    return value


def check_problem(problem: Any) -> Problem:
    return check_kind(
        problem, Problem, "problem", "a bl.Problem", "pass bl.Problem(inner=g, outer=f), or instance.problem"
    )


def check_flag(value: Any, name: str) -> bool:
    return check_kind(value, bool, name, "True or False", f"pass {name}=True, or leave it out")


def check_text(value: Any, name: str, example: str) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{name} must be a text that is not empty, not {shown(value)}: pass e.g. {example}")
    return value


def _instead(value: Any) -> str:
    """A class is a likely slip of its instance; of an instance, its class says enough."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "NoneType" if value is None else f"{type(value).__name__} {shown(value)}"


def check_path(path: Any, name: str) -> Path:
    """A file or folder that a file system can have, whether it is there or not."""
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


def said_by_us(error: Exception) -> bool:
    """Whether a check of this library raised the error."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "").startswith("bilevel.")
