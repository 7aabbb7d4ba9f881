"""Single run: its plan, its start, and its result."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax

from bilevel.arrays import as_arrays
from bilevel.checks import check_batch, signature, variables
from bilevel.loop.chunks import take_chunk
from bilevel.loop.data.sources import source_of
from bilevel.loop.data.streams import FullBatch, Given, Minibatches
from bilevel.loop.driver import drive, fit_of, has_data, judge, shared_failure
from bilevel.loop.errors import RunError
from bilevel.loop.finite import Watch, largest_measure
from bilevel.loop.interrupts import Interrupts
from bilevel.loop.options import RunOptions
from bilevel.loop.outcome import event_of, result_of
from bilevel.loop.plan import Method, Plan, Progress
from bilevel.loop.policies import Alone, NoHooks, OnDevice, Snapshots, Steady
from bilevel.loop.program import LONG_STEPS, SMALL, program_of
from bilevel.loop.result import Result
from bilevel.loop.state import difference, fingerprint
from bilevel.loop.trace import Log
from bilevel.solvers.base import Solver
from bilevel.types import PyTree


@dataclass(frozen=True)
class Request:
    """Checked request of `bl.run`."""

    solver: Solver
    data: Any
    record: Any
    hooks: Sequence[Any]
    options: RunOptions
    team: Alone


class Start(NamedTuple):
    """Arguments with which a new run begins."""

    x0: PyTree
    y0: PyTree
    model_state: PyTree
    seed: Any
    warmup: int


def plan_of(request: Request, steps: int, resume: Result | None) -> Plan:
    """Return the plan of a run of `steps` steps, or of `steps` more after `resume`."""
    began, options, team = time.perf_counter(), request.options, request.team
    place, owed = None, 0
    if resume is not None:
        if resume.thin != options.thin:
            raise ValueError(
                f"the earlier run had thin={resume.thin}, this one has thin={options.thin}: pass the same, so that "
                "their traces can be joined"
            )
        if not options.halves:  # the run would not go back
            resume = replace(resume, recovery=None)
        place = None if resume.recovery is None else resume.recovery.place
    guard = _guard(request, resume)
    if resume is not None and place is not None and place.mark is not None:
        owed = resume.feed.used - place.mark.used
        resume = replace(resume, feed=place.mark)
    source = source_of(request.data, guard.solver, resume)
    if resume is None:
        log = Log(thin=options.thin)
    else:
        log = Log(resume.trace, resume.probes, options.thin, None if place is None else place.rows)
    return Plan(
        solver=request.solver,
        source=source,
        total=steps if resume is None else resume.steps + steps,
        log=log,
        began=began,
        guard=guard,
        event=event_of,
        take=take_chunk,
        judge=judge,
        again=_again,
        # Without hooks: a hook that keeps an event would keep itself.
        request=replace(request, hooks=()) if request.hooks else request,
        every=options.every,
        hooks=_hooks(request, log),
        team=team,
        interrupts=Interrupts(team.several),
        storage=_storage(options),
        place=place,
        owed=owed,
    )


def _guard(request: Request, resume: Result | None) -> Steady:
    if not request.options.halves and (resume is None or not resume.halvings):
        return Steady(request.solver)
    from bilevel.loop.recovery.halving import Halving

    return Halving.of(request.solver, request.options.halves, request.options.every, resume)


def _hooks(request: Request, log: Log) -> NoHooks:
    if not request.hooks and not request.team.several:
        return NoHooks()
    from bilevel.loop.hook_runner import HookRunner

    return HookRunner(request.hooks, request.team.leads, log.probed)


def _storage(options: RunOptions) -> OnDevice:
    if options.offload is None:
        return OnDevice()
    from bilevel.loop.devices.offload import OnHost

    return OnHost()


def _again(plan: Plan, progress: Progress, *steps: Any) -> Any:
    from bilevel.loop.recovery.rollback import again

    return again(plan, progress, *steps)


def begun(plan: Plan, start: Start) -> tuple[Plan, Progress]:
    """Begin at x0 and y0. Raise before any work if something does not fit."""
    x, y = variables(start.x0, start.y0)
    model_state = as_arrays(start.model_state, "model_state")  # for our message instead of one from jit
    plan, (x, y, model_state) = _placed(plan, (x, y, model_state))
    stream = plan.source.first()
    if stream is None:
        raise ValueError("data is a loader without a single batch: give one that is not used up")
    if plan.team.several and (failure := has_data(plan)[1]) is not None:
        raise failure.error
    # For a user's stream, the start sees a batch.
    if isinstance(stream, FullBatch | Minibatches | Given):
        check_batch(plan.solver.problem, stream.data)
    method = plan.method_of(plan.guard.solver)
    run = method.program.start(method.leaves, x, y, stream, start.seed, model_state)
    return plan, Progress(plan.storage.stored(run), 0, method, plan.guard)


def resumed(plan: Plan, resume: Result) -> tuple[Plan, Progress]:
    """Continue after `resume`. Raise unless this solver, problem and data produced it."""
    run = resume.run
    now = fingerprint(plan.solver, run.x, run.y, plan.source.stream, run.model)
    if (found := difference(run.fingerprint, now)) is not None:
        raise ValueError(
            f"resume= is of another run: {found}. To begin a new run from there, pass x0=result.x, y0=result.y"
        )
    plan, _ = _placed(plan, (run.x, run.y, run.model))
    method = plan.method_of(plan.guard.solver)
    if (places := method.program.places) is not None:
        run = places.put(run)
    progress = Progress(run, resume.steps, method, plan.guard, largest=largest_measure(resume.trace))
    return plan.but(borrowed=True), progress


def _placed(plan: Plan, given: tuple[PyTree, ...]) -> tuple[Plan, tuple[PyTree, ...]]:
    """Place x, y and the model state on their devices. Also return the plan with its data and programs."""
    request, source, places = plan.request, plan.source, None
    if request.options.mesh is not None or plan.team.several or _devices((given, source.stream)) > 1:
        from bilevel.loop.devices.state_sharding import place_run

        given, places = place_run(plan, given)
    x, _, model = given  # a meta-learner's y has another shape than y0
    shapes = signature((x, model, source.stream))
    offload = plan.storage.offloads

    def method_of(solver: Solver) -> Method:
        return Method(solver, *program_of(solver, request.record, offload, places, shapes))

    return plan.but(method_of=method_of), given


def _devices(tree: PyTree) -> int:
    arrays = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    return len({device for leaf in arrays for device in leaf.sharding.device_set})


def complete(plan: Plan, progress: Progress, warmup: int = 0) -> Result:
    """Complete the run and return its result. Raise if a hook, a loader or an objective raised."""
    taken = _taken_again(plan)
    fit, progress = fit_of(plan, progress)  # raises before any work if a step does not fit
    if progress.failure is not None:  # only when resuming: a new run has already peeked
        raise _error(plan, progress)
    steps = plan.total - progress.step + warmup
    ahead = plan.source.asked_ahead(steps, plan.request.options.prefetch)
    with plan.interrupts, ahead, plan.hooks.closing():
        plan, progress = _equipped(plan, progress, fit, taken)
        progress = drive(plan, progress, fit, warmup)
        result, well = result_of(plan, progress), progress.failure is None
        plan.log.add_probes(plan.hooks.take_probe_rows())
        progress = plan.hooks.end(plan, progress, result)
        if well and not plan.team.lost:
            progress = shared_failure(plan, progress)
    if progress.failure is not None:
        raise _error(plan, progress)
    status = result.status.with_note(plan.hooks.notes())
    result = replace(result, status=status, diagnosis=plan.hooks.diagnosis)
    plan.hooks.leave()
    return result


def _equipped(plan: Plan, progress: Progress, fit: Any, taken: list[Any]) -> tuple[Plan, Progress]:
    """Choose the policies that depend on the size of a step."""
    size, options, place = fit.bytes if fit is not None else 0, plan.request.options, plan.place
    small = size <= SMALL and not options.halves
    if small and options.snapshots in ("auto", "device"):
        snapshots = Snapshots(plan.storage, roomy=True)
    else:
        from bilevel.loop.recovery.snapshots import snapshots_for

        snapshots = snapshots_for(options.snapshots, size, options.halves, plan.storage, plan.team.first)
    plan = plan.but(
        watch=Watch(plan.solver, plan.storage.fetched(progress.run)),
        snapshots=snapshots,
        long=size > LONG_STEPS,
        keep_info=size <= SMALL or plan.hooks.reads_info,
        place=None,
    )
    if plan.borrowed:  # an earlier result must outlive the run
        progress = progress.but(run=plan.lent(progress.run))
    if place is not None:
        snapshots.adopt(place.run, place.step, taken, progress.run)
    return plan, progress


def _taken_again(plan: Plan) -> list[Any]:
    """Return the batches between the return point and the step at which the run resumes."""
    if plan.place is None:
        return []
    taken, owed = list(plan.place.taken), plan.owed
    while owed and has_data(plan)[0]:
        if (item := plan.source.take()) is not None:
            taken.append(item[1])
        owed -= 1
    return taken


def _error(plan: Plan, progress: Progress) -> RunError:
    result = result_of(plan, progress)
    plan.hooks.leave()
    failure: Any = progress.failure
    return failure.run_error(result.status.message, result if progress.is_whole else None)


def finish_ended(plan: Plan, progress: Progress, result: Result) -> Result:
    """Return a result that needs no more steps, if this is its run. Hooks that have a state see its end."""
    if plan.source.stream is not None:
        fit_of(plan, progress)
    plan.hooks.remember(plan, progress, result)
    result = replace(result, diagnosis=plan.hooks.diagnosis)
    plan.hooks.leave()
    return result
