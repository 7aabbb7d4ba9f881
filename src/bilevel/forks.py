"""Errors in forked processes in which JAX would hang.

The threads of JAX do not survive `fork`. If JAX has started to work in the parent, the child waits for them
forever. If the parent has only imported JAX, the child works. JAX warns in both cases. This module notes
whether JAX has compiled anything, and reads the names of JAX's threads if the operating system lists them.
"""

import os
from contextlib import suppress
from pathlib import Path

import jax.monitoring


class _Jax:
    """State of JAX in this process and in its parent."""

    has_worked = False
    had_worked_in_parent = False


def _note_compilation(event: str, *_: object, **__: object) -> None:
    if "backend_compile" in event:  # tracing starts no threads
        _Jax.has_worked = True


def _before_fork() -> None:
    with suppress(OSError):
        names = (task.read_text() for task in Path("/proc/self/task").glob("*/comm"))
        _Jax.has_worked |= any("xla" in name.lower() for name in names)


def _in_child() -> None:
    _Jax.had_worked_in_parent, _Jax.has_worked = _Jax.had_worked_in_parent or _Jax.has_worked, False


jax.monitoring.register_event_duration_secs_listener(_note_compilation)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)


def check_fork() -> None:
    """Raise in the child of a process in which JAX has worked."""
    if _Jax.had_worked_in_parent:
        raise RuntimeError(
            "this process was forked from one in which JAX had started to work, and JAX does not survive a fork: it "
            'would hang here. Start workers with multiprocessing.get_context("spawn"), or fork before anything is '
            "computed"
        )
