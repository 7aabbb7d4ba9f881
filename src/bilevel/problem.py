"""Objectives of a bilevel problem, written by the user."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax

from bilevel.batch import Batch
from bilevel.callables import takes
from bilevel.identity import by_identity
from bilevel.memory import Memory, Tracing
from bilevel.oracles import Oracles
from bilevel.types import Metrics, PyTree, Scalar
from bilevel.words import shown

EXTRAS = ("key", "rows", "state", "shared")  # keywords that an objective may ask for
LEVEL = {"inner": 0, "outer": 1}


class Evaluated(NamedTuple):
    """Values of an objective at a point."""

    loss: Scalar
    metrics: Metrics
    state: PyTree  # the model's new state, or None


@dataclass(eq=False)
class Objective:
    """Function of `(x, y)` or `(x, y, batch)` and keywords, always called as `(x, y, batch)`."""

    function: Callable[..., Any]
    level: str
    batch: str = field(init=False)  # "never", "optional" or "required"
    extras: frozenset[str] = field(init=False)  # the EXTRAS it asks for
    needs: frozenset[str] = field(init=False)  # the extras without a default

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(
                f"the {self.level} objective must be a function of (x, y) or (x, y, batch), "
                f"not {type(self.function).__name__}: pass the function itself"
            )
        self.batch, self.extras, self.needs = _signature(self.function, self.level)

    def __call__(self, x: PyTree, y: PyTree, batch: Batch | None = None) -> Scalar:
        return self.evaluate(x, y, batch).loss

    def evaluate(self, x: PyTree, y: PyTree, batch: Batch | None = None) -> Evaluated:
        """Return the loss, the metrics and the new state."""
        data = None if batch is None else getattr(batch, self.level)
        arguments = (x, y) if data is None else (x, y, data)
        out = self.function(*arguments, **self._extras(batch))
        return self._unpacked(out)

    def read_extras(self, batch: Batch | None) -> dict[str, Any]:
        """Return the value in the batch of each of the EXTRAS, or None."""
        batch = Batch() if batch is None else batch
        rows = getattr(batch.rows, self.level)
        return {"key": batch.key, "rows": rows, "state": batch.state, "shared": batch.shared}

    def _extras(self, batch: Batch | None) -> dict[str, Any]:
        if not self.extras:
            return {}
        given = self.read_extras(batch)
        if given["key"] is not None:
            given["key"] = jax.random.fold_in(given["key"], LEVEL[self.level])
        # A new tree for each evaluation: functions may write into it, and equinox.nn.State can be used once.
        given["state"] = jax.tree.map(lambda leaf: leaf, given["state"])
        return {name: given[name] for name in self.extras if name in self.needs or given[name] is not None}

    def _unpacked(self, out: Any) -> Evaluated:
        if self.level == "inner" and "state" in self.extras:
            if not (isinstance(out, tuple) and len(out) == 3 and isinstance(out[1], dict)):
                raise TypeError(
                    "an inner objective that takes `state` must return (loss, metrics, state), with {} for no "
                    f"metrics, but returned {_kind(out)}"
                )
            return Evaluated(*out)
        if not isinstance(out, tuple):
            return Evaluated(out, {}, None)
        if len(out) != 2 or not isinstance(out[1], dict):
            why = ": only an inner objective that takes `state` returns a third part" if len(out) == 3 else ""
            raise TypeError(
                f"the {self.level} objective must return a loss, or (loss, metrics) with a dict of scalars by name, "
                f"but returned {_kind(out)}{why}"
            )
        return Evaluated(*out, None)


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """Minimize `f(x, y*(x))` over x, where `y*(x)` minimizes `g(x, y)` over y.

    Args:
        inner: g, a scalar function of `(x, y)` or `(x, y, batch)`. Certificates assume it strongly convex in
            y; the solvers do not need that.
        outer: f, likewise.
        prox: the proximal map of an additional term h(x, y) that is not smooth in y, such as an L1 penalty or
            a set. It is a function `(x, z, step)` that returns the y that minimizes h(x, y) + ‖y −
            z‖²/(2·step), like the functions of `bl.prox`. y*(x) then minimizes g + h.

    x and y are arbitrary pytrees of floating arrays. A function receives the part of a `bl.Batch` for its
    level as `batch`. It is always an argument, so that data are never compiled in. A function may return
    `(loss, metrics)`, where `metrics` is a dict of scalars for the trace. It may ask by keyword for

    * `key`: a random key, new at every step and for every draw of a step, the same for all evaluations on one
      draw;
    * `rows`: the row numbers of the batch in the data;
    * `state`: the state of a model in addition to y, such as batch-norm statistics. The inner function then
      returns `(loss, metrics, state)`; the outer one only reads it. Several inner steps carry it along.
    """

    inner: Callable[..., Any]
    outer: Callable[..., Any]
    prox: Callable[[PyTree, PyTree, Any], PyTree] | None = None

    @cached_property
    def f(self) -> Objective:
        return Objective(self.outer, "outer")

    @cached_property
    def g(self) -> Objective:
        return Objective(self.inner, "inner")

    def __post_init__(self) -> None:
        _ = self.f, self.g, self.memory  # created now: a function with wrong arguments is an error here
        if self.prox is not None and not callable(self.prox):
            raise TypeError(
                f"prox must be a function (x, z, step) that returns a y, not {shown(self.prox)}: pass e.g. "
                "bl.prox.l1(lambda x: jnp.exp(x))"
            )
        if self.prox is not None and not takes(self.prox, 3):
            raise TypeError(
                f"prox must take (x, z, step) and return the new y, but {shown(self.prox)} does not"
            )

    def __getstate__(self) -> dict[str, Any]:
        derived = {"f", "g", "memory", "oracles"}
        return {name: value for name, value in self.__dict__.items() if name not in derived}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _ = self.f, self.g, self.memory

    @property
    def wants(self) -> frozenset[str]:
        """Return the extras that either objective asks for."""
        return self.f.extras | self.g.extras

    @cached_property
    def memory(self) -> Memory:
        return Memory()

    def kept(self, kind: str, key: Any, reads: Any, make: Callable[[], Any]) -> Any:
        """Return `make()`, kept under `key` until something that the objectives or `reads` read changes."""
        return self.memory.get(kind, key, (self, reads), make)

    def compiled(self, function: Callable[..., Any], *static: Any) -> Callable[..., Any]:
        """Return `function(problem, *static, ...)` compiled, and keep it with the problem."""
        make = lambda: Tracing().jit_alone(partial(function, self, *static))
        return self.kept("compiled", by_identity((function, *static)), (function, static), make)

    @property
    def oracles(self) -> Oracles:
        """Return the derivatives of f and g for solvers; override it to supply others."""
        return Oracles(self.f, self.g)


def _signature(function: Callable[..., Any], level: str) -> tuple[str, frozenset[str], frozenset[str]]:
    """Return how the function takes a batch, the extras it asks for, and the extras it requires."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some C callables have no signature: trust the data
        return "optional", frozenset(), frozenset()
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) > 2 and (third := positional[2].name) in ("key", "state"):
        raise TypeError(
            f"the {level} objective's third argument, its batch, is called `{third}`, which is the keyword for "
            f"something else: write (x, y, *, {third}) to ask for that, or give the batch another name"
        )
    named = [p for p in parameters if p.kind is p.KEYWORD_ONLY] + positional[3:]
    if isinstance(function, partial):  # these are bound already
        named = [p for p in named if p.name not in function.keywords]
    extras = [p for p in named if p.name in EXTRAS and p.kind is not p.POSITIONAL_ONLY]
    unknown = [p for p in named if p not in extras and p.default is p.empty]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if unknown or (len(positional) < 2 and not variadic):
        raise TypeError(
            f"the {level} objective must take (x, y) or (x, y, batch), and may ask for the keywords "
            f"{', '.join(EXTRAS)}, but its signature is {signature}: bind other arguments with functools.partial"
        )
    required = sum(p.default is p.empty for p in positional[:3])
    if variadic:
        batch = "optional" if required <= 2 else "required"
    else:
        batch = "never" if len(positional) == 2 else "required" if required == 3 else "optional"
    names = lambda found: frozenset(p.name for p in found)
    return batch, names(extras), names(p for p in extras if p.default is p.empty)


def _kind(out: Any) -> str:
    if isinstance(out, tuple):
        return f"({', '.join(_kind(part) for part in out)})"
    return f"{out.dtype}{list(out.shape)}" if hasattr(out, "shape") else type(out).__name__
