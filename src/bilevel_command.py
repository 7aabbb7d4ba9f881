"""The command `bilevel`, outside the package: importing the package loads JAX, which takes a second."""

import os
import signal

INTERRUPTED = 128 + 2  # as in bilevel/cli/errors.py


def main() -> None:
    # An extension module that is being loaded may replace an exception, so Ctrl-C ends the process at once.
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # under nohup it is ignored
    if ours:
        signal.signal(signal.SIGINT, _leave)
    from bilevel.cli import main as command

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        command()
    finally:
        if ours:  # the work is done, and the interpreter needs no time to clean up
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _leave(*_: object) -> None:
    os.write(2, b"bilevel: stopped before anything was done\n")
    os._exit(INTERRUPTED)
