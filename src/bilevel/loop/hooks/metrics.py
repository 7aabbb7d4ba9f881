"""Hooks that watch a number: one stops at a small one, one stops without improvement, one keeps the best state."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.checks import MANY, check_choice, check_count, check_not_negative, check_positive, check_text
from bilevel.loop.hooks.base import Hook
from bilevel.loop.hooks.event import Event, Stop
from bilevel.loop.status import Code
from bilevel.types import PyTree
from bilevel.words import one_line


class Tolerance(Hook):
    """Stop at the first step whose stationarity measure is at most `tol`.

    The measure is the norm of the estimated hypergradient, or ‖x − P(x − s·h)‖/s if the outer rule projects
    (`bl.projected`). Both are zero at a solution. It is an estimate, from one batch.

    Args:
        tol: a positive number.
    """

    of_one_run = True
    reads_info = False
    decides = True

    def __init__(self, tol: float):
        check_positive(tol, "tolerance tol", traced=False)
        self.tol: float = float(tol)
        self.asks: str | None = repr(self.tol)

    def __call__(self, event: Event) -> Stop | None:
        constrained = "stationarity" in event.trace
        measure = event.trace["stationarity" if constrained else "hypergradient_norm"]
        steps = event.first + np.arange(len(measure))
        # An estimate of exactly zero before v or y has moved has no meaning.
        small = np.flatnonzero((measure <= self.tol) & ~((measure == 0) & (steps < 2)))
        if not len(small):
            return None
        step = event.first + int(small[0]) + 1
        what = "the projected step's length" if constrained else "the estimated hypergradient's norm"
        return Stop(
            f"{what} {float(measure[small[0]]):.3g} is at most tol={self.tol:g} at step {step}; "
            "it is the method's own estimate: if that has a bias (ITD, DARTS and others), check it with bl.advise.",
            Code.CONVERGED,
            step,
        )


class EarlyStopping(Hook):
    """Stop at the first step at which the metric has not improved for `patience` steps.

    A probe measures its metric only between chunks; `every=` sets how often. `patience` still counts steps.

    Args:
        metric: a column of the trace, such as "outer_value" or "outer/accuracy", or a name that a probe
            returns.
        patience: the number of steps without improvement to wait for.
        mode: "min" if smaller is better, "max" if larger is.
        least: an improvement smaller than this does not count.

    A resumed run continues to count with the same hook object or from a checkpoint, else it starts from 0.
    """

    of_one_run = True
    reads_info = False
    watches_probes = True
    decides = True
    metric: str
    patience: int
    sign: float
    least: float
    best: float
    best_step: int

    def __init__(self, metric: str = "outer_value", *, patience: int, mode: str = "min", least: float = 0.0):
        self.metric, self.patience = check_metric(metric), check_count(patience, "patience", most=MANY)
        check_not_negative(least, "improvement `least`", traced=False)
        self.sign, self.least = sign_of(mode), float(least)
        self.best, self.best_step = math.inf, 0
        self.asks: str | None = f"{self.metric}, {self.patience}, {self.sign}, {self.least!r}"

    def get_state(self) -> dict[str, Any]:
        return {"best": float(self.best), "best_step": self.best_step}

    def set_state(self, state: dict[str, Any]) -> None:
        self.best, self.best_step = state["best"], state["best_step"]

    def begin(self, event: Event) -> None:
        if event.step == 0 or event.step < self.best_step or math.isinf(self.best):
            self.best, self.best_step = math.inf, event.step

    def __call__(self, event: Event) -> Stop | None:
        if event.first < self.best_step:  # the run returned to before the best step
            self.best, self.best_step = math.inf, event.first
        values = self.sign * np.asarray(event.column(self.metric), float)
        for step, value in zip(event.steps_of(self.metric).tolist(), values, strict=True):
            if value < self.best - self.least:
                self.best, self.best_step = value, step
            elif step - self.best_step >= self.patience:
                return Stop(
                    f"{one_line(self.metric)} has not improved on {self.sign * self.best:.6g}, reached at step "
                    f"{self.best_step}, for {self.patience} steps; bl.hooks.Best with every= keeps the best state of "
                    "those it sees.",
                    step=step,
                )
        return None


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

    of_one_run = True
    reads_info = False
    metric: str
    value: float
    step: int
    state: Any
    model_state: PyTree

    def __init__(self, metric: str = "outer_value", *, mode: str = "min"):
        self.metric, self._sign = check_metric(metric), sign_of(mode)
        self._keep(math.nan, 0, None, None)

    def _keep(self, value: float, step: int, state: Any, model_state: PyTree) -> None:
        self.value, self.step, self.state, self.model_state = value, step, state, model_state

    def get_state(self) -> dict[str, Any]:
        return {"value": self.value, "step": self.step, "state": self.state, "model_state": self.model_state}

    def set_state(self, state: dict[str, Any]) -> None:
        self._keep(**state)

    def begin(self, event: Event) -> None:
        if event.step == 0:  # a new run
            self._keep(math.nan, 0, None, None)
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
            self._keep(value, event.step, copy(event.state), copy(event.model_state))

    @property
    def x(self) -> PyTree:
        return None if self.state is None else self.state.x

    @property
    def y(self) -> PyTree:
        return None if self.state is None else self.state.y


def check_metric(metric: str) -> str:
    return check_text(metric, "metric", '"outer_value"')


def sign_of(mode: str) -> float:
    """Return +1 if smaller is better, −1 if larger is."""
    return 1.0 if check_choice(mode, "mode", ("min", "max")) == "min" else -1.0
