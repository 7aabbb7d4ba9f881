"""Data source of a run from a Python loader.

Batches go from the loader (`_pull`), maybe through a thread (`_next_item`), to a buffer (`peek`, `take`). The
batches of undone steps return to the buffer (`give_back`).
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.arrays import as_host, leaves_of
from bilevel.batch import Batch, Draws, Levels
from bilevel.checks import check_batch
from bilevel.loop.data.loaders import Pass, moved, position
from bilevel.loop.data.prefetch import DEPTH, OVER, SLOW, Ahead
from bilevel.loop.data.streams import Given
from bilevel.loop.errors import Failure, RunError
from bilevel.solvers.base import Solver

Taken = tuple[Given, Any]  # the data of a step on the host, and the loader's position before it


class Mark(NamedTuple):
    """Position of a loader in a result."""

    loader: "Loader | None"  # None in another process, which has only the position
    used: int
    position: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return Mark, (None, self.used, self.position)


class Item(NamedTuple):
    """Data of one step."""

    host: Given  # copies: NumPy arrays, or JAX arrays where the loader returned them
    device: Given | None  # the same data, as `place` put it there; None until needed
    place: Callable[[Given], Given] | None
    position: Any  # position of the loader after this item


class Loader:
    """Buffer of one loader that returns the data of one step at a time: one compiled call per step."""

    stream = None

    def __init__(self, source: Iterable[Any], solver: Solver, at: Mark = Mark(None, 0, None)):  # noqa: B008
        self.source, self.solver = source, solver
        new = at.used == 0 and at.position is None
        self._pass = Pass(iter(source) if new else moved(source, at.position, "data"), "data")
        # Position after `used` steps. It exists also before the first batch.
        self.position = position(self._pass.batches, source) if new else at.position
        self.used: int = at.used
        self._place: Callable[[Given], Given] = _on_device  # replaced for several devices
        self._drawn: list[Batch] = []  # draws of an incomplete step
        self._outer = Batch()  # the outer part of the last draw, if all draws of a step share it
        self._ahead: deque[Item] = deque()  # read from the loader, not yet used
        self.ended: bool = False  # the loader has no more batches
        self._again = False  # start another pass if the loader ends before its first batch
        self._thread: Ahead | None = None
        self._depth, self._goal = 0, at.used  # how many steps to prefetch, and the step at which to stop
        self._worth = False  # whether the loader is slow enough for a thread
        self._impatient = False  # Ctrl-C came during the wait for the thread

    @classmethod
    def resumed(cls, source: Iterable[Any], solver: Solver, mark: Any) -> "Loader":
        """Continue with the loader of the earlier run, or move another loader to its position."""
        if not isinstance(mark, Mark):
            raise ValueError(
                "the earlier run had its data in memory, this one has a loader: pass the same data, or begin a new run "
                "from x0=result.x, y0=result.y"
            )
        loader = mark.loader if mark.loader is not None and mark.loader.source is source else None
        if loader is not None and loader._thread is not None:
            loader._thread.finish()
        if loader is not None and mark.position is None:
            if loader.used != mark.used:
                raise ValueError(
                    "the loader has gone on since that result, for another run, and cannot be moved back: resume the "
                    "last result that used it, or give it get_state and set_state"
                )
            loader.solver, loader.ended = solver, False
        else:
            loader = cls(source, solver, mark)
        loader._again = not isinstance(source, Iterator)
        return loader

    def place(self, place: Any, stream: Any) -> None:
        """Use `place`, if given, to put each further batch on the devices."""
        self._place = place or self._place

    def first(self) -> Given | None:
        """Return the first step's data, or `None` if there are none. Raise the caller's errors unchanged."""
        try:
            return self.peek()
        except (TypeError, ValueError):
            raise
        except Exception as error:
            raise RunError(
                f"the loader raised {type(error).__name__} before the first step: {error}", None
            ) from error

    def blamed(self, failure: Failure | None) -> Failure | None:
        """Return the failure, named after the placement of the batch if that raised."""
        from bilevel.loop.devices.mesh_spec import CannotBeSplit

        if failure is not None and isinstance(failure.error, CannotBeSplit):
            return failure.blamed("laying out the loader's batch")
        return failure

    def peek(self) -> Given | None:
        """Return the next step's data without using it; `None` at the end."""
        if not self._ahead:
            item = self._next_item()
            if item is None:
                self.ended = True
                return None
            self._ahead.append(item)
        item = self._ahead[0]
        if item.place is not self._place:
            item = self._ahead[0] = item._replace(device=self._place(item.host), place=self._place)
        return item.device

    def take(self) -> tuple[Given, Taken] | None:
        """Return the next step's data, and what `give_back` and `again` need."""
        device = self.peek()
        if device is None:
            return None
        item, before = self._ahead.popleft(), self.position
        self.position = item.position
        self.used += 1
        return device, (item.host, before)

    def give_back(self, taken: list[Taken]) -> None:
        """Put the data of undone steps back at the front."""
        for host, before in reversed(taken):
            self._ahead.appendleft(Item(host, None, None, self.position))
            self.position = before
            self.used -= 1

    def again(self, taken: list[Taken], index: int, count: int) -> tuple[Given, int]:
        """Return the data of an earlier step. After the last known one, return its data again."""
        host, _ = taken[min(index, len(taken) - 1)]
        return self._place(host), 1

    def seen(self, taken: list[Taken]) -> list[Given]:
        return [host for host, _ in taken]

    @contextmanager
    def asked_ahead(self, steps: int, prefetch: int | None):
        """Prefetch in a thread inside this context, if `prefetch` is given or the loader is slow.

        Read at most `steps` steps ahead.
        """
        self._depth = DEPTH if prefetch is None else prefetch
        self._worth = self._depth > 0 and (self._worth or prefetch is not None)
        self._goal, self._impatient = self.used + steps, False
        try:
            yield
        finally:
            self._depth = 0
            if self._thread is not None and (self._thread.stop() or not self._impatient):
                with suppress(KeyboardInterrupt):  # a resumed run gets the remaining items
                    self._thread.finish()

    @property
    def movable(self) -> bool:
        """Return whether another process can move the loader to this position, as far as known."""
        return not self._ahead or self._ahead[0].position is not None

    def mark(self) -> Mark:
        """Return the current position for a result."""
        return Mark(self, self.used, self.position)

    def _next_item(self) -> Item | None:
        count = self._goal - self.used
        if self._thread is None and self._depth and self._worth and count > 1:
            self._thread = Ahead(self._pull, self._depth, count)
        if self._thread is not None:
            try:
                if (item := self._thread.take()) is not OVER:
                    return item
            except KeyboardInterrupt:
                self._impatient = True
                raise
            self._thread.finish()
            self._thread = None
        began = time.perf_counter()
        item = self._pull()
        # A loader of JAX arrays already works ahead, with the settings of its thread.
        self._worth |= time.perf_counter() - began > SLOW and item is not None and not _of_jax(item.host)
        return item

    def _pull(self) -> Item | None:
        outer_once = self.solver.draws > 1 and self.solver.traits.outer_last_only
        while len(self._drawn) < self.solver.draws:
            batch = self._next_batch()
            if batch is None:
                return None
            check_batch(self.solver.problem, batch)
            batch = _own(batch)
            if outer_once:  # forget the outer parts of earlier draws
                batch, self._outer = _parted(batch)
            self._drawn.append(batch)
        drawn, self._drawn = self._drawn, []
        host = Given(drawn[0] if len(drawn) == 1 else Draws(_stacked(drawn), self._outer))
        return Item(host, self._place(host), self._place, position(self._pass.batches, self.source))

    def _next_batch(self) -> Any:
        batch = next(self._pass, None)
        if batch is None and self._again:
            self._pass = Pass(iter(self.source), "data")
            batch = next(self._pass, None)
        self._again = False
        return batch


def _own(batch: Batch) -> Batch:
    """Return copies: a loader may reuse its buffers while a step still reads them."""

    def copied(name: str) -> Any:
        leaves_of(tree := getattr(batch, name), f"batch.{name}")  # raises if it is no tree of arrays
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: as_host(leaf, f"batch.{name}{jax.tree_util.keystr(path)}"), tree
        )

    rows = Levels(*(None if r is None else as_host(r, "rows") for r in batch.rows))
    return Batch(copied("inner"), copied("outer"), rows, batch.key, batch.state, shared=copied("shared"))


def _on_device(given: Given) -> Given:
    """Start the transfer to the device. On a CPU there is none."""
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf), given)


def _of_jax(given: Given) -> bool:
    return any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(given))


def _parted(batch: Batch) -> tuple[Batch, Batch]:
    """Return the batch without its outer part, and the outer part."""
    inner, outer = batch.rows
    rest = replace(batch, outer=None, rows=Levels(inner=inner))
    return rest, Batch(outer=batch.outer, rows=Levels(outer=outer))


def _stacked(batches: list[Batch]) -> Batch:
    shapes = {str(jax.tree.map(np.shape, batch)) for batch in batches}
    if len(shapes) > 1:
        raise ValueError(
            "the batches of one step must have the same shapes, but the loader gave "
            f"{' and '.join(sorted(shapes)[:2])}: let it drop an incomplete last batch"
        )
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *batches)
