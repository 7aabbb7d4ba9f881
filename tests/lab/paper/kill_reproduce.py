"""Run as a program: kills `bilevel reproduce` while it writes, then starts it again in the same folder."""

import os
import signal
import sys
from pathlib import Path

from toys import OF_EACH_KIND, play

from bilevel.cli import app
from bilevel.lab.paper.manifest import digest_of_code
from bilevel.lab.paper.report import content


def reproduce(folder: Path, kill_at: int | None) -> int:
    """The status with which a process of its own ended; that it was killed is minus the signal."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    count, real = iter(range(1000)), os.fsync

    def fsync(descriptor: int) -> None:
        if next(count) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        real(descriptor)

    os.fsync = fsync
    app(["reproduce", "--out", str(folder)])  # exits
    return 1


if __name__ == "__main__":
    play()
    assert digest_of_code()  # once for all children
    content.environment = dict  # which would have each of them start JAX to list its devices
    for number in OF_EACH_KIND:
        folder = Path(sys.argv[1], str(number))
        assert reproduce(folder, number) == -signal.SIGKILL
        assert len(list(folder.glob(".*.part"))) == 1
        assert reproduce(folder, None) == 0
