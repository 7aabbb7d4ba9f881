"""What it takes to go back in a run: an earlier state, and the data that led from there to here.

The policy, `replay=` of a run:

* "device": buffers are not donated, so that the state at the start of a chunk outlives the chunk. Two copies of it.
* "host": buffers are donated; a copy goes to the host's memory, at most once in `REST` times the time that takes.
* "off": buffers are donated and nothing is kept: a run that breaks cannot return an earlier state.
* "auto": "device" for states so small that memory is no concern, "host" for larger ones. A run that may have to go back
  and on, `on_divergence="halve"`, should do so from the same step every time, which the clock of "host" cannot
  promise: there "device" goes up to `MEDIUM` bytes.
"""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.loop.data.streams import Given
from bilevel.loop.devices.offload import KIND, fetched
from bilevel.loop.program import SMALL
from bilevel.loop.state import RunState
from bilevel.types import PyTree

POLICIES = ("auto", "device", "host", "off")
MEDIUM = 256 * 2**20
REST = 50  # so that copies take at most 2 % of the time
BACK = 100  # steps, between two states to judge by
MOST_BATCHES = 256 * 2**20  # bytes of a loader's batches to keep; more, and the copy is renewed


def policy_for(policy: str, size: int, halve: bool) -> str:
    """What "auto" means for a state of that many bytes."""
    return policy if policy != "auto" else "device" if size <= (MEDIUM if halve else SMALL) else "host"


class Kept:
    """The run as it was at `step`, and what a loader gave since."""

    def __init__(self, policy: str, small: bool = False):
        self.policy, self._small = policy, small
        self._marks: list[tuple[int, RunState]] = []  # the last two states that were `BACK` steps apart
        self.step: int | None = None
        self.taken: list[tuple[Given, Any]] = []  # as `Feed.take` returned it, one entry a step
        self._run: RunState | None = None
        self._places: Any = None  # the shardings of a copy on the host
        self.agreed: Any = lambda due: due  # by all processes, whose clocks differ
        self._again = 0.0  # the earliest time of the next copy

    @property
    def donates(self) -> bool:
        return self.policy != "device"

    def at_start_of_chunk(self, run: RunState, step: int, good: bool = True) -> None:
        """Renews what is kept, as the policy has it; not with a run that is no longer good, unless that is too much."""
        if not good and self.possible and not self._heavy():
            return
        if self.policy != "host" or self.agreed(time.perf_counter() >= self._again) or self._heavy():
            self.begin(run, step)

    def begin(self, run: RunState, step: int) -> None:
        """From here on, this is what the run can go back to, if the policy has it so."""
        began = time.perf_counter()
        self._run, self._places = None, None  # not next to the one that replaces it
        self.step, self.taken = None, []
        if self.policy == "device":
            self._run, self.step = run, step
            if self._small and (not self._marks or step >= self._marks[-1][0] + BACK):
                self._marks = [*self._marks[-1:], (step, run)]
        elif self.policy == "host":
            self._places = jax.tree.map(_place, run)
            self._run, self.step = _on_host(run), step
            self._again = time.perf_counter() + REST * (time.perf_counter() - began)

    def adopt(self, run: RunState, step: int, taken: list[tuple[Given, Any]], like: RunState) -> None:
        """What an earlier call kept at that step; its arrays belong where `like` has them."""
        places = jax.tree.map(_place, like)
        run, self.step, self.taken = jax.device_put(run, places), step, taken
        self._run, self._places = (_on_host(run), places) if self.policy == "host" else (run, None)

    def lasting(self) -> RunState:
        """The kept run as a result may hold it: on the host, if that is where it is kept."""
        assert self._run is not None
        leaves = [leaf for leaf in jax.tree.leaves(self._run) if isinstance(leaf, jax.Array)]
        on_host = self._places is not None and all(leaf.is_fully_addressable for leaf in leaves)
        return self._run if on_host else self.run()

    def run(self) -> RunState:
        """The kept run, on the device."""
        assert self._run is not None
        return fetched(self._run) if self._places is None else jax.device_put(self._run, self._places)

    def before(self) -> tuple[int, RunState]:
        """A state to judge a break by, and its step: of before it, however short the chunks are.

        What is kept, where there is no room for others.
        """
        return self._marks[0] if self._marks else (self.step or 0, self.run())

    def x(self) -> PyTree:
        """Of the kept run, wherever that is."""
        assert self._run is not None
        return self._run.x

    @property
    def possible(self) -> bool:
        return self._run is not None

    def _heavy(self) -> bool:
        return sum(leaf.nbytes for given, _ in self.taken for leaf in jax.tree.leaves(given)) > MOST_BATCHES


def _place(leaf: jax.Array) -> Any:
    """On the device, even if it rests on the host between two steps."""
    return leaf.sharding.with_memory_kind("device") if leaf.sharding.memory_kind == KIND else leaf.sharding


def _on_host(run: RunState) -> RunState:
    """A copy; the keys in it, which NumPy has no type for, are few and stay."""
    leaves, structure = jax.tree.flatten(run)
    for leaf in leaves:
        if not _is_key(leaf) and leaf.is_fully_addressable:
            leaf.copy_to_host_async()  # all at once, where memory is far away
    return structure.unflatten([jnp.copy(leaf) if _is_key(leaf) else _own(leaf) for leaf in leaves])


def _own(leaf: jax.Array) -> Any:
    """On a CPU the array's memory is the buffer that will be donated."""
    if not leaf.is_fully_addressable:  # NumPy sees the part of one process alone
        return jax.device_put(leaf, leaf.sharding.with_memory_kind(KIND), may_alias=False)
    fetched = np.asarray(leaf)
    return fetched.copy() if next(iter(leaf.devices())).platform == "cpu" else fetched


def _is_key(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def lost(tree: PyTree) -> bool:
    """Whether a buffer of it was donated and is gone."""
    return any(leaf.is_deleted() for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))
