"""The processes of one run. What one of them would decide by its clock, its signals or its hooks, all do, or none.

Every process runs the same program on its own devices, and a step of one waits for the others. So whatever differs
between them is told around before anybody acts on it: that takes one small message, of a thousandth of a second or so,
between two chunks. A run on the devices of one process tells nobody anything.
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
LONGEST = 4000  # bytes of what one process may tell the others at a time
PATIENCE = 10.0  # seconds that a process which leaves waits for the others to hear of it


class PeersLost(ConnectionError):
    """Another process of the run has gone, or has left it and said why."""


class Team(Alone):
    """The processes that run together: all of those that `jax.distributed` knows, or this one alone."""

    def __init__(self, several: bool = False):
        self.several: bool = several
        self.lost: bool = False

    @property
    def leads(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether this process is the one that writes, prints and watches the clock."""
        return not self.several or jax.process_index() == 0

    def all(self, said: Any) -> list[Any]:
        """What each process says, in JSON's types, in the order of their numbers."""
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
        """Whoever leaves with an error tells the others, who wait for a word; unless a step was interrupted."""
        try:
            yield
        except PeersLost as error:
            raise RunError(str(error), None) from error
        except BaseException as error:
            if self.several and not self.lost:
                self._leave(brief(error))
            raise

    def _leave(self, why: str) -> None:
        """Where they wait within a step they cannot hear it: not for ever."""

        def say() -> None:
            with suppress(PeersLost):
                self.all({LEFT: why})

        saying = Thread(target=say, daemon=True)
        saying.start()
        saying.join(PATIENCE)
        self.lost = True

    def first(self, said: Any) -> Any:
        """What the first process says."""
        return self.all(said)[0]

    def each(self, work: Callable[[], Any], mine: bool = True) -> None:
        """Every process does it, and none goes on before all have; if it fails in one, it has failed in all."""
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
        """The first process does it, and the others wait until it has."""
        self.each(work, mine=self.leads)

    def named(self, failure: Failure) -> Failure:
        """Return the failure; where JAX raised that a collective failed, another process has gone."""
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
    """Of the processes on whose devices arrays or meshes lie."""
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
        try:  # an iterator, which is a loader's, counts as a leaf
            leaves += jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, Iterator))
        except (TypeError, ValueError):  # what is no tree is refused later, by its name
            continue
    return leaves


def _devices(leaf: Any) -> Any:
    if isinstance(leaf, jax.sharding.Mesh):
        return leaf.devices.flat
    if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer):
        return leaf.sharding.device_set
    return ()


def brief(error: BaseException) -> str:
    """Its kind and first line."""
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first[:300]}"
