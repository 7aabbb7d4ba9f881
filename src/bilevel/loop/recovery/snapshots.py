"""The policies for what a run can return to, `snapshots=` of `bl.RunOptions`.

* "device": buffers are not donated, so the state at the start of a chunk outlives the chunk. There are two copies.
* "host": buffers are donated; a copy goes to the host's memory, at most once in `REST` times the time that takes.
* "off": buffers are donated and nothing is kept: a run that breaks cannot return an earlier state.
* "auto": "device" for states so small that memory is no concern, "host" for larger ones. With
  `on_divergence="halve"` a run should always return to the same step, which the clock of "host" cannot promise:
  there "device" goes up to `MEDIUM` bytes.
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
    """Keep copies in the host's memory."""

    donates = True

    def __init__(self, storage: OnDevice = OnDevice(), first: Callable[[Any], Any] = lambda due: due):  # noqa: B008
        super().__init__(storage)
        self._first = first  # the processes of a run agree on what the first one's clock says
        self._places: Any = None  # the shardings of the run that is copied
        self._next = 0.0  # the earliest time of the next copy

    def renew(self, run: Any, step: int, good: bool) -> None:
        if not good and self.possible and not self._is_heavy():
            return
        if self._first(time.perf_counter() >= self._next) or self._is_heavy():
            self.begin(run, step)

    def begin(self, run: Any, step: int) -> None:
        began = time.perf_counter()
        self._run = self._places = self.step = None  # not next to the one that replaces it
        self.taken = []
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
    """Keep nothing."""

    donates = True

    def begin(self, run: Any, step: int) -> None:
        self.taken = []

    def adopt(self, run: Any, step: int, taken: list[Any], like: Any) -> None:
        self.begin(run, step)


def snapshots_for(
    policy: str, size: int, halve: bool, storage: OnDevice, first: Callable[[Any], Any] = lambda due: due
) -> Snapshots:
    """Return the policy for a state of that many bytes; "auto" means "device" or "host", by the size."""
    if policy == "auto":
        policy = "device" if size <= MEDIUM and halve else "host"
    if policy == "device":
        return Snapshots(storage)
    return HostSnapshots(storage, first) if policy == "host" else NoSnapshots(storage)


def _on_host(run: Any) -> Any:
    """Return a copy on the host; keys, for which NumPy has no type, are small and stay."""
    leaves, structure = jax.tree.flatten(run)
    for leaf in leaves:
        if not _is_key(leaf) and leaf.is_fully_addressable:
            leaf.copy_to_host_async()  # all at once, where memory is far away
    return structure.unflatten([jnp.copy(leaf) if _is_key(leaf) else _own(leaf) for leaf in leaves])


def _own(leaf: jax.Array) -> Any:
    """Return a copy: on a CPU the array's memory is the buffer that will be donated."""
    if not leaf.is_fully_addressable:  # NumPy sees only the part of one process
        return jax.device_put(leaf, leaf.sharding.with_memory_kind("pinned_host"), may_alias=False)
    fetched = np.asarray(leaf)
    return fetched.copy() if next(iter(leaf.devices())).platform == "cpu" else fetched


def _is_key(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
