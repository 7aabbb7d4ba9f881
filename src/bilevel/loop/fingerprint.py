"""What produced a run, in words: compared before another run goes on from it."""

from dataclasses import fields, is_dataclass
from typing import Any

import jax
import jax.numpy as jnp

from bilevel.batch import Levels
from bilevel.identity import Static, described, skeleton
from bilevel.loop.data.streams import Given
from bilevel.solvers.base import Solver
from bilevel.solvers.rule_closures import Closures
from bilevel.solvers.step_scaling import Shortened
from bilevel.types import PyTree

Fingerprint = tuple[tuple[str, str], ...]  # (what, in words)


def fingerprint(solver: Solver, x: PyTree, y: PyTree, stream: Any, model_state: PyTree) -> Fingerprint:
    """Solver and rules without their step sizes, the objectives, and the shapes of everything."""
    return (
        ("solver", _words(solver)),
        ("inner objective", described(solver.problem.inner)),
        ("outer objective", described(solver.problem.outer)),
        ("x", _shapes(x)),
        ("y", _shapes(y)),
        ("model state", _shapes(model_state)),
        (
            "data",
            "a loader" if stream is None or isinstance(stream, Given) else _drawn(stream),
        ),
    )


def difference(before: Fingerprint, now: Fingerprint) -> str | None:
    """The first thing that differs, in words."""
    for (what, then), (_, here) in zip(before, now, strict=True):
        if then != here:
            return f"its {what} was {_short(then)}, here it is {_short(here)}"
    return None


def _words(value: Any) -> str:
    """A solver, a rule or an ingredient: its kind and its static settings; numbers that are leaves stay out."""
    if isinstance(value, Static):
        return _words(value.value)
    if isinstance(value, Shortened):  # how long its steps are is a number
        return _words(value.rule)
    if isinstance(value, Closures):
        return f"{described(value.value.update)}#{skeleton(value.value.update)}"
    if is_dataclass(value):
        parts = [
            f"{field.name}={_words(getattr(value, field.name))}"
            for field in fields(value)
            if field.name != "problem"
            and (field.metadata.get("static") or is_dataclass(getattr(value, field.name)))
        ]
        return f"{type(value).__name__}({', '.join(parts)})"
    if callable(value):
        return described(value)
    return repr(value)


def _drawn(stream: Any) -> str:
    """A stream: its kind, how its samplers draw, and the shapes of its arrays."""
    samplers = getattr(stream, "samplers", Levels())._asdict()
    how = [
        f"{level}: {type(s).__name__} {s.size} of {s.examples}"
        for level, s in samplers.items()
        if s is not None
    ]
    return f"{type(stream).__name__}({', '.join(how)}) of {_shapes(stream)}"


def _shapes(tree: PyTree) -> str:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    if not leaves:
        return "nothing"
    shown = [
        f"{jax.tree_util.keystr(path)} {jnp.result_type(leaf)}{list(jnp.shape(leaf))}".strip()
        for path, leaf in leaves
    ]
    return ", ".join(shown)


def _short(text: str, most: int = 160) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
