"""What an experiment makes of a run's outcome: a table is made of runs that went as planned, or not at all."""

from bilevel.loop.status import Code, Status


def require(status: Status, label: str, *wanted: Code) -> None:
    """Goes on if the run ended as it should; passes Ctrl-C on, and refuses anything else."""
    if status.code is Code.INTERRUPTED:
        raise KeyboardInterrupt
    if status.code not in wanted:
        raise RuntimeError(f"{label}: {status}")
