"""How a run ended: a code for programs, a sentence with a remedy for people."""

from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """The ways a run can end."""

    COMPLETED = "completed"  # took all its steps
    CONVERGED = "converged"  # the estimated hypergradient fell below the tolerance
    DIVERGED = "diverged"  # a variable became infinite or NaN
    INTERRUPTED = "interrupted"  # Ctrl-C
    EXHAUSTED = "exhausted"  # the iterator had no more batches


@dataclass(frozen=True)
class Status:
    """A code, and a sentence that says what happened and what to do about it."""

    code: Code
    message: str

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


def completed(steps: int) -> Status:
    return Status(
        Code.COMPLETED,
        f"took all {steps} steps; whether they suffice is for the trace to say: to go on, pass resume=result.",
    )


def converged(step: int, norm: float, tol: float) -> Status:
    return Status(
        Code.CONVERGED,
        f"the estimated hypergradient's norm {norm:.3g} is at most tol={tol:g} at step {step}; "
        "it is an estimate: check ITD's bias with bl.advise, or lower tol for more.",
    )


def diverged(step: int, variables: list[str]) -> Status:
    rule = {"x": "outer", "y": "inner", "v": "adjoint"}
    levels = [rule[name] for name in variables if name in rule] or ["inner"]
    return Status(
        Code.DIVERGED,
        f"{' and '.join(variables)} became infinite or NaN at step {step}; the last finite state, after "
        f"{step} steps, is returned: lower the {' or '.join(levels)} step size, or let bl.advise propose one.",
    )


def interrupted(step: int) -> Status:
    return Status(
        Code.INTERRUPTED, f"stopped by hand after {step} steps; pass resume=result to go on from there."
    )


def exhausted(step: int, steps: int) -> Status:
    return Status(
        Code.EXHAUSTED,
        f"the iterator ended after {step} of {steps} steps; give one that repeats, such as bl.epochs(...) "
        "or itertools.cycle(loader).",
    )
