"""Evaluate: a hook that runs a compiled function over a whole data set, now and then."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bilevel.callables import asks_for, check_callable, takes
from bilevel.checks import MANY, check_count, check_text
from bilevel.identity import described
from bilevel.loop.columns import is_real
from bilevel.loop.data.parts import Part, parts_of, rows_of
from bilevel.loop.hooks.base import Hook
from bilevel.loop.hooks.event import Event
from bilevel.loop.hooks.probe import Measurement, check_no_step
from bilevel.memory import Memory, Tracing
from bilevel.types import PyTree
from bilevel.words import described as described_tree, shapes, shown

EXTRAS = ("v", "state", "key", "rows")  # keywords that the function may ask for


class Evaluate(Measurement):
    """Run a function over a whole data set every so many steps, compiled, and keep the means of its numbers.

        def scores(x, y, batch):
            images, labels = batch
            return {"accuracy": jnp.mean(jnp.argmax(network(y, images), axis=1) == labels)}

        valid = bl.hooks.Evaluate(scores, (images, labels), every=100, size=256)
        best = bl.hooks.Best("accuracy", mode="max")
        result = bl.run(solver, x0, y0, data=data, steps=10_000, hooks=[valid, best])
        result.probes["step"], result.probes["accuracy"]

    Hooks watch the numbers by their names, as for `bl.hooks.Probe`. The function sees the state after the
    step. Each number is the mean over the batches, weighted by their rows. This is exact for means over rows,
    also if the last batch is smaller. Other numbers, such as a largest error, need all rows at once: leave
    out `size`.

    A run evaluates at the multiples of `every` and nowhere else. So a run that is cut and resumed evaluates
    at the same steps as an unbroken one. Evaluations change no bit of x and y.

    Args:
        function: `(x, y, batch)`, or `(x, y)` without data. It returns a dict of scalars; or, as an objective
            does, a loss or `(loss, metrics)`. It may ask by keyword for `v`; for `state`, the model's state;
            for `key`, a random key, another for every batch and the same in every evaluation; and for `rows`,
            the row numbers of the batch in the data.
        data: arrays with one row per example, in tuples, dicts or a `bl.Batch`. Or a loader: a list of
            batches, a torch `DataLoader`, or any object that can be iterated again. Every evaluation reads
            all of it.
        every: the number of steps between two evaluations. Chunks end there.
        size: rows per batch of arrays. By default, one batch has all rows.
        name: a prefix of the names, such as "valid" for "valid/accuracy".
    """

    reads_info: bool = False

    def __init__(
        self,
        function: Callable[..., Any],
        data: Any = None,
        *,
        every: int,
        size: int | None = None,
        name: str | None = None,
    ):
        super().__init__()
        self.function: Callable[..., Any] = function
        self._asked = [extra for extra in EXTRAS if callable(function) and asks_for(function, extra)]
        self._count, takes_what = (
            (2, "(x, y), as there are no data") if data is None else (3, "(x, y, batch)")
        )
        what = f"a function of {takes_what}, which may ask for the keywords {', '.join(EXTRAS)}"
        example = 'lambda x, y, batch: {"loss": loss(x, y, batch)}'
        check_callable(function, "function", self._count, what, example, tuple(self._asked))
        self.stride: int | None = check_count(every, "every", most=MANY)
        self._prefix = "" if name is None else check_text(name, "name", '"valid"') + "/"
        self._parts = parts_of(data, size).parts
        self._memory = Memory()  # of compiled programs
        self.asks: str | None = f"{described(function)}, {every}, {size}, {name}"

    def decider(self, watched: bool) -> Hook | None:
        return self if watched else None

    def begin(self, event: Event) -> None:
        """Raise before any work if the function does not fit the run and the data."""
        super().begin(event)
        self._check_keywords(event)
        part = next(self._parts(), None)
        if part is None:
            raise ValueError(
                "the data of bl.hooks.Evaluate is a loader without a batch: give one that is not empty"
            )
        try:
            self.names: frozenset[str] = frozenset(
                jax.eval_shape(self._program(part), self._seen(event), part.data, part.start)
            )
        except Exception as error:
            on = "" if part.data is None else f", on data of {described_tree(part.data)}"
            error.add_note(
                f"Raised in bl.hooks.Evaluate at x of {shapes(event.x)} and y of {shapes(event.y)}{on}."
            )
            raise

    def measure(self, event: Event) -> dict[str, Any] | None:
        if clash := sorted(self.names & event.trace.keys()):
            raise ValueError(
                f"bl.hooks.Evaluate measures {shown(clash[0])}, which is also a column of the trace: pass name= to it, "
                'such as name="valid"'
            )
        if self.stride is None or event.step % self.stride:
            return None
        seen, parts = self._seen(event), list[tuple[dict[str, Any], int]]()
        for part in self._parts():
            numbers = self._program(part)(seen, part.data, part.start)
            if parts:  # otherwise all batches of a loader would wait on the device
                jax.block_until_ready(parts[-1][0])
            parts.append((numbers, part.rows))
        found, rows = zip(*jax.device_get(parts), strict=True)
        return {name: np.average([float(each[name]) for each in found], weights=rows) for name in found[0]}

    def _seen(self, event: Event) -> dict[str, PyTree]:
        """Return x, y, and v and the model's state if the function asks for them and they exist."""
        has_v = "v" in event.solver.variables
        extras = {"v": event.state.v if has_v else None, "state": event.model_state}
        given = {name: value for name, value in extras.items() if name in self._asked and value is not None}
        return {"x": event.x, "y": event.y} | given

    def _check_keywords(self, event: Event) -> None:
        """Raise if the function needs v or the model's state, and the run has none."""
        why = {
            "v": f"{event.name} has none: leave it out, or take a method that keeps v, such as bl.aid",
            "state": "the run has none: pass model_state=... to bl.run",
        }
        for name in [name for name in why if name in self._asked and name not in self._seen(event)]:
            others = [extra for extra in self._asked if extra != name]
            if not takes(self.function, self._count, *others):
                raise ValueError(f"the function of bl.hooks.Evaluate asks for `{name}`, but {why[name]}")

    def _program(self, part: Part) -> Callable[..., dict[str, Any]]:
        """Return the compiled program of a part. It is traced again if the function reads other things."""
        settings = self.function, self._asked, self._prefix, part.size
        make = lambda: Tracing().jit_alone(partial(_numbers, *settings))
        return self._memory.get("compiled", part.size, self.function, make)


def _numbers(
    function: Callable[..., Any],
    asked: list[str],
    prefix: str,
    size: int | None,
    seen: dict[str, PyTree],
    data: PyTree,
    start: Any,
) -> dict[str, Any]:
    """Return the numbers of one batch: all of the data, or `size` rows from `start`."""
    batch = data if size is None else jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, start, size), data)
    x, y, extras = seen["x"], seen["y"], {name: seen[name] for name in ("v", "state") if name in seen}
    if "key" in asked:
        extras["key"] = jax.random.fold_in(jax.random.key(0), start)
    if "rows" in asked:
        extras["rows"] = start + jnp.arange(rows_of(batch, "data"), dtype=jnp.int32)
    found = function(x, y, **extras) if data is None else function(x, y, batch, **extras)
    numbers = _named(found)
    for name, number in numbers.items():
        if not (isinstance(name, str) and _is_number(number)):
            what = described_tree(number) if isinstance(number, jax.Array) else shown(number)
            raise TypeError(
                f"the function of bl.hooks.Evaluate must return real scalars by name, but {shown(name)} is {what}: "
                "reduce it, e.g. with jnp.mean(...)"
            )
    prefixed = {f"{prefix}{name}": jnp.asarray(number) for name, number in numbers.items()}
    check_no_step(prefixed)
    return prefixed


def _named(found: Any) -> dict[Any, Any]:
    """Return numbers by name: a dict as it is, and the loss and the metrics of an objective as one dict."""
    if isinstance(found, dict) and found:
        return found
    has_metrics = isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)
    loss, metrics = found if has_metrics else (found, {})
    if "loss" in metrics:
        raise ValueError(
            'the function of bl.hooks.Evaluate returned a loss, and a metric called "loss" too: return one dict of '
            "numbers"
        )
    return {"loss": loss} | metrics


def _is_number(value: Any) -> bool:
    arrays = jax.Array | np.ndarray | np.generic
    return (
        isinstance(value, arrays | bool | int | float)
        and jnp.ndim(value) == 0
        and is_real(jnp.result_type(value))
    )
