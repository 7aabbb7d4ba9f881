"""Loader of a user's method or task, given on the command line as `module:name`. All errors are one line."""

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from bilevel.lab.compare.measurement import solver_of
from bilevel.lab.compare.methods import YOURS, Method
from bilevel.lab.compare.tasks import Task, task_of
from bilevel.loop.state import start
from bilevel.problems import Instance


def your_method(address: str) -> Method:
    """Return the `Method`, or make one from a function `(problem, L, outer) -> solver`."""
    found = find(address)
    if isinstance(found, Method):
        return found
    if not callable(found) or not _takes(found, 3):
        raise ValueError(
            f"{_kind(found)} is not a method: name a bilevel.lab.compare.Method, "
            "or a function of (problem, L, outer) that returns a solver"
        )
    make: Any = found
    return Method(address.partition(":")[2], YOURS, make, varies=True, quick=True)


def check_method(method: Method, task: Task) -> None:
    """Check that it makes a solver for this task, and that the solver can start."""
    try:
        solver = solver_of(method, task, task.rates[0])
        data = method.data(task.instance.data)
        jax.eval_shape(lambda: start(solver, task.instance.x0, task.instance.y0, data))
    except Exception as error:
        raise ValueError(f"{method.name} does not suit the task {task.name}: {_said(error)}") from error


def your_task(address: str, quick: bool) -> Task:
    """Return a `Task` from a `Task`, an `Instance`, or a function of nothing or of `quick`."""
    found = find(address)
    if callable(found) and (_takes(found, 0) or _takes(found, 1)):
        try:
            found = found() if _takes(found, 0) else found(quick)
        except Exception as error:
            raise ValueError(f"it failed: {_said(error)}") from error
    if isinstance(found, Task):
        return found
    if isinstance(found, Instance):
        return task_of(found, quick)
    raise ValueError(
        f"{_kind(found)} is not a task: name a bilevel.problems.Instance, a bilevel.lab.compare.Task, "
        "or a function that makes one"
    )


def find(address: str) -> Any:
    """Return the object `module:name`. Search the module first in the current folder."""
    module, _, name = address.partition(":")
    if not module or not name:
        raise ValueError("not of the form module:name, such as mine:solver")
    found = _imported(module)
    for part in name.split("."):
        if not hasattr(found, part):
            has = [each for each in getattr(found, "__dict__", ()) if not each.startswith("_")]
            raise ValueError(f"{module} has no {name!r}" + (f": it has {', '.join(has)}" if has else ""))
        found = getattr(found, part)
    return found


def _imported(module: str) -> Any:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module}.".startswith(f"{missing}."):
            where = f"in {here} or where Python looks for modules"
            raise ValueError(f"there is no module {module!r} {where}") from error
        raise ValueError(f"importing {module} failed: {_said(error)}") from error
    finally:
        sys.path.remove(here)


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True


def _kind(value: Any) -> str:
    if inspect.isroutine(value) or inspect.isclass(value):
        return f"{value.__name__}{inspect.signature(value)}"
    return f"an object of type {type(value).__name__}"


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
