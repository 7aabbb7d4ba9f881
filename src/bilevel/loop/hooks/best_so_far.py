"""Hook that keeps the best state of a run."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from bilevel.loop.hooks.base import Hook
from bilevel.loop.hooks.early_stopping import check_metric, sign_of
from bilevel.loop.hooks.event import Event
from bilevel.types import PyTree


class Best(Hook):
    """Keep the state with the best value of a metric in `.x`, `.y`, `.value`, `.step`, `.model_state`.

        best = bl.hooks.Best("outer/accuracy", mode="max")
        bl.run(solver, x0, y0, steps=10_000, hooks=[best], options=bl.RunOptions(every=100))

    The host sees the state only between chunks; `every=` sets how often. A value from the trace belongs to
    the step that led to the state. A value from a probe belongs to the state itself.

    Args:
        metric: a column of the trace, such as "outer_value" or "outer/accuracy", or a name that a probe
            returns.
        mode: "min" if smaller is better, "max" if larger is.
    """

    of_one_run = True  # not of a sweep
    reads_info = False
    metric: str
    value: float
    step: int
    state: Any

    def __init__(self, metric: str = "outer_value", *, mode: str = "min"):
        self.metric, self._sign = check_metric(metric), sign_of(mode)
        self.value, self.step, self.state = math.nan, 0, None
        self.model_state: PyTree = None

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"value": self.value, "step": self.step, "state": self.state, "model_state": self.model_state}

    def set_state(self, state: dict[str, Any]) -> None:
        self.value, self.step = state["value"], state["step"]
        self.state, self.model_state = state["state"], state["model_state"]

    def begin(self, event: Event) -> None:
        if event.step == 0:  # a new run
            self.value, self.step, self.state, self.model_state = math.nan, 0, None, None
        if self.state is not None:  # a checkpoint does not restore types
            retyped: Any = lambda tree, like: jax.tree.unflatten(
                jax.tree.structure(like), map(jnp.asarray, jax.tree.leaves(tree))
            )
            self.state = retyped(self.state, event.state)
            self.model_state = retyped(self.model_state, event.model_state)

    def __call__(self, event: Event) -> None:
        value = event.last(self.metric)
        if math.isfinite(value) and not self._sign * value >= self._sign * self.value:
            copy: Any = lambda tree: jax.tree.map(jnp.copy, tree)  # the run may donate its buffers
            self.value, self.step = value, event.step
            self.state, self.model_state = copy(event.state), copy(event.model_state)

    @property
    def x(self) -> PyTree:
        return None if self.state is None else self.state.x

    @property
    def y(self) -> PyTree:
        return None if self.state is None else self.state.y
