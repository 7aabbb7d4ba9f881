"""Host driver: it runs a solver and returns the result with a status."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from bilevel.arrays import check_usable
from bilevel.checks import MANY, check_count, check_kind, check_seed
from bilevel.forks import check_fork
from bilevel.loop.hooks.base import Hook, HookLike
from bilevel.loop.options import DEFAULT, RunOptions, with_earlier
from bilevel.loop.policies import Alone
from bilevel.loop.result import Result
from bilevel.loop.scan import Record, check_record, check_untraced
from bilevel.loop.single_run import Request, Start, begun, complete, plan_of, resumed
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
    record: Record | None = None,
    tol: float | None = None,
    progress: bool | str = False,
    hooks: Sequence[HookLike] = (),
    checkpoint: str | Path | None = None,
    resume: Result | str | Path | None = None,
    options: RunOptions = DEFAULT,
    **earlier: Any,
) -> Result:
    """Run `solver` for `steps` steps from (x0, y0), and return the final state and a status.

    Args:
        solver: any solver, for instance `bl.aid(...)`.
        x0: the start of x; leave it out when resuming.
        y0: the start of y; leave it out when resuming.
        steps: the number of steps to take; when resuming, of further steps.
        data: a `Batch` that every step sees whole, a stream such as `bl.epochs(...)`, a pair of Python
            loaders (`bl.loaders(...)`), or any Python iterable of batches.
        seed: the seed of the keys of objectives and random methods; the key of a step is a function of it and
            the step's number.
        model_state: the model's state, such as batch-norm statistics, for objectives that ask for `state`.
        warmup: the number of steps on y only, at x0, before the first step (the paper's initialization
            lemmas). Each takes its own batch, and the run continues in the data where they end.
        record: `(state, info) -> dict of arrays`, or `(state, info, batch)`, compiled: more columns of the
            trace, in addition to its scalars ("outer_value", "hypergradient_norm" and the metrics).
        tol: stop at the first step whose stationarity measure is at most this; short for
            `bl.hooks.Tolerance`.
        progress: True draws a progress bar on a terminal or in a notebook, and elsewhere writes one line per
            minute, short for `bl.hooks.Progress`; "live" shows the run's numbers with their trends, short for
            `bl.hooks.Live`.
        hooks: functions of a `bl.hooks.Event`, called between chunks; see `bl.hooks`.
        checkpoint: a folder to save the run into while it runs; short for `bl.hooks.Checkpoint`.
        resume: the result of an earlier run of the same solver on the same data, or a folder of its
            checkpoints, to continue bit for bit. "auto": continue the run in the checkpoint folder until it
            has taken `steps` steps in total, or begin if there is none. So the same call after a crash gives
            the result of an unbroken run.
        options: rarely used options: `bl.RunOptions(every=, thin=, snapshots=, on_divergence=, prefetch=,
            offload=, mesh=, probe=, diagnose=, save_every=)`.
        **earlier: these options, as keywords of earlier releases; the next release will refuse them.

    Neither hooks nor the length of chunks change a bit of the result (but see `bl.hooks.Hook` for hooks that
    read the Info of a large run). A run that diverges returns the last finite state. Ctrl-C finishes the
    present step or chunk and returns the result so far. A hook, a loader or an objective that raises ends the
    run with `bl.RunError`, which holds the result so far.
    """
    check_fork()
    given = {"solver": solver, "x0": x0, "y0": y0, "data": data, "seed": seed, "model_state": model_state}
    check_untraced("bl.run", given | {"resume": getattr(resume, "run", None)})
    check_kind(options, RunOptions, "options", "a bl.RunOptions", "pass e.g. bl.RunOptions(every=100)")
    options = with_earlier(options, earlier) if earlier else options
    team = _team((options.mesh, x0, y0, data, getattr(resume, "run", None)))
    with team.together():
        steps = check_count(steps, "steps", most=MANY)
        start = _checked_start(solver, x0, y0, resume, warmup, seed, model_state)
        if record is not None:
            check_record(record)
        if options.halves:
            from bilevel.loop.recovery.halving import check_halving

            check_halving(solver, options.snapshots)
        hooks, saver = _all_hooks(hooks, options, tol, progress, checkpoint)
        request = Request(solver, data, record, hooks, options, team)
        if team.several:
            from bilevel.loop.devices.processes import check_request

            check_request(request, steps, start, saver is not None, _kind(resume))
        if saver is not None or isinstance(resume, str | Path):
            from bilevel.loop.checkpoints.disk_runs import run_on_disk

            return run_on_disk(request, saver, resume, start, steps)
        plan = plan_of(request, steps, resume)
        if resume is None:
            plan, state = begun(plan, start)
        else:
            plan, state = resumed(plan, resume)
        return complete(plan, state, start.warmup)


def _team(trees: tuple[Any, ...]) -> Alone:
    if jax.process_count() == 1:
        return Alone()
    from bilevel.loop.devices.processes import team_of

    return team_of(*trees)


def _all_hooks(
    hooks: Any, options: RunOptions, tol: Any, progress: Any, checkpoint: Any
) -> tuple[list[Hook], Any]:
    """Return the hooks with those that arguments are short for; and the one among them that saves."""
    given = options.probe, options.save_every, tol, checkpoint
    shows = progress is not False or options.diagnose or any(each is not None for each in given)
    if not shows and isinstance(hooks, list | tuple) and not hooks:
        return [], None
    from bilevel.loop.hooks.shorthands import hooks_for

    return hooks_for(hooks, options, tol, progress, checkpoint)


def _checked_start(
    solver: Any, x0: Any, y0: Any, resume: Any, warmup: Any, seed: Any, model_state: Any
) -> Start:
    """Return the arguments of a new run. Raise if they do not fit `resume`."""
    check_solver(solver)
    auto = isinstance(resume, str) and resume == "auto"
    if (resume is None or auto) and (x0 is None or y0 is None):
        raise ValueError("a run needs a start: pass x0 and y0, or resume=result of an earlier run")
    if not isinstance(resume, Result | str | Path | None):
        raise TypeError(
            f"resume must be the result of an earlier run, not {type(resume).__name__}: pass what bl.run returned, a "
            'folder of checkpoints, or "auto"'
        )
    start = Start(x0, y0, model_state, check_seed(seed), check_count(warmup, "warmup", least=0))
    if isinstance(resume, Result):
        _check_result(resume)
    given = isinstance(resume, Result) and any(each is not None for each in (x0, y0, model_state))
    if resume is not None and not auto and (given or warmup != 0 or seed != 0):
        raise ValueError(
            "a resumed run starts where the other ended: leave x0, y0, model_state, seed and warmup out"
        )
    if (x0 is None) != (y0 is None):
        raise ValueError("x0 and y0 go together: pass both, or neither")
    return start


def _check_result(resume: Result) -> None:
    from bilevel.loop.checkpoints.trees import Saved

    if isinstance(resume.run.solver, Saved):
        raise ValueError(
            "resume= is a result that bl.load read, which has lost the solver's types: pass the folder it was read from"
        )
    check_usable(resume.run.solver, "the state of resume")  # which another precision may have made


def _kind(resume: Any) -> str:
    """Return the type of `resume`; a folder may have another name in every process."""
    if isinstance(resume, Result):
        return f"a result of {resume.steps} steps"
    return "a folder" if isinstance(resume, Path) or resume not in (None, "auto") else str(resume)
