"""Default of every policy of a run, for features that it does not use, and the interfaces.

A run chooses its policies once, in `single_run.py`. The features are in the folders `devices`, `recovery`,
`hooks` and `diagnose`. A run that does not use a feature never imports it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from bilevel.loop.errors import Failure
from bilevel.types import PyTree

BACK = 100  # steps between two states by which a break is judged
MOST_BATCHES = 256 * 2**20  # bytes of a loader's batches after which a snapshot is renewed


class Alone:
    """Run in one process; `devices.processes.Team` is a run in several."""

    several: bool = False
    leads: bool = True  # whether this process writes, prints and reads the clock
    lost: bool = False  # whether another process was lost

    def all(self, said: Any) -> list[Any]:
        return [said]

    def first(self, said: Any) -> Any:
        """Return the message of the first process."""
        return self.all(said)[0]

    def lead(self, work: Callable[[], Any]) -> None:
        """Do the work in the first process, and let the others wait for it."""
        self.each(work, mine=self.leads)

    def each(self, work: Callable[[], Any], mine: bool = True) -> None:
        work()

    def named(self, failure: Failure) -> Failure:
        return failure

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()

    def shared(self, failure: Any) -> Any:
        return failure

    def lose(self) -> None:
        pass


class OnDevice:
    """Policy that keeps all arrays on the device; `devices.offload.OnHost` keeps some on the host."""

    offloads = False

    def fetched(self, run: Any) -> Any:
        return run

    def stored(self, run: Any) -> Any:
        return run

    def copied(self, run: Any) -> Any:
        return jax.tree.map(jnp.copy, run)


class Snapshots:
    """Policy `snapshots="device"`: keep a reference to a run, whose buffers are not donated.

    `recovery.snapshots` has the other policies.
    """

    donates = False
    storage: OnDevice
    roomy: bool  # whether there is room for older states too

    def __init__(self, storage: OnDevice = OnDevice(), roomy: bool = False):  # noqa: B008
        self.storage, self.roomy = storage, roomy
        self.step: int | None = None
        self.taken: list[Any] = []  # a loader's data since then, one result of `Loader.take` per step
        self._run: Any | None = None
        self._marks: list[tuple[int, Any]] = []  # the last two states that were `BACK` steps apart

    @property
    def possible(self) -> bool:
        return self._run is not None

    def since(self, step: int) -> int:
        """Return the step of the kept run, or `step` if there is none."""
        return step if self.step is None else self.step

    def renew(self, run: Any, step: int, good: bool) -> None:
        """Keep `run` at the start of a chunk if it is `good`, or if the batches take too much memory."""
        if good or not self.possible or self._is_heavy():
            self.begin(run, step)

    def begin(self, run: Any, step: int) -> None:
        """Keep `run` from now on."""
        self.taken, self._run, self.step = [], run, step
        if self.roomy and (not self._marks or step >= self._marks[-1][0] + BACK):
            self._marks = [*self._marks[-1:], (step, run)]

    def adopt(self, run: Any, step: int, taken: list[Any], like: Any) -> None:
        """Keep the run of an earlier call, with its arrays placed like those in `like`."""
        places = jax.tree.map(sharding_on_device, like)
        self._run, self.step, self.taken = jax.device_put(run, places), step, taken

    def run(self) -> Any:
        """Return the kept run, on the device."""
        assert self._run is not None
        return self.storage.fetched(self._run)

    def lasting(self) -> Any:
        """Return the kept run for a result to hold."""
        return self.run()

    def before(self) -> tuple[int, Any]:
        """Return a state by which to judge a break, and its step. It is earlier if memory allows it."""
        return self._marks[0] if self._marks else (self.step or 0, self.run())

    def xs(self) -> list[tuple[int, PyTree]]:
        """Return the steps of the kept states and their x (on device or host), the newest first."""
        found = {} if self._run is None else {self.since(0): self._run.x}
        for step, run in reversed(self._marks):
            found.setdefault(step, run.x)
        return list(found.items())

    def drop(self, count: int) -> list[Any]:
        """Drop the last `count` batches, which no step has used, and return them."""
        keep = max(0, len(self.taken) - max(0, count))
        dropped = self.taken[keep:]
        del self.taken[keep:]
        return dropped

    def _is_heavy(self) -> bool:
        return sum(leaf.nbytes for given, _ in self.taken for leaf in jax.tree.leaves(given)) > MOST_BATCHES


def sharding_on_device(leaf: jax.Array) -> Any:
    """Return the array's sharding, in the device's memory."""
    kind = leaf.sharding.memory_kind
    return leaf.sharding.with_memory_kind("device") if kind == "pinned_host" else leaf.sharding


def lost(tree: PyTree) -> bool:
    """Return whether a buffer of the tree was donated or deleted."""
    return any(leaf.is_deleted() for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))


@dataclass(frozen=True)
class Steady:
    """Policy of a run that ends if it diverges; `recovery.halving.Halving` retries with smaller steps."""

    given: Any  # the solver
    halves: bool = False
    # (the step it returned to, the lower levels' factor from then on, the outer factor)
    halvings: tuple[tuple[int, float, float], ...] = ()

    @property
    def solver(self) -> Any:
        """Return the solver with the current step sizes."""
        return self.given

    def saw(self, rows: Any) -> "Steady":
        return self

    def kept(self, here: bool) -> "Steady":
        return self

    def renews(self, step: int) -> bool:
        return True

    def retry(self, plan: Any, progress: Any) -> Any:
        return progress

    def recovery(self, plan: Any, progress: Any) -> Any:
        return None

    def note(self) -> str:
        return ""


class NoHooks:
    """Policy of a run without hooks; `hook_runner.HookRunner` calls them."""

    hooks: Sequence[Any] = ()
    reads_info = False
    diagnosis = None

    def begin(self, plan: Any, progress: Any) -> Any:
        return progress

    def tell(self, plan: Any, progress: Any, start: int, ranks: Sequence[int] = ()) -> Any:
        return progress

    def end(self, plan: Any, progress: Any, result: Any) -> Any:
        return progress

    def closing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def steps_to_next_mark(self, step: int, left: int) -> int:
        return left

    def forget(self, step: int) -> None:
        pass

    def remember(self, plan: Any, progress: Any, result: Any) -> None:
        pass

    def probe_rows(self) -> list[Any]:
        return []

    def take_probe_rows(self) -> list[Any]:
        return []

    def notes(self) -> str:
        return ""

    def leave(self) -> None:
        pass
