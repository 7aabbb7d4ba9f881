"""A forked child in which JAX would hang: told from one in which it works, and refused with what to do instead.

JAX's threads do not survive `fork`. A child of a process in which JAX had begun to work waits for them for ever; a
child of one that had only imported it is fine. JAX does not tell which it is, but its threads have names, where the
operating system tells them, and what it compiles it reports.
"""

import os
from contextlib import suppress
from pathlib import Path

import jax.monitoring


class _Seen:
    """What is known of this process and of the one it was forked from."""

    worked = False  # JAX has begun to work here
    broken = False  # it had in the parent


def _compiled(event: str, *_: object, **__: object) -> None:
    if "backend_compile" in event:  # to trace a function takes no backend
        _Seen.worked = True


def _in_parent() -> None:
    with suppress(OSError):
        names = (task.read_text() for task in Path("/proc/self/task").glob("*/comm"))
        _Seen.worked |= any("xla" in name.lower() for name in names)


def _in_child() -> None:
    _Seen.broken, _Seen.worked = _Seen.broken or _Seen.worked, False


jax.monitoring.register_event_duration_secs_listener(_compiled)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_in_parent, after_in_child=_in_child)


def check_fork() -> None:
    """An error in a child of a process in which JAX had begun to work; called by everything that drives a device."""
    if _Seen.broken:
        raise RuntimeError(
            "this process was forked from one in which JAX had begun to work, and JAX does not survive a fork: it "
            'would hang here. Start workers with multiprocessing.get_context("spawn"), or fork before anything is '
            "computed"
        )
