"""What the user brings: the two objectives, and the data each of them is evaluated on."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from jaxtyping import Array, Float

from bilevel.oracles import Oracles

PyTree = Any


class Batch(NamedTuple):
    """The data of one step: what the inner and the outer objective see (each any pytree, or `None`)."""

    inner: PyTree = None
    outer: PyTree = None


@dataclass(frozen=True, eq=False)
class Objective:
    """A scalar function of `(x, y)` or `(x, y, batch)`, called the same way whichever it is."""

    function: Callable[..., Float[Array, ""]]
    level: str
    batch: str = field(init=False)  # "never", "optional" or "required"

    def __post_init__(self):
        if not callable(self.function):
            raise TypeError(
                f"the {self.level} objective must be a function of (x, y) or (x, y, batch), "
                f"not {type(self.function).__name__}: pass the function itself"
            )
        object.__setattr__(self, "batch", _batch_use(self.function, self.level))

    def __call__(self, x: PyTree, y: PyTree, batch: Batch | None = None) -> Float[Array, ""]:
        data = None if batch is None else getattr(batch, self.level)
        return self.function(x, y) if data is None else self.function(x, y, data)


@dataclass(frozen=True, eq=False)
class Problem:
    """Minimise `f(x, y*(x))` over x, where `y*(x)` minimises `g(x, y)` over y.

    Args:
        outer: f, a scalar function of `(x, y)` or `(x, y, batch)`.
        inner: g, likewise. Certificates assume it strongly convex in y; the solvers run without that.

    x and y are arbitrary pytrees of floating arrays. The `batch` a function receives is its own level's
    part of a [`Batch`][bilevel.Batch], always as an argument, so that data are never compiled in.
    """

    outer: Callable[..., Float[Array, ""]]
    inner: Callable[..., Float[Array, ""]]

    @cached_property
    def f(self) -> Objective:
        return Objective(self.outer, "outer")

    @cached_property
    def g(self) -> Objective:
        return Objective(self.inner, "inner")

    def __post_init__(self):
        _ = self.f, self.g  # a function of the wrong shape is an error here, not at the first step

    @cached_property
    def checked(self) -> set:
        """The shapes of (x, y, batch) that these objectives are known to fit, so that they are checked once."""
        return set()

    @cached_property
    def oracles(self) -> Oracles:
        """The derivatives of f and g that solvers use; override to supply hand-written ones."""
        return Oracles(self.f, self.g)


def _batch_use(function: Callable, level: str) -> str:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some C callables have no signature; trust the data given
        return "optional"
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(p.default is p.empty for p in positional)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return "optional" if required <= 2 else "required"
    if len(positional) < 2 or required > 3:
        raise TypeError(
            f"the {level} objective must take (x, y) or (x, y, batch), but its signature is "
            f"{inspect.signature(function)}: bind other arguments with functools.partial"
        )
    return "never" if len(positional) == 2 else "required" if required == 3 else "optional"
