"""The host driver: runs a solver and says how it went."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import jax

from bilevel.arrays import check_usable
from bilevel.checks import MANY, check_count, check_seed
from bilevel.forks import check_fork
from bilevel.loop.hooks.base import Hook, HookLike
from bilevel.loop.options import RunOptions
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
    hooks: Sequence[HookLike] = (),
    every: int | None = None,
    probe: Callable[..., dict[str, Any] | None] | None = None,
    record: Record | None = None,
    tol: float | None = None,
    progress: bool | str = False,
    diagnose: bool = False,
    resume: Result | str | Path | None = None,
    checkpoint: str | Path | None = None,
    save_every: int | timedelta | None = None,
    replay: str = "auto",
    thin: int | None = None,
    on_divergence: str = "stop",
    prefetch: int | None = None,
    offload: str | None = None,
    mesh: Any = None,
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
        warmup: steps on y alone at x0 before the first (the paper's initialization lemmas). Each takes a batch of its
            own, and the run goes on in the data where they end.
        hooks: functions of an `bl.hooks.Event`, called between chunks; see `bl.hooks`.
        every: chunks end at the multiples of this number of steps. Left out, they are paced by the clock: about a
            quarter of a second.
        probe: `(state, info) -> dict of numbers`, called after every chunk, with `model_state=` too if it has a
            parameter of that name; short for `bl.hooks.Probe`. Hooks can watch its numbers: `bl.hooks.Best("name")`.
        record: `(state, info) -> dict of arrays`, or `(state, info, batch)`, to keep of every step, compiled, besides
            the scalars that the trace always has ("outer_value", "hypergradient_norm" and the metrics).
        tol: stop at the first step whose stationarity measure is at most this; short for `bl.hooks.Tolerance`.
        progress: True draws a progress bar on a terminal or in a notebook, short for `bl.hooks.Progress`; "live" shows
            the run's numbers with their trends and how it stands, short for `bl.hooks.Live`.
        diagnose: look at the run a few times along the way, at a few per cent of its cost, and say in
            `result.diagnosis` whether a step size, the adjoint or y's lag stands out; short for `bl.hooks.Diagnose`.
        resume: the result of an earlier run of the same solver on the same data, or a folder of its checkpoints, to go
            on from bit for bit. "auto": if there is a run in the checkpoint folder, go on with it until `steps` steps
            are taken in all; if there is none, begin. So the same call, made again after a crash, ends as if nothing
            had happened.
        checkpoint: a folder to save the run into while it goes on; short for `bl.hooks.Checkpoint`.
        save_every: how often, as a number of steps or a `datetime.timedelta`; left out, about once a minute.
        replay: what is kept to go back to when a run breaks: "device" (a second copy of the state), "host" (a copy in
            the host's memory, buffers donated), "off" (nothing, buffers donated), or "auto", by size.
        thin: keep of the trace the rows of steps 0, thin, 2·thin, … and the last alone, for very long runs; its column
            "step" says which. Hooks still see every row.
        on_divergence: "stop" with the last finite state; or "halve": go back to where the run was good and on with
            half the step sizes, at most ten times, as `result.halvings` tells. With `every`, a resumed run goes back to
            where an unbroken one would.
        prefetch: how many steps' batches to ask a loader for ahead, in a thread of its own. Left out: two, from the
            moment that it takes a millisecond over one; 0: none, for loaders that must stay in the caller's thread.
        offload: "outer": the memory of the outer rule rests on the host and comes over for its update alone, for an x
            that is the large part.
        mesh: devices to run on, as a `jax.sharding.Mesh`: the rows of the data are split over its first axis, arrays of
            x with a row for each of these likewise, all else lies on every device; or what
            `bl.sharded` says. Left out, x0, y0 and data that lie on several devices stay there.

    Neither hooks nor the length of chunks change a bit of the result (but see `bl.hooks.Hook` for hooks that read the
    Info of a large run). A run that diverges returns the last finite
    state; Ctrl-C finishes the step or chunk under way and returns what there is. A hook, a loader or an objective
    that raises ends the run with `bl.RunError`, which holds the result so far.
    """
    check_fork()
    given = {"solver": solver, "x0": x0, "y0": y0, "data": data, "seed": seed, "model_state": model_state}
    check_untraced("bl.run", given | {"resume": getattr(resume, "run", None)})
    options = RunOptions(
        every, thin, replay, on_divergence, prefetch, offload, mesh, probe, diagnose, save_every
    )
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
            from bilevel.loop.devices.agreement import check_request

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
    """Return the processes on whose devices arrays or meshes are."""
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
    """Return what a new run begins with; raise if it does not fit `resume`."""
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
    """Return what the run continues; a folder may have another name in every process."""
    if isinstance(resume, Result):
        return f"a result of {resume.steps} steps"
    return "a folder" if isinstance(resume, Path) or resume not in (None, "auto") else str(resume)
