"""Python loaders: a pair of loaders that restart when they end, and the position of a loader."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
from jax.core import Tracer

from bilevel.batch import Batch
from bilevel.words import shown

STATEFUL = (("get_state", "set_state"), ("state_dict", "load_state_dict"))  # the names in grain and in torch


class Loaders:
    """Endless batches from one loader per level; see `bl.loaders`."""

    def __init__(self, inner: Iterable[Any] | None, outer: Iterable[Any] | None):
        self.levels: dict[str, Iterable[Any]] = {
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
        self._ready: dict[str, Any] = {}  # batches of some levels, kept until the other level has one

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        for level in self.levels:
            if level not in self._ready:
                self._ready[level] = self._next(level)
        ready, self._ready = self._ready, {}
        return Batch(**{level: as_dicts(batch) for level, batch in ready.items()})

    def _next(self, level: str) -> Any:
        loader = self.levels[level]
        for _ in range(2):  # the second turn begins a new pass
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


def as_dicts(batch: Any) -> Any:
    """Return the batch with dicts in place of other mappings, such as batches of Hugging Face tokenizers."""
    plain = lambda leaf: (
        {key: as_dicts(each) for key, each in leaf.items()} if isinstance(leaf, Mapping) else leaf
    )
    return jax.tree.map(plain, batch)


class Pass:
    """One pass over a loader. It distinguishes an iterator that ended from one that failed."""

    def __init__(self, batches: Iterator[Any], what: str):
        self.batches, self.what, self.failed = batches, what, False

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


def loaders(inner: Iterable[Any] | None = None, outer: Iterable[Any] | None = None) -> Loaders:
    """Return the data of a run from one Python loader per level. Each loader restarts when it ends.

        data = bl.loaders(inner=torch_loader_of_training_rows, outer=torch_loader_of_validation_rows)

    A loader that shuffles does so at each restart.

    Args:
        inner: a re-iterable of the inner level's batches (a torch `DataLoader`, a list, your own class) with
            arrays of NumPy, JAX or torch.
        outer: the same for the outer level.

    The two may have different lengths. A run resumes exactly, also in another process, if the iterators have
    `get_state` and `set_state` (grain) or `state_dict` and `load_state_dict` (torchdata).
    """
    return Loaders(inner, outer)


def saves(loader: Any) -> tuple[str, str] | None:
    """Return the names of the methods that read and restore a loader's position, or `None`."""
    return next(
        (pair for pair in STATEFUL if all(callable(getattr(loader, name, None)) for name in pair)), None
    )


def position(batches: Any, loader: Any) -> Any:
    """Return the position that the iterator or its loader reports; `None` if neither does."""
    for each in (batches, loader):
        if pair := saves(each):
            state = copy.deepcopy(getattr(each, pair[0])())  # the loader may keep updating it
            unknown = isinstance(each, Loaders) and any(value is None for value in state.values())
            return None if unknown else state
    return None


def moved(loader: Any, state: Any, what: str) -> Iterator[Any]:
    """Return an iterator over the loader that continues from `state`, a result of `position`."""
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
