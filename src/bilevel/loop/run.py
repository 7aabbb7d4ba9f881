"""The host driver: runs a solver and says how it went."""

from collections.abc import Callable, Sequence
from typing import Any

from bilevel.arrays import check_usable
from bilevel.checks import MANY, check_callable, check_choice, check_count, check_flag, check_seed
from bilevel.loop.hooks import Probe, Progress, Tolerance
from bilevel.loop.hooks.base import HookLike, check_hooks
from bilevel.loop.replay import POLICIES
from bilevel.loop.result import Result
from bilevel.loop.scan import Record, check_record
from bilevel.loop.session import Session
from bilevel.loop.untraced import check_untraced
from bilevel.solvers.base import Solver, check_solver
from bilevel.types import PyTree


def run(
    solver: Solver,
    x0: PyTree = None,
    y0: PyTree = None,
    *,
    steps: int,
    data: Any = None,
    seed: int = 0,
    model_state: PyTree = None,
    warmup: int = 0,
    hooks: Sequence[HookLike] = (),
    every: int | None = None,
    probe: Callable[[Any, Any], dict[str, Any] | None] | None = None,
    record: Record | None = None,
    tol: float | None = None,
    progress: bool = False,
    resume: Result | None = None,
    replay: str = "auto",
) -> Result:
    """Runs `solver` for `steps` steps from (x0, y0), and says how it went.

    Args:
        solver: any solver, for instance `bl.aid(...)`.
        x0: where x starts; left out when resuming.
        y0: where y starts; left out when resuming.
        steps: how many steps to take (when resuming: how many more).
        data: a `Batch` seen whole at every step, a stream such as `bl.epochs(...)`, a pair of Python loaders
            (`bl.loaders(...)`), or any Python iterable of batches.
        seed: of the keys that objectives and random methods ask for; that of a step follows from it and its number.
        model_state: what the model carries along besides y (batch norm), for objectives that ask for `state`.
        warmup: steps on y alone at x0 before the first (the paper's initialisation lemmas). Each takes a batch of its
            own, and the run goes on in the data where they end.
        hooks: functions of an [`Event`][bilevel.hooks.Event], called between chunks; see `bl.hooks`.
        every: steps per chunk. Left out, chunks are paced by the clock: about a quarter of a second.
        probe: `(state, info) -> dict of numbers`, called after every chunk; short for `bl.hooks.Probe`.
        record: `(state, info) -> dict of arrays`, or `(state, info, batch)`, to keep of every step, compiled, besides
            the scalars that the trace always has ("outer_value", "hypergradient_norm" and the metrics).
        tol: stop at the first step whose stationarity measure is at most this; short for `bl.hooks.Tolerance`.
        progress: draw a progress bar on a terminal or in a notebook; short for `bl.hooks.Progress`.
        resume: the result of an earlier run of the same solver on the same data, to go on from bit for bit.
        replay: what is kept to go back to when a run breaks: "device" (a second copy of the state), "host" (a copy in
            the host's memory, buffers donated), "off" (nothing, buffers donated), or "auto", by size.

    Neither hooks nor the length of chunks change a bit of the result. A run that diverges returns the last finite
    state; Ctrl-C finishes the step or chunk under way and returns what there is. A hook, a loader or an objective
    that raises ends the run with [`RunError`][bilevel.RunError], which holds the result so far.
    """
    given = {"solver": solver, "x0": x0, "y0": y0, "data": data, "seed": seed, "model_state": model_state}
    check_untraced("bl.run", given | {"resume": getattr(resume, "run", None)})
    _check(solver, x0, y0, resume, warmup, seed, model_state, hooks, replay)
    _check_functions(record, probe, progress)
    steps, warmup = check_count(steps, "steps", most=MANY), check_count(warmup, "warmup", least=0)
    every = None if every is None else check_count(every, "every")
    hooks = [
        *hooks,
        *([Probe(probe)] if probe is not None else []),
        *([Tolerance(tol)] if tol is not None else []),
        *([Progress()] if progress else []),
    ]
    session = Session(solver, record, data, steps, resume, replay, every, hooks)
    if resume is None:
        session.begin(x0, y0, check_seed(seed), model_state)
    return session.go(warmup)


def _check(
    solver: Any,
    x0: Any,
    y0: Any,
    resume: Any,
    warmup: Any,
    seed: Any,
    model_state: Any,
    hooks: Any,
    replay: str,
) -> None:
    check_solver(solver)
    if resume is None and (x0 is None or y0 is None):
        raise ValueError("a run needs a start: pass x0 and y0, or resume=result of an earlier run")
    if resume is not None and not isinstance(resume, Result):
        raise TypeError(
            f"resume must be the result of an earlier run, not {type(resume).__name__}: pass what bl.run returned"
        )
    if resume is not None:
        check_usable(resume.run.solver, "the state of resume")  # which another precision may have made
    check_count(warmup, "warmup", least=0)
    check_seed(seed)
    fresh = x0 is not None or y0 is not None or model_state is not None or warmup != 0 or seed != 0
    if resume is not None and fresh:
        raise ValueError(
            "a resumed run starts where the other ended: leave x0, y0, model_state, seed and warmup out"
        )
    check_hooks(hooks)
    check_choice(replay, "replay", POLICIES)


def _check_functions(record: Any, probe: Any, progress: Any) -> None:
    if record is not None:
        check_record(record)
    if probe is not None:
        check_callable(
            probe, "probe", 2, "a function of (state, info)", 'lambda state, info: {"x": state.x[0]}'
        )
    check_flag(progress, "progress")
