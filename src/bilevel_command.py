"""The command `bilevel`, outside the package: importing the package loads JAX, which takes a second."""

import os
import signal
import sys

INTERRUPTED = 128 + 2  # as in bilevel/cli/errors.py
LEAST = (
    2 * 10**9
)  # bytes of addresses that JAX needs on a small machine; with fewer it ends without a message


def main() -> None:
    # An extension module that is being loaded may replace an exception, so Ctrl-C ends the process at once.
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # under nohup it is ignored
    if ours:
        signal.signal(signal.SIGINT, _leave)
    _warn_of_little_memory()
    from bilevel.cli import main as command

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        command()
    finally:
        if ours:  # the work is done, and the interpreter needs no time to clean up
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _warn_of_little_memory() -> None:
    try:
        import resource
    except ImportError:  # on Windows
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= limit < LEAST:  # -1 is no limit
        sys.stderr.write(
            f"bilevel: this shell limits a program to {limit / 1e9:.1f} GB of memory (ulimit -v), and JAX needs about "
            f"{LEAST / 1e9:.0f} GB: if the command ends without a message, raise the limit (ulimit -v unlimited)\n"
        )


def _leave(*_: object) -> None:
    os.write(2, b"bilevel: stopped before anything was done\n")
    os._exit(INTERRUPTED)
