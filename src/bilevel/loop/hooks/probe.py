"""Hooks that measure: they keep numbers from between chunks. A probe gets them from a user's function."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from bilevel.callables import asks_for
from bilevel.checks import check_callable
from bilevel.loop.hooks.base import FunctionHook, Hook
from bilevel.loop.hooks.event import Event
from bilevel.loop.trace import STEP


class Measurement(Hook):
    """Hook that measures numbers between chunks, for `result.probes` and for other hooks."""

    of_one_run: bool = True  # not of a sweep
    measures: bool = True

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, Any]]] = []
        self.names: frozenset[str] = frozenset()

    def begin(self, event: Event) -> None:
        self.rows = []
        self.names = frozenset()

    @abstractmethod
    def measure(self, event: Event) -> dict[str, Any] | None:
        """Return numbers by name, or None for none at this step."""

    def __call__(self, event: Event) -> None:
        if (values := self.measure(event)) is not None:
            self.rows.append((event.step, values))
            self.names = self.names.union(values)

    def values(self, step: int) -> dict[str, Any]:
        """Return the latest values if they are from this step, else {}."""
        return self.rows[-1][1] if self.rows and self.rows[-1][0] == step else {}

    def take_rows(self) -> list[tuple[int, dict[str, Any]]]:
        rows, self.rows = self.rows, []
        return rows

    def forget(self, step: int) -> None:
        """Drop the values after this step, to which the run returned."""
        self.rows = [row for row in self.rows if row[0] <= step]


class Probe(Measurement):
    """Call `probe(state, info)` after every chunk and keep the numbers that it returns in `result.probes`.

        def accuracy(state, info, *, model_state):  # or without the keyword, for a model that has no state
            return {"accuracy": float(score(state.y, model_state))}

    Hooks can watch these numbers, such as `bl.hooks.Best("accuracy", mode="max")`. If the run returns to an
    earlier step, the values after that step are dropped.

    Args:
        probe: `(state, info) -> dict of numbers, or None`. A function with a parameter `model_state` also
            gets the model's state.
    """

    def __init__(self, probe: Callable[..., dict[str, Any] | None]):
        super().__init__()
        self.probe: Callable[..., dict[str, Any] | None] = check_probe(probe)
        self._keywords: tuple[str, ...] = _keywords(probe)

    def measure(self, event: Event) -> dict[str, Any] | None:
        keywords = {name: getattr(event, name) for name in self._keywords}
        values = self.probe(event.state, event.info, **keywords)
        if values is None:
            return None
        if not isinstance(values, dict):
            raise TypeError(
                f"probe must return a dict of numbers by name, or nothing, not {type(values).__name__}"
            )
        check_no_step(values)
        # Copies: the next chunk may donate these arrays.
        return {name: _own(value) for name, value in values.items()}

    def decider(self, watched: bool) -> Hook | None:
        return FunctionHook(self.probe) if watched else None


def check_no_step(values: Iterable[Any]) -> None:
    """Raise if a number is called "step", as the column of the steps is."""
    if STEP in values:
        raise ValueError('a probe\'s "step" is the step it was called at: choose another name')


def check_probe(probe: Any) -> Any:
    """Return the probe; raise if it is no function of (state, info)."""
    if isinstance(probe, type):
        raise TypeError(
            f"probe must be a function of (state, info), not the class {probe.__name__}: pass a function"
        )
    return check_callable(
        probe,
        "probe",
        2,
        "a function of (state, info), which may have a keyword model_state",
        'lambda state, info: {"x": float(state.x[0])}',
        _keywords(probe),
    )


def _keywords(probe: Any) -> tuple[str, ...]:
    return ("model_state",) if callable(probe) and asks_for(probe, "model_state") else ()


def _own(value: Any) -> Any:
    return np.array(value) if isinstance(value, jax.Array | np.ndarray) else value
