"""Processes of one run. All of them act on a clock, a signal or a hook together, or none does.

Every process runs the same program on its devices, and a step of one waits for the others. So the processes
exchange everything that may differ between them before they act on it. This takes one small message (about 1
ms) between two chunks. A run on the devices of one process sends no messages.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from bilevel.loop.errors import Failure, RunError
from bilevel.loop.policies import Alone

LEFT = "has left, for"
LONGEST = 4000  # bytes of a process's message
PATIENCE = 10.0  # seconds that a process which leaves waits for the others to receive its message


class PeersLost(ConnectionError):
    """Error for another process of the run that stopped, or left with a reason."""


class Team(Alone):
    """Processes that run together: all that `jax.distributed` knows, or only this one."""

    def __init__(self, several: bool = False):
        self.several: bool = several
        self.lost: bool = False

    @property
    def leads(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return whether this process writes, prints and reads the clock."""
        return not self.several or jax.process_index() == 0

    def all(self, said: Any) -> list[Any]:
        """Return the messages of all processes, in JSON's types, in the order of their numbers."""
        if not self.several:
            return [said]
        from jax.experimental import multihost_utils

        if self.lost:
            raise PeersLost("another process of this run has gone")
        text = json.dumps(said, ensure_ascii=False).encode()
        assert len(text) <= LONGEST, "too long a message to the other processes"
        message = np.frombuffer(text.ljust(LONGEST), np.uint8)
        try:
            heard = np.asarray(multihost_utils.process_allgather(message))
        except jax.errors.JaxRuntimeError as error:
            raise self._gone(error) from error
        told = [json.loads(bytes(each)) for each in heard]
        for number, each in enumerate(told):
            if isinstance(each, dict) and LEFT in each:
                self.lost = True
                raise PeersLost(f"process {number} has left the run ({each[LEFT]})")
        return told

    @contextmanager
    def together(self):
        """Report an error of this process to the others, which wait for a message."""
        try:
            yield
        except PeersLost as error:
            raise RunError(str(error), None) from error
        except BaseException as error:
            if self.several and not self.lost:
                self._leave(brief(error))
            raise

    def _leave(self, why: str) -> None:
        """Send the reason, but wait at most `PATIENCE` seconds: processes inside a step cannot receive it."""

        def say() -> None:
            with suppress(PeersLost):
                self.all({LEFT: why})

        saying = Thread(target=say, daemon=True)
        saying.start()
        saying.join(PATIENCE)
        self.lost = True

    def first(self, said: Any) -> Any:
        """Return the message of the first process."""
        return self.all(said)[0]

    def each(self, work: Callable[[], Any], mine: bool = True) -> None:
        """Do the work in every process, and wait for all. If it fails in one process, raise in all."""
        if not self.several:
            work()
            return
        failure = None
        try:
            if mine:
                work()
        except Exception as error:
            failure = error
        told = [each for each in self.all(None if failure is None else brief(failure)) if each is not None]
        if failure is not None:
            raise failure
        if told:
            raise OSError(f"in another process: {told[0]}")

    def shared(self, failure: Failure | None) -> Failure | None:
        """Return the failure of this process, or else of another one."""
        mine = None if failure is None else f"{failure.what} raised {brief(failure.error)}"
        for number, told in enumerate(self.all(mine)):
            if told is not None and failure is None:
                failure = Failure(f"process {number}", RuntimeError(told))
        return failure

    def lose(self) -> None:
        """Note that the other processes can no longer be reached."""
        self.lost = self.several

    def lead(self, work: Callable[[], Any]) -> None:
        """Do the work in the first process, and let the others wait for it."""
        self.each(work, mine=self.leads)

    def named(self, failure: Failure) -> Failure:
        """Return the failure. If JAX raised that a collective failed, replace it by `PeersLost`."""
        if self.several and isinstance(failure.error, jax.errors.JaxRuntimeError):
            failure = failure.blamed(failure.what, self._gone(failure.error))
        return failure.blamed("the run") if isinstance(failure.error, PeersLost) else failure

    def _gone(self, error: BaseException) -> PeersLost:
        self.lost = True
        return PeersLost(
            f"another process of this run has gone, or cannot be reached ({brief(error)}): start all of them again "
            'with checkpoint=folder and resume="auto", and the run goes on from its last checkpoint'
        )


def team_of(*trees: Any) -> Team:
    """Return the processes whose devices hold these arrays or meshes."""
    leaves = [getattr(tree, "mesh", tree) for tree in trees]
    found = {device.process_index for leaf in _leaves(leaves) for device in _devices(leaf)}
    if len(found) > 1 and len(found) < jax.process_count():
        raise ValueError(
            f"the arrays lie on the devices of {len(found)} of the {jax.process_count()} processes: a run goes over "
            "the devices of all processes, or of one"
        )
    return Team(several=len(found) > 1)


def _leaves(trees: list[Any]) -> list[Any]:
    leaves = []
    for tree in trees:
        try:  # an iterator (of a loader) counts as a leaf
            leaves += jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, Iterator))
        except (TypeError, ValueError):  # a later check rejects such an argument by its name
            continue
    return leaves


def _devices(leaf: Any) -> Any:
    if isinstance(leaf, jax.sharding.Mesh):
        return leaf.devices.flat
    if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer):
        return leaf.sharding.device_set
    return ()


def brief(error: BaseException) -> str:
    """Return the type and first line of an error."""
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first[:300]}"
