"""Policies for the state to which a run can return, `snapshots=` of `bl.RunOptions`.

* "device": buffers are not donated, so the state at the start of a chunk outlives it. There are two copies.
* "host": buffers are donated. Copies go to the host's memory, in at most 2 % of the time.
* "off": buffers are donated and nothing is kept. A run that breaks cannot return an earlier state.
* "auto": "device" for small states, "host" for larger ones. With `on_divergence="halve"` a run must always
  return to the same step, but "host" depends on the clock. Then "device" goes up to `MEDIUM` bytes.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.loop.policies import OnDevice, Snapshots, sharding_on_device

MEDIUM = 256 * 2**20
REST = 50  # so that copies take at most 2 % of the time


class HostSnapshots(Snapshots):
    """Policy that keeps copies in the host's memory."""

    donates = True

    def __init__(self, storage: OnDevice, first: Callable[[Any], Any]):
        super().__init__(storage)
        self._first = first  # all processes follow the clock of the first one
        self._places: Any = None  # shardings of the copied run
        self._next = 0.0  # earliest time of the next copy

    def renew(self, run: Any, step: int, good: bool) -> None:
        heavy = self._is_heavy()
        wanted = good or heavy or not self.possible
        if wanted and (self._first(time.perf_counter() >= self._next) or heavy):
            self.begin(run, step)

    def begin(self, run: Any, step: int) -> None:
        began = time.perf_counter()
        self._run, self.step, self.taken = None, None, []  # free the old copy first
        self._places = jax.tree.map(sharding_on_device, run)
        self._run, self.step = _on_host(run), step
        self._next = time.perf_counter() + REST * (time.perf_counter() - began)

    def adopt(self, run: Any, step: int, taken: list[Any], like: Any) -> None:
        super().adopt(run, step, taken, like)
        assert self._run is not None
        self._run, self._places = _on_host(self._run), jax.tree.map(sharding_on_device, like)

    def run(self) -> Any:
        assert self._run is not None
        return jax.device_put(self._run, self._places)

    def lasting(self) -> Any:
        """Return the copy on the host, unless other processes have parts of it."""
        assert self._run is not None
        leaves = [leaf for leaf in jax.tree.leaves(self._run) if isinstance(leaf, jax.Array)]
        return self._run if all(leaf.is_fully_addressable for leaf in leaves) else self.run()


class NoSnapshots(Snapshots):
    """Policy that keeps nothing."""

    donates = True

    def begin(self, run: Any, step: int) -> None:
        self.taken = []


def snapshots_for(
    policy: str, size: int, halve: bool, storage: OnDevice, first: Callable[[Any], Any] = lambda due: due
) -> Snapshots:
    """Return the policy for a state of `size` bytes. "auto" means "device" or "host", by the size."""
    if policy == "auto":
        policy = "device" if size <= MEDIUM and halve else "host"
    if policy == "device":
        return Snapshots(storage)
    return HostSnapshots(storage, first) if policy == "host" else NoSnapshots(storage)


def _on_host(run: Any) -> Any:
    """Return a copy on the host. Keys have no NumPy type; they are small and stay on the device."""
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    for leaf in jax.tree.leaves(run):
        if not is_key(leaf) and leaf.is_fully_addressable:
            leaf.copy_to_host_async()  # all transfers at once, in case memory is slow
    return jax.tree.map(lambda leaf: jnp.copy(leaf) if is_key(leaf) else _own(leaf), run)


def _own(leaf: jax.Array) -> Any:
    """Return a copy: on a CPU the array shares the buffer that will be donated."""
    if not leaf.is_fully_addressable:  # NumPy sees only the part of one process
        return jax.device_put(leaf, leaf.sharding.with_memory_kind("pinned_host"), may_alias=False)
    fetched = np.asarray(leaf)
    return fetched.copy() if next(iter(leaf.devices())).platform == "cpu" else fetched
