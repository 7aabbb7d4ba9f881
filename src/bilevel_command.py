"""The command `bilevel`, up to where the package is loaded: JAX takes a second, in which Ctrl-C may come too.

A module beside the package, as whatever is within it loads JAX first.
"""

import os
import signal

INTERRUPTED = 128 + 2  # as in bilevel/cli/errors.py


def main() -> None:
    # Not by an exception, which an extension module that is being loaded may turn into another one.
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored, as under nohup
    if ours:
        signal.signal(signal.SIGINT, _leave)
    from bilevel.cli import main as command

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        command()
    finally:
        if ours:  # all is done, and what the interpreter has to clean up it does in no time
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _leave(*_: object) -> None:
    os.write(2, b"bilevel: stopped before anything was done\n")
    os._exit(INTERRUPTED)
