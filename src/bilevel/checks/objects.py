"""Checks of the classes of arguments."""

import os
import traceback
from pathlib import Path
from typing import Any

from bilevel.problem import Problem
from bilevel.words import shown


def check_kind(value: Any, kind: Any, name: str, what: str, fix: str) -> Any:
    """Return a value of that class; raise otherwise. `what` and `fix` are parts of the error."""
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
