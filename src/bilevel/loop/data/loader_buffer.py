"""Buffer of a loader: it prefetches batches, keeps them until their steps are safe, and takes them back."""

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
from bilevel.solvers.base import Solver


class Mark(NamedTuple):
    """Position of a loader in a result."""

    feed: "Feed | None"  # None in another process, which has only the position
    used: int
    position: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return Mark, (None, self.used, self.position)


class Item(NamedTuple):
    """Data of one step."""

    host: Given  # copies: NumPy arrays, or JAX arrays where the loader returned them
    device: Given | None  # the same data on the device; None until needed
    position: Any  # position of the loader after this item


class Feed:
    """Buffer of one loader that returns the data of one step at a time."""

    def __init__(
        self,
        source: Iterable[Any],
        solver: Solver,
        batches: Iterator[Any] | None = None,
        at: Any = None,
        used: int = 0,
    ):
        self.source, self.solver = source, solver
        self._pass = Pass(iter(source) if batches is None else batches, "data")
        # Position after `used` steps. It exists also before the first batch.
        self.position = position(self._pass.batches, source) if at is None else at
        self.used = used
        self.place: Callable[[Given], Given] = _on_device  # replaced for several devices
        self._drawn: list[Batch] = []  # draws of an incomplete step
        self._ahead: deque[Item] = deque()  # read from the loader, not yet used
        self.ended = False  # the loader has no more batches
        self._again = False  # start another pass if the loader ends before its first batch
        self._thread: Ahead | None = None
        self._failure: BaseException | None = None  # of the thread, not yet raised
        self._depth, self._goal = 0, used  # how many steps to prefetch, and the step at which to stop
        self._worth = False  # whether the loader is slow enough for a thread
        self._impatient = False  # Ctrl-C came during the wait for the thread

    def place_at(self, place: Callable[[Given], Given]) -> None:
        """Use `place` to put each further batch on the devices."""
        self.place, self._ahead = place, deque(item._replace(device=None) for item in self._ahead)

    def peek(self) -> Given | None:
        """Return the next step's data without using it; `None` at the end."""
        if not self._ahead:
            item = self._next_item()
            if item is None:
                self.ended = True
                return None
            self._ahead.append(item)
        item = self._ahead[0]
        if item.device is None:
            item = self._ahead[0] = item._replace(device=self.place(item.host))
        return item.device

    def take(self) -> tuple[Given, tuple[Given, Any]] | None:
        """Return the next step's data; also its copy on the host with the loader's position before it."""
        device = self.peek()
        if device is None:
            return None
        before = self.position
        host, _, self.position = self._ahead.popleft()
        self.used += 1
        return device, (host, before)

    def give_back(self, taken: list[tuple[Given, Any]]) -> None:
        """Put the data of undone steps back at the front."""
        for host, before in reversed(taken):
            self._ahead.appendleft(Item(host, None, self.position))
            self.position = before
            self.used -= 1

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
                    self._settle()

    @property
    def movable(self) -> bool:
        """Return whether the loader reports its position, as far as known."""
        return not self._ahead or self._ahead[0].position is not None

    def mark(self) -> Mark:
        """Return the current position for a result."""
        return Mark(self, self.used, self.position)

    @classmethod
    def resumed(cls, source: Iterable[Any], solver: Solver, earlier: "Mark | Feed | None") -> "Feed":
        """Continue with the loader of the earlier run, or move another loader to its position."""
        mark = earlier.mark() if isinstance(earlier, Feed) else earlier
        if not isinstance(mark, Mark):
            raise ValueError(
                "the earlier run had its data in memory, this one has a loader: pass the same data, or begin a new run "
                "from x0=result.x, y0=result.y"
            )
        feed = mark.feed
        if feed is not None and feed.source is source:
            feed._settle()
        if feed is not None and feed.source is source and mark.position is None:
            if feed.used != mark.used:
                raise ValueError(
                    "the loader has gone on since that result, for another run, and cannot be moved back: resume the "
                    "last result that used it, or give it get_state and set_state"
                )
            feed.solver, feed.ended = solver, False
        else:
            new = mark.used == 0 and mark.position is None
            batches = None if new else moved(source, mark.position, "data")
            feed = cls(source, solver, batches, mark.position, mark.used)
        feed._again = not isinstance(source, Iterator)
        return feed

    def _next_item(self) -> Item | None:
        count = self._goal - self.used - len(self._ahead)
        if self._thread is None and self._depth and self._worth and count > 1 and self._failure is None:
            self._thread = Ahead(self._pull, self._depth, count)
        if self._thread is not None:
            try:
                if (item := self._thread.take()) is not OVER:
                    return item
            except KeyboardInterrupt:
                self._impatient = True
                raise
            self._settle()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        began = time.perf_counter()
        item = self._pull()
        # A loader of JAX arrays already works ahead, with the settings of its thread.
        self._worth |= time.perf_counter() - began > SLOW and item is not None and not _of_jax(item.host)
        return item

    def _settle(self) -> None:
        """Stop the thread and keep the items that it has read."""
        if self._thread is not None:
            items, failure = self._thread.rest()
            ahead = deque([*self._ahead, *(item for item in items if item is not None)])
            # One assignment: after Ctrl-C before it, the thread and its items are unchanged.
            self._ahead, self._failure, self._thread = ahead, self._failure or failure, None

    def _pull(self) -> Item | None:
        while len(self._drawn) < self.solver.draws:
            batch = self._next_batch()
            if batch is None:
                return None
            check_batch(self.solver.problem, batch)
            if self._drawn and self.solver.traits.outer_last_only:  # drop unused outer parts
                self._drawn[-1] = _parted(self._drawn[-1])[0]
            self._drawn.append(_own(batch))
        batches, self._drawn = self._drawn, []
        host = Given(
            batches[0] if len(batches) == 1 else _stacked(batches, self.solver.traits.outer_last_only)
        )
        return Item(host, self.place(host), position(self._pass.batches, self.source))

    def _next_batch(self) -> Any:
        batch = next(self._pass, None)
        if batch is None and self._again:
            self._pass = Pass(iter(self.source), "data")
            batch = next(self._pass, None)
        self._again = False
        return batch


def _own(batch: Batch) -> Batch:
    """Return copies: a loader may reuse its buffers while a step still reads them."""
    rows = Levels(*(None if r is None else as_host(r, "rows") for r in batch.rows))
    parts = {name: _each(getattr(batch, name), f"batch.{name}") for name in ("inner", "outer", "shared")}
    return Batch(**parts, rows=rows, key=batch.key, state=batch.state)


def _each(tree: Any, name: str) -> Any:
    leaves_of(tree, name)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: as_host(leaf, name + jax.tree_util.keystr(path)), tree
    )


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


def _stacked(batches: list[Batch], outer_once: bool) -> Draws:
    """Return the draws of a step. With `outer_once` all draws share the outer part of the last one."""
    shared = Batch()
    if outer_once:
        *batches, last = batches
        rest, shared = _parted(last)
        batches = [*batches, rest]
    shapes = {str(jax.tree.map(np.shape, batch)) for batch in batches}
    if len(shapes) > 1:
        raise ValueError(
            "the batches of one step must have the same shapes, but the loader gave "
            f"{' and '.join(sorted(shapes)[:2])}: let it drop an incomplete last batch"
        )
    return Draws(
        jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *batches), shared
    )
