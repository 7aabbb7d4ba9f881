"""Hook that stops when a metric no longer improves."""

import math
from typing import Any

import numpy as np

from bilevel.checks import MANY, check_choice, check_count, check_not_negative, check_text
from bilevel.loop.hooks.base import Hook
from bilevel.loop.hooks.event import Event, Stop
from bilevel.words import one_line


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

    of_one_run = True  # not of a sweep
    reads_info = False
    watches_probes = True
    decides = True  # before other hooks see the event
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


def check_metric(metric: str) -> str:
    return check_text(metric, "metric", '"outer_value"')


def sign_of(mode: str) -> float:
    """Return +1 if smaller is better, −1 if larger is."""
    return 1.0 if check_choice(mode, "mode", ("min", "max")) == "min" else -1.0
