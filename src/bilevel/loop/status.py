"""Status of a finished run: a code for programs, and a sentence with the next thing to do for people."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from bilevel.loop.errors import RunError
from bilevel.solvers.base import Solver
from bilevel.words import printable


class Code(StrEnum):
    """Ways in which a run can end."""

    COMPLETED = "completed"  # took all its steps
    CONVERGED = "converged"  # the stationarity measure fell below the tolerance
    STOPPED = "stopped"  # a hook asked for it
    DIVERGED = "diverged"  # something became infinite or NaN
    INTERRUPTED = "interrupted"  # Ctrl-C
    EXHAUSTED = "exhausted"  # the loader had no more batches
    FAILED = "failed"  # a hook, a loader or an objective raised; on the result of a RunError

    @property
    def exit_status(self) -> int:
        """Return the exit status for a script: 0 if the run ended well, 130 after Ctrl-C, else 1.

        Use it as `sys.exit(result.status.code.exit_status)`.
        """
        return {Code.INTERRUPTED: 130, Code.DIVERGED: 1, Code.FAILED: 1}.get(self, 0)


@dataclass(frozen=True)
class Status:
    """Code, and a sentence with the reason and the next thing to do.

    If the run diverged, `variable` is the first part that broke, and `step` the number of good steps. In
    other runs they are the first metric that was not finite, if there is one, and its step.
    """

    code: Code
    message: str
    variable: str | None = None
    step: int | None = None

    def with_note(self, note: str) -> "Status":
        """Return the status with a note after its message."""
        return replace(self, message=self.message + note) if note else self

    def with_suspect(self, metric: str, step: int) -> "Status":
        """Return the status with a note on a metric that was not finite. An earlier `variable` stays."""
        status = self.with_note(f" The metric {metric!r} was not finite at step {step}.")
        return status if self.variable else replace(status, variable=metric, step=step)

    def __str__(self) -> str:
        return printable(f"{self.code}: {self.message}")


class Cause(NamedTuple):
    """Cause of a divergence: a sentence with the remedy ("" if unknown), and the levels that it is about."""

    sentence: str = ""
    levels: tuple[str, ...] = ()
    curable: bool = True  # whether smaller steps may help
    shrink: str = "all"  # step sizes to shrink: "lower" levels, "outer", "mostly outer", or "all"
    variable: str | None = None  # the variable that the cause is about, if known


def check_status(status: Status, result: Any) -> None:
    """Raise `RunError`, or `KeyboardInterrupt` after Ctrl-C, if a run did not end well."""
    if status.code is Code.INTERRUPTED:
        raise KeyboardInterrupt(str(status))
    if status.code.exit_status:
        raise RunError(str(status), result)


LEVELS = {
    "x": "outer",
    "y": "inner",
    "v": "adjoint",
    "z": "inner",
    "theta": "auxiliary",
}  # the level whose rule moves the variable


def completed(steps: int, converged: bool = False) -> Status:
    """Return the status after the last step. With `converged`, omit the advice to check the trace."""
    check = " Check `result.trace` for convergence; to continue, pass `resume=result`."
    return Status(Code.COMPLETED, f"Ran {_all(steps)}.{'' if converged else check}")


def _all(steps: int) -> str:
    return "its one step" if steps == 1 else f"all {steps:,} steps"


def _number(steps: int) -> str:
    return f"{steps:,} step{'s' * (steps != 1)}"


def diverged(
    solver: Solver,
    step: int,
    broken: list[str],
    *,
    warmup: bool = False,
    data: str | None = None,
    kept: bool = True,
    loss_first: bool = False,
    because: Sequence[str] = (),
    suspicion: str = "",
    culprit: str | None = None,
    how: str = "became infinite or NaN",
) -> Status:
    """Return the status of a run that diverged, with the cause and a remedy.

    Args:
        solver: the run's solver.
        step: the number of good steps.
        broken: variables of the state, or "outer_value", or "memory of the … rule".
        because: the variables that caused it.
        suspicion: a measured cause with its remedy; `culprit` is its variable.
    """
    when = f"at {'warm-up ' if warmup else ''}step {step}"
    value = "the outer objective's value"
    what = value if broken == ["outer_value"] else " and ".join(broken)
    happened = f"{what} {how} {when}"
    if loss_first and broken != ["outer_value"]:
        happened = f"{value} became infinite or NaN {when}, with {what} about to follow"
    state = (
        "the state from before the warm-up is returned"
        if kept and warmup
        else f"the last finite state, after {step} steps, is returned"
        if kept
        else 'no earlier state was kept (snapshots="off"), so the one returned is not finite'
    )
    remedy = suspicion or _remedy(solver, list(because) or _with_earlier(broken), warmup)
    if data:
        remedy = f"{data}: clean the data."
    return Status(Code.DIVERGED, f"{happened}; {state}: {remedy}", culprit or broken[0], step)


def _with_earlier(broken: list[str]) -> list[str]:
    """Return variables that overflowed together with y, which moves v and through it x."""
    return ["y", *broken] if "v" in broken and "y" not in broken else broken


def _remedy(solver: Solver, broken: list[str], warmup: bool) -> str:
    if broken == ["outer_value"]:
        return (
            "the variables themselves are finite, so look at f there (a logarithm or a quotient at the edge of its "
            "domain?), or keep x and y away from such points."
        )
    if broken[0].startswith("memory"):
        level = broken[0].split()[-2]
        return (
            f"gradients too large for the optimizer's memory: scale that level's loss down, clip its gradients "
            f"(optax.clip_by_global_norm), or lower the {level} step size."
        )
    if broken == ["model state"]:
        return "look at what the inner objective returns as `state`, and at the scale of what goes through the model."
    levels = dict.fromkeys(LEVELS.get(name, "inner") for name in broken)
    if warmup:
        levels = {level: None for level in levels if level != "outer"}
    given = [level for level in levels if solver.part(level) is not None]
    if given:
        return f"lower the {' or '.join(given)} step size, or let bl.advise propose one, or try several with bl.sweep."
    return (
        f"{solver.name} has no step size there to lower: scale the losses, bound x (bl.projected with another method), "
        "or take a method whose step sizes can be chosen, such as bl.aid with bl.advise."
    )


def interrupted(step: int) -> Status:
    return Status(
        Code.INTERRUPTED,
        f"Interrupted by the user (Ctrl-C) after {_number(step)}. To continue, pass `resume=result`.",
    )


def under_way(step: int, steps: int) -> Status:
    return Status(
        Code.INTERRUPTED,
        f"Saved after {step:,} of {steps:,} steps, while the run was under way. To continue, pass `resume=result`.",
    )


def interrupted_in_warm_up(step: int, steps: int) -> Status:
    return Status(
        Code.INTERRUPTED,
        f"Interrupted by the user (Ctrl-C) after {step:,} of {steps:,} warm-up steps. `resume=result` continues "
        "without the rest of them.",
    )


def exhausted(step: int, steps: int) -> Status:
    return Status(
        Code.EXHAUSTED,
        f"The loader ended after {step:,} of {steps:,} steps. Pass one that repeats, such as bl.epochs(...) for arrays "
        "in memory or bl.loaders(inner=..., outer=...), which restarts each loader when it ends.",
    )


def failed(step: int, what: str, error: BaseException) -> Status:
    return Status(
        Code.FAILED,
        f"{what} raised {type(error).__name__} ({error}) after {_number(step)}. Fix it, then pass "
        '`resume=error.result` (which is None only with snapshots="off").',
    )
