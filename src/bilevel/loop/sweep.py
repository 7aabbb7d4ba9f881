"""Many runs in one compiled program: step sizes, starting points, seeds or data sets side by side."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from bilevel.checks import MANY, check_callable, check_count, check_kind, check_text
from bilevel.forks import check_fork
from bilevel.loop.driver import drive
from bilevel.loop.errors import Failure
from bilevel.loop.hooks.base import Hook, HookLike, as_hooks
from bilevel.loop.hooks.live_view import progress_hooks
from bilevel.loop.hooks.metrics import sign_of
from bilevel.loop.lane_program import lane_program
from bilevel.loop.lane_run import lane_run, lane_status, lanes_first
from bilevel.loop.lanes import Lane, Lanes
from bilevel.loop.plan import Plan, Progress
from bilevel.loop.result import Result
from bilevel.loop.scan import Record, check_record, check_untraced
from bilevel.loop.state import RunState
from bilevel.loop.status import Code, Status, check_status
from bilevel.loop.summary import as_html, as_text, of_sweep
from bilevel.solvers.base import Solver
from bilevel.types import PyTree
from bilevel.words import listed, one_line, shown


@dataclass(frozen=True)
class Sweep:
    """Runs of a sweep, stacked along a first axis of lanes; `sweep[i]` is the `Result` of lane i."""

    lanes: list[Lane]
    solvers: list[Solver] = field(repr=False)  # one per lane
    run: RunState = field(repr=False)
    trace: dict[str, Any] = field(repr=False)  # (lanes, steps, …); NaN after a lane diverged
    steps: np.ndarray  # finite steps of each lane
    status: list[Status] = field(repr=False)
    scores: np.ndarray  # metric of each lane; NaN where it diverged
    best: int | None  # the lane with the best score; None if all diverged
    metric: str
    seconds: float = 0.0

    def check(self) -> "Sweep":
        """Return this sweep, or raise if no run in it ended well.

        Raises:
            RunError: every run diverged. The message is from the first.
            KeyboardInterrupt: Ctrl-C interrupted the sweep.
        """
        codes = [status.code for status in self.status]
        if Code.INTERRUPTED in codes or all(code.exit_status for code in codes):
            at = codes.index(Code.INTERRUPTED) if Code.INTERRUPTED in codes else 0
            check_status(self.status[at], self)
        return self

    @property
    def x(self) -> PyTree:
        return self.run.x

    @property
    def y(self) -> PyTree:
        return self.run.y

    @property
    def state(self) -> Any:
        return self.run.solver

    def __len__(self) -> int:
        return len(self.lanes)

    def __getitem__(self, lane: int) -> Result:
        check_kind(lane, int | np.integer, "lane", "a whole number", "pass e.g. sweep[sweep.best]")
        if not -len(self) <= lane < len(self):  # ends a `for` over the lanes
            raise IndexError(f"there is no lane {shown(lane)}: the sweep has {len(self)}, counted from 0")
        lane = range(len(self))[lane]
        run = jax.tree.map(lambda a: a[lane], self.run)
        taken = int(self.steps[lane])
        trace = jax.tree.map(lambda a: a[lane, :taken], self.trace)
        return Result(run.x, run.y, self.status[lane], taken, trace, {}, run, self.seconds)

    def __repr__(self) -> str:
        bad = sum(status.code is Code.DIVERGED for status in self.status)
        found = (
            "all diverged"
            if self.best is None
            else f"best is lane {self.best}, {one_line(self.metric)}={self.scores[self.best]:.6g}"
        )
        return f"Sweep({len(self)} lanes, {bad} diverged, {found}, {self.seconds:.1f} s)"

    def __str__(self) -> str:
        return as_text(*of_sweep(self))

    def _repr_html_(self) -> str:
        return as_html(*of_sweep(self))


def sweep(
    solvers: Solver | Sequence[Solver],
    x0: PyTree = None,
    y0: PyTree = None,
    *,
    steps: int,
    data: Any = None,
    seeds: int | Sequence[int] = 0,
    starts: Sequence[tuple[PyTree, PyTree]] | None = None,
    combine: str = "product",
    metric: str | Callable[[PyTree, PyTree], Any] = "outer_value",
    mode: str = "min",
    model_state: PyTree = None,
    warmup: int = 0,
    hooks: Sequence[HookLike] = (),
    every: int | None = None,
    record: Record | None = None,
    progress: bool | str = False,
) -> Sweep:
    """Run many lanes at once, for example to choose a step size, a seed or a start.

        solvers = [bl.aid(problem, inner=0.1, adjoint=0.1, outer=beta) for beta in (1e-3, 1e-2, 1e-1, 1.0)]
        found = bl.sweep(solvers, x0, y0, data=data, steps=500)
        found.best, found.scores, found[found.best].x

    All lanes run in one compiled program, vectorized. A lane that diverges stays at its last finite state and
    does not affect the others. Lanes are all combinations of the lists, or with `combine="zip"` their
    corresponding entries.

    Args:
        solvers: one solver, or several that differ only in their numbers (step sizes, penalties; for an optax
            rule, the numbers injected by `optax.inject_hyperparams`).
        x0: the start of x in every lane.
        y0: the start of y in every lane.
        steps: the number of steps of each lane.
        data: as for `bl.run` (but no loader); a list of them; or a function from a seed to a stream, for a
            data order that varies with the seed.
        seeds: for the keys of objectives and random methods: one, or a list.
        starts: pairs (x0, y0), instead of x0 and y0.
        combine: "product" or "zip".
        metric: the measure for the best lane: a column of the trace, read at the last step, or a function of
            (x, y).
        mode: "min" if smaller is better, "max" if larger is.
        model_state: as for `bl.run`.
        warmup: as for `bl.run`.
        hooks: as for `bl.run`. In an event, state and rows have the lanes first, and there is no info and no
            solver.
        every: as for `bl.run`.
        record: as for `bl.run`.
        progress: as for `bl.run`.
    """
    check_fork()
    given = {"solvers": solvers, "x0": x0, "y0": y0, "starts": starts, "data": data, "seeds": seeds}
    check_untraced("bl.sweep", given | {"model_state": model_state})
    steps, warmup = check_count(steps, "steps", most=MANY), check_count(warmup, "warmup", least=0)
    every = None if every is None else check_count(every, "every")
    sign = sign_of(mode)
    called = [*as_hooks(hooks), *progress_hooks(progress)]
    _check_lanes_may_have(called)
    _check_metric_kind(metric)
    if record is not None:
        check_record(record)
    chosen = Lanes.of(solvers, x0, y0, starts, data, seeds, model_state, combine)
    program = lane_program(chosen, record)
    _check_metric(metric, program.row, chosen)
    plan, state, warmed = lane_run(chosen, program, called, steps, warmup, every)
    with plan.interrupts, plan.hooks.closing():
        state = drive(plan, state, program)
        if not state.step:
            _check_begun(state)
        found = _swept(plan, state, chosen, warmed, warmup, metric, sign)
        state = plan.hooks.end(plan, state, found)
    found = replace(found, status=[status.with_note(plan.hooks.notes()) for status in found.status])
    plan.hooks.leave()
    if state.failure is not None:
        raise state.failure.run_error(_said(state.failure), found)
    return found


def _check_begun(state: Progress) -> None:
    """Raise the error that ended the sweep before its first steps, unless a hook did."""
    if state.failure is None and state.status is not None and state.status.code is Code.INTERRUPTED:
        raise KeyboardInterrupt
    if state.failure is None:
        return
    raise state.failure.run_error(_said(state.failure, " before the first steps were done"), None)


def _said(failure: Failure, when: str = "") -> str:
    return f"{type(failure.error).__name__}{when}: {failure.error}"


def _swept(
    plan: Plan, state: Progress, chosen: Lanes, warmed: Any, warmup: int, metric: Any, sign: float
) -> Sweep:
    run, alive, taken = state.run
    trace, alive, taken = lanes_first(plan.log.trace), np.asarray(alive), np.asarray(taken)
    status = lane_status(plan, state, chosen, warmed, warmup)
    scores = _scores(metric, run, trace, alive, taken)
    finite = np.isfinite(scores)
    return Sweep(
        chosen.lanes,
        chosen.solvers,
        run,
        trace,
        taken,
        status,
        scores,
        int(np.argmin(np.where(finite, sign * scores, np.inf))) if finite.any() else None,
        metric if isinstance(metric, str) else getattr(metric, "__name__", "metric"),
        time.perf_counter() - plan.began,
    )


def _check_lanes_may_have(hooks: Sequence[Hook]) -> None:
    for hook in hooks:
        if hook.of_one_run:
            raise TypeError(
                f"bl.hooks.{type(hook.subject).__name__} follows one run and cannot follow the lanes of a sweep: read "
                "the sweep's trace, scores and best afterwards, or write your own hook, whose events have lanes first"
            )


def _check_metric_kind(metric: Any) -> None:
    if callable(metric) and not isinstance(metric, type):
        check_callable(metric, "metric", 2, "a function of (x, y)", "lambda x, y: jnp.sum(y)")
    else:
        check_text(metric, "metric", '"outer_value"')


def _check_metric(metric: Any, row: dict[str, Any], chosen: Lanes) -> None:
    """Raise before any work unless the metric is a column or a function from (x, y) to a number."""
    if callable(metric):
        _, x, y, *_ = chosen.arguments
        axes = chosen.axes[1:3]
        value = jax.eval_shape(jax.vmap(metric, in_axes=axes, axis_size=len(chosen.lanes)), x, y)
        if not isinstance(value, jax.ShapeDtypeStruct) or value.shape != (len(chosen.lanes),):
            raise ValueError("metric must return one number for (x, y): reduce it, e.g. with jnp.sum(...)")
    elif metric not in row:
        raise ValueError(
            f"the trace has no {shown(metric)}: choose from {listed(sorted(row))}, or pass a function of (x, y)"
        )


def _scores(
    metric: Any, run: RunState, trace: dict[str, Any], alive: np.ndarray, taken: np.ndarray
) -> np.ndarray:
    if callable(metric):
        values = np.asarray(jax.vmap(metric)(run.x, run.y), dtype=float)
    elif metric in trace:
        column = np.asarray(trace[metric], dtype=float)
        none = np.full((len(alive), 1), np.nan)  # a hook stopped the sweep before its first step
        values = (column if column.shape[1] else none)[np.arange(len(alive)), np.maximum(taken - 1, 0)]
    else:
        raise ValueError(
            f"the trace has no {shown(metric)}: choose from {listed(sorted(trace))}, or pass a function of (x, y)"
        )
    return np.where(alive, values, np.nan)
