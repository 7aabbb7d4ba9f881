"""What it takes to go back in a run: an earlier state, and the data that led from there to here.

The policy, `replay=` of a run:

* "device": buffers are not donated, so that the state at the start of a chunk outlives the chunk. Two copies of it.
* "host": buffers are donated; a copy goes to the host's memory, at most once in `REST` times the time that takes.
* "off": buffers are donated and nothing is kept: a run that breaks cannot return an earlier state.
* "auto": "device" for states of up to `SMALL` bytes, "host" for larger ones.
"""

import time
from typing import Any

import jax
import numpy as np

from bilevel.loop.state import RunState
from bilevel.loop.streams import Given
from bilevel.types import PyTree

POLICIES = ("auto", "device", "host", "off")
SMALL = 256 * 2**20
REST = 20
MOST_BATCHES = 256 * 2**20  # bytes of a loader's batches to keep; more, and the copy is renewed


class Kept:
    """The run as it was at `step`, and what a loader gave since."""

    def __init__(self, policy: str, size: int):
        self.policy = policy if policy != "auto" else "device" if size <= SMALL else "host"
        self.step: int | None = None
        self.taken: list[tuple[Given, Any]] = []  # as `Feed.take` returned it, one entry a step
        self._run: RunState | None = None
        self._places: Any = None  # the shardings of a copy in the host's memory
        self.agreed: Any = lambda due: due  # by all processes, whose clocks differ
        self._again = 0.0  # the earliest time of the next copy

    @property
    def donates(self) -> bool:
        return self.policy != "device"

    def at_start_of_chunk(self, run: RunState, step: int, good: bool = True) -> None:
        """Renews what is kept, as the policy has it; not with a run that is no longer good, unless that is too much."""
        if not good and self.possible and not self._heavy():
            return
        if self.policy == "device":
            self.begin(run, step)
        elif self.policy == "host" and (self.agreed(time.perf_counter() >= self._again) or self._heavy()):
            began = time.perf_counter()
            self.begin(jax.tree.map(_on_host, run), step)
            self._places = jax.tree.map(lambda leaf: leaf.sharding, run)
            self._again = time.perf_counter() + REST * (time.perf_counter() - began)
        elif self.policy == "off":
            self._run, self.step, self.taken = None, None, []

    def run(self) -> RunState:
        """The kept run, on the device."""
        assert self._run is not None
        return self._run if self._places is None else jax.device_put(self._run, self._places)

    @property
    def possible(self) -> bool:
        return self._run is not None

    def begin(self, run: RunState, step: int) -> None:
        """From here on, this is what the run can go back to."""
        self._run, self._places, self.step, self.taken = run, None, step, []

    def _heavy(self) -> bool:
        return sum(leaf.nbytes for given, _ in self.taken for leaf in jax.tree.leaves(given)) > MOST_BATCHES


def _on_host(leaf: Any) -> Any:
    is_key = jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    whole = leaf.is_fully_addressable  # else NumPy would see the part of one process alone
    return (
        jax.numpy.copy(leaf) if is_key or not whole else np.array(leaf)
    )  # a copy: on a CPU the buffers are the same memory


def lost(tree: PyTree) -> bool:
    """Whether a buffer of it was donated and is gone."""
    return any(leaf.is_deleted() for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))
