"""Batches that Python code makes: any iterable of `Batch`, or a pair of loaders that begin again when they end.

A loader is asked for the next batch while the device still works on the last, so that it costs no time unless it is
slower than a step; and it is never asked for a batch that is then thrown away.
"""

import copy
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from bilevel.arrays import as_arrays
from bilevel.batch import Batch, Draws, Levels
from bilevel.checks import check_batch
from bilevel.loop.streams import Given
from bilevel.solvers.base import Solver
from bilevel.words import shown

STATEFUL = (("get_state", "set_state"), ("state_dict", "load_state_dict"))  # grain's names, and torch's


class Loaders:
    """Endless batches from one loader per level; see [`loaders`][bilevel.loaders]."""

    def __init__(self, inner: Iterable | None, outer: Iterable | None):
        self.levels = {
            level: loader for level, loader in (("inner", inner), ("outer", outer)) if loader is not None
        }
        if not self.levels:
            raise ValueError("loaders needs at least one loader: pass inner=... or outer=...")
        for level, loader in self.levels.items():
            single = isinstance(loader, str | bytes | dict | Batch) or getattr(loader, "ndim", 1) == 0
            gone = isinstance(loader, jax.Array) and (isinstance(loader, Tracer) or loader.is_deleted())
            if not isinstance(loader, Iterable) or single or gone:
                raise TypeError(
                    f"the {level} loader must be an iterable of that level's data, such as a DataLoader, not "
                    f"{type(loader).__name__} {shown(loader)}"
                )
            if isinstance(loader, Iterator) and not isinstance(loader, Loaders) and saves(loader) is None:
                raise TypeError(
                    f"the {level} loader is an iterator ({type(loader).__name__}), which cannot begin again when it "
                    "ends: pass the loader itself, or a class whose __iter__ starts a new pass"
                )
        self._passes: dict[str, Pass] = {}
        self._ready: dict[str, Any] = {}  # levels that are there while another one is waited for

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        for level in self.levels:
            if level not in self._ready:
                self._ready[level] = self._next(level)
        ready, self._ready = self._ready, {}
        return Batch(**ready)

    def _next(self, level: str) -> Any:
        loader = self.levels[level]
        for _ in range(2):  # the second time is the beginning of a new pass
            if level not in self._passes:
                self._passes[level] = Pass(iter(loader), level)
            try:
                return next(self._passes[level])
            except StopIteration:
                del self._passes[level]
        if isinstance(loader, Iterator):
            raise ValueError(
                f"the {level} loader is an iterator ({type(loader).__name__}), which has ended and cannot begin again: "
                "let it repeat for ever, or pass a loader whose __iter__ starts a new pass"
            )
        raise ValueError(f"the {level} loader has no batches at all: give one that is not empty")

    def get_state(self) -> dict[str, Any]:
        at = lambda level: self._passes[level].batches if level in self._passes else None
        return {level: position(at(level), loader) for level, loader in self.levels.items()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._passes = {
            level: Pass(moved(loader, state[level], level), level) for level, loader in self.levels.items()
        }
        self._ready = {}


class Pass:
    """One iteration over a loader. An error may have ended it: that is not the same as its end."""

    def __init__(self, batches: Iterator, what: str):
        self.batches, self.what, self.failed = batches, what, False

    def __iter__(self) -> "Pass":
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self.batches)
        except StopIteration:
            if not self.failed:
                raise
            raise ValueError(
                f"the {self.what} loader's iterator did not survive the error it raised (a generator never does), so "
                "what was left of its pass cannot be had: write it as a class with __next__, or begin a new run from "
                "x0=result.x, y0=result.y"
            ) from None
        except BaseException:
            self.failed = True
            raise
        self.failed = False
        return batch


def loaders(inner: Iterable | None = None, outer: Iterable | None = None) -> Loaders:
    """One Python loader per level as the data of a run: each begins again when it ends, and so reshuffles if it does.

        data = bl.loaders(inner=torch_loader_of_training_rows, outer=torch_loader_of_validation_rows)

    Args:
        inner: a re-iterable of the inner level's batches (a torch `DataLoader`, a list, your own class); arrays may be
            NumPy's, JAX's or torch's.
        outer: likewise for the outer level.

    The two may have different lengths. Loaders whose iterators have `get_state` and `set_state` (grain) or `state_dict`
    and `load_state_dict` (torchdata) are resumed exactly, also in another process.
    """
    return Loaders(inner, outer)


def saves(loader: Any) -> tuple[str, str] | None:
    """The names of the methods that read and restore a loader's position, if it has any."""
    return next(
        (pair for pair in STATEFUL if all(callable(getattr(loader, name, None)) for name in pair)), None
    )


def position(batches: Any, loader: Any) -> Any:
    """Where an iterator over a loader stands, as itself or the loader tells; `None` if neither does."""
    for each in (batches, loader):
        if pair := saves(each):
            state = copy.deepcopy(getattr(each, pair[0])())  # some return the dict they go on counting in
            unknown = isinstance(each, Loaders) and any(value is None for value in state.values())
            return None if unknown else state
    return None


def moved(loader: Any, state: Any, what: str) -> Iterator:
    """An iterator over the loader that goes on from `state`, which `position` returned."""
    if state is not None:
        batches = iter(loader)
        if pair := saves(batches):
            getattr(batches, pair[1])(state)
            return batches
        if pair := saves(loader):
            getattr(loader, pair[1])(state)
            return iter(loader)
    raise ValueError(
        f"the {what} loader cannot say where it stands or be moved there, so a resumed run would silently see its "
        "first batches again: pass the very loader object of the earlier run, or one with get_state and set_state"
    )


class Mark(NamedTuple):
    """A loader as a result remembers it: the feed, and where it stood then."""

    feed: "Feed | None"  # None in another process, which has the position alone
    used: int
    position: Any

    def __reduce__(self) -> tuple:
        return Mark, (None, self.used, self.position)


class Feed:
    """A loader as a run uses it: batches are looked ahead at, kept until their steps are safe, and given back."""

    def __init__(
        self,
        source: Iterable,
        solver: Solver,
        batches: Iterator | None = None,
        position: Any = None,
        used: int = 0,
    ):
        self.source, self.solver = source, solver
        self.position, self.used = position, used  # of the loader, after that many steps' batches
        self._pass = Pass(iter(source) if batches is None else batches, "data")
        self.place: Any = lambda given: given  # onto several devices
        self._drawn: list[Batch] = []  # the first batches of a step whose last is still to come
        self._ahead: deque[tuple[Given, Any]] = deque()  # taken from the loader, not yet used
        self.ended = False  # the loader has no more
        self._again = False  # if it ends before it gives anything, it begins another pass

    def peek(self) -> Given | None:
        """The next step's data, without using it; `None` at the end."""
        if not self._ahead:
            while len(self._drawn) < self.solver.draws:
                batch = self._next()
                if batch is None:
                    self.ended = True
                    return None
                check_batch(self.solver.problem, batch)
                self._drawn.append(_on_device(batch))
            batches, self._drawn = self._drawn, []
            given = self.place(Given(batches[0] if len(batches) == 1 else _stacked(batches)))
            self._ahead.append((given, position(self._pass.batches, self.source)))
        return self._ahead[0][0]

    @property
    def movable(self) -> bool:
        """Whether the loader says where it stands, as far as one has seen."""
        return not self._ahead or self._ahead[0][1] is not None

    def _next(self) -> Any:
        batch = next(self._pass, None)
        if batch is None and self._again:
            self._pass = Pass(iter(self.source), "data")
            batch = next(self._pass, None)
        self._again = False
        return batch

    def take(self) -> tuple[Given, Any] | None:
        """The next step's data, and the loader's position before them."""
        if self.peek() is None:
            return None
        before = self.position
        given, self.position = self._ahead.popleft()
        self.used += 1
        return given, before

    def give_back(self, taken: list[tuple[Given, Any]]) -> None:
        """Steps that were undone: their data come first again."""
        for given, before in reversed(taken):
            self._ahead.appendleft((given, self.position))
            self.position = before
            self.used -= 1

    def mark(self) -> Mark:
        """For a result: where the loader stands now, whatever becomes of it later."""
        return Mark(self, self.used, self.position)

    @classmethod
    def resumed(cls, source: Iterable, solver: Solver, earlier: "Mark | Feed | None") -> "Feed":
        """Goes on in the very loader of the earlier run, or moves another one to where that stood."""
        mark = earlier.mark() if isinstance(earlier, Feed) else earlier
        if not isinstance(mark, Mark):
            raise ValueError(
                "the earlier run had its data in memory, this one has a loader: pass the same data, or begin a new run "
                "from x0=result.x, y0=result.y"
            )
        feed = mark.feed
        if feed is not None and feed.source is source and mark.position is None:
            if feed.used != mark.used:
                raise ValueError(
                    "the loader has gone on since that result, for another run, and cannot be moved back: resume the "
                    "last result that used it, or give it get_state and set_state"
                )
            feed.solver, feed.ended = solver, False
        else:
            new = mark.used == 0
            batches = None if new else moved(source, mark.position, "data")
            feed = cls(source, solver, batches, mark.position, mark.used)
        feed._again = not isinstance(source, Iterator)
        return feed


def _on_device(batch: Batch) -> Batch:
    """As JAX arrays of our own: a loader may fill the same buffer again while a step still reads it."""
    ours = lambda tree: jax.tree.map(
        lambda leaf: leaf if isinstance(leaf, jax.Array) else _copied(leaf), tree
    )
    rows = Levels(*(None if r is None else as_arrays(jnp.asarray(r), "rows") for r in batch.rows))
    arrays = as_arrays(ours(batch.inner), "batch.inner"), as_arrays(ours(batch.outer), "batch.outer")
    return Batch(*arrays, rows, batch.key, batch.state)


def _copied(leaf: Any) -> Any:
    if hasattr(leaf, "clone"):  # a torch tensor
        return leaf.clone()
    plain = isinstance(leaf, np.ndarray) and not np.ma.isMaskedArray(leaf)  # a mask would be lost, not copied
    return np.array(leaf) if plain else leaf


def _stacked(batches: list[Batch]) -> Draws:
    shapes = {str(jax.tree.map(np.shape, batch)) for batch in batches}
    if len(shapes) > 1:
        raise ValueError(
            "the batches of one step must have the same shapes, but the loader gave "
            f"{' and '.join(sorted(shapes)[:2])}: let it drop an incomplete last batch"
        )
    return Draws(
        jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *batches), Batch()
    )
