"""A forked child in which JAX would hang: told from one in which it works, and refused with what to do instead.

JAX's threads do not survive `fork`. A child of a process in which JAX had begun to work waits for them for ever; a
child of one that had only imported it is fine. JAX does not tell which it is, so: if anything was compiled since this
module was imported, or a run began, the child is refused at once; otherwise a small computation is tried, in a thread
that can be left behind.
"""

import os
import threading

import jax
import jax.monitoring
import numpy as np

LIMIT = 20.0  # seconds that a first small computation may take in a child


class _Seen:
    """What is known of this process and of the one it was forked from."""

    worked = False  # JAX has begun to work here
    forked = False  # this is a child, in which JAX has not been seen to work yet
    broken = False  # and will not


def _compiled(event: str, *_: object, **__: object) -> None:
    if "backend_compile" in event:  # to trace a function takes no backend
        _Seen.worked = True


def _in_child() -> None:
    _Seen.forked, _Seen.broken, _Seen.worked = True, _Seen.broken or _Seen.worked, False


jax.monitoring.register_event_duration_secs_listener(_compiled)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def check_fork() -> None:
    """An error in a child of a process in which JAX had begun to work; called by everything that drives a device."""
    if _Seen.forked and not _Seen.broken:
        _Seen.broken = not _works()
        _Seen.forked = _Seen.broken
    if _Seen.broken:
        raise RuntimeError(
            "this process was forked from one in which JAX had begun to work, and JAX does not survive a fork: it "
            'would hang here. Start workers with multiprocessing.get_context("spawn"), or fork before anything is '
            "computed"
        )
    _Seen.worked = True


def _works() -> bool:
    done = threading.Event()

    def compute() -> None:
        jax.block_until_ready(jax.jit(lambda a: a + 1)(np.zeros(1)))  # a transfer alone may still work
        done.set()

    threading.Thread(target=compute, daemon=True).start()
    return done.wait(LIMIT)
