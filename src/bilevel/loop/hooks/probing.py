"""Calls a function of the user's between chunks, and keeps what it returns."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bilevel.checks import check_callable
from bilevel.loop.hooks.base import Event


class Probe:
    """`probe(state, info)` after every chunk; the numbers it returns, a dict or nothing, go to `result.probes`.

    Args:
        probe: `(state, info) -> dict of numbers, or None`.
    """

    of_one_run = True  # not of a sweep

    def __init__(self, probe: Callable[[Any, Any], dict[str, Any] | None]):
        check_callable(
            probe, "probe", 2, "a function of (state, info)", 'lambda state, info: {"x": float(state.x[0])}'
        )
        self.probe = probe
        self.rows: list[tuple[int, dict[str, Any]]] = []

    def __call__(self, event: Event) -> None:
        values = self.probe(event.state, event.info)
        if values is None:
            return
        if not isinstance(values, dict):
            raise TypeError(
                f"probe must return a dict of numbers by name, or nothing, not {type(values).__name__}"
            )
        if "step" in values:
            raise ValueError('a probe\'s "step" is the step it was called at: choose another name')
        # As they are now: what they refer to may be donated to the next chunk.
        self.rows.append((event.step, {name: _own(value) for name, value in values.items()}))

    def forget(self, step: int) -> None:
        """What it was told of the steps after this one, from which the run went back."""
        self.rows = [row for row in self.rows if row[0] <= step]


def _own(value: Any) -> Any:
    return np.array(value) if isinstance(value, jax.Array | np.ndarray) else value
