"""What a run saw: the trace of every step and the probes between chunks, as plain NumPy arrays."""

from typing import Any

import numpy as np


class Log:
    """Collects rows; joined only when asked for, so that a long run stays linear in its length."""

    def __init__(self, trace: dict[str, np.ndarray], probes: dict[str, np.ndarray]):
        self._traces = [trace] if trace else []
        self._probes = [probes] if probes else []

    @classmethod
    def after(cls, result: Any) -> "Log":
        """A log that goes on where `result` ended; an empty one for `None`."""
        return cls({}, {}) if result is None else cls(result.trace, result.probes)

    def add(self, trace: dict[str, np.ndarray]) -> None:
        self._traces.append(trace)

    def add_probe(self, step: int, values: dict[str, Any]) -> None:
        if not isinstance(values, dict):
            raise TypeError(f"probe must return a dict of numbers by name, not {type(values).__name__}")
        self._probes.append(
            {name: np.asarray(value)[None] for name, value in {"step": step, **values}.items()}
        )

    @property
    def trace(self) -> dict[str, np.ndarray]:
        return join(self._traces)

    @property
    def probes(self) -> dict[str, np.ndarray]:
        return join(self._probes)


def join(rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The rows of each name one after the other."""
    if len(rows) == 1:
        return rows[0]
    return {name: np.concatenate([row[name] for row in rows]) for name in (rows[0] if rows else ())}
