"""Values kept for a problem: checked shapes, classified rules, compiled programs."""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, ClassVar

import jax

from bilevel.readings import Reading, nodes

MOST_PLAIN = 16
_numbers = itertools.count(1)
_context = jax.make_user_context(0)  # part of the keys under which JAX keeps its traces


class Memory:
    """Values made for one problem, by kind and key. Each is valid until its sources read other things.

    Every problem has a memory, which is deleted with it. A global table would keep all problems alive:
    compiled programs refer to the functions of their problem.
    """

    MOST: ClassVar = dict(programs=16, sweeps=16, compiled=64, rules=64, checked=1024, returned=1024)

    def __init__(self) -> None:
        self._kept = {kind: OrderedDict[Hashable, tuple[Reading, Any]]() for kind in self.MOST}

    def get(self, kind: str, key: Hashable, reads: Any, make: Callable[[], Any]) -> Any:
        """Return the value under `key`; make it if it is missing, or if `reads` now reads other things.

        The least recently used value of each kind is dropped first.
        """
        kept = self._kept[kind]
        now, value = kept.pop(key, (None, None))
        if now is None or not now.is_current(reads):
            then, now = now, Reading(reads)
            if now != then:
                value = make()  # other threads may do the same at this time
        kept[key] = now, value
        while len(kept) > self.MOST[kind]:
            kept.popitem(last=False)
        return value

    def values(self, kind: str) -> list[Any]:
        """Return the values of a kind, the most recently used one last."""
        return [value for _, value in self._kept[kind].values()]


class Tracing:
    """Separate traces of all functions for each program.

    `lax.scan`, `jax.jit`, `jax.checkpoint` and others keep the trace of a function object, even if the
    function now reads other values. A compiled program and its parts share one `Tracing`; another program has
    another.
    """

    def __init__(self) -> None:
        self._number = next(_numbers)
        self._read: dict[Any, Reading] = {}  # by the classes in arguments, by the structure of the arguments
        self._plain: set[Any] = set()  # structures of arguments without classes of the user

    def refresh(self, structure: Any) -> bool:
        """Return whether classes in arguments read other things than before; then trace again."""
        if structure in self._plain:
            return False
        if not (classes := nodes(structure)):
            self._plain = {structure} if len(self._plain) > MOST_PLAIN else self._plain | {structure}
            return False
        before = self._read.get(structure)
        if before is not None and before.is_current(classes):
            return False
        self._read[structure] = now = Reading(classes)
        if before is None or before == now:
            return False
        self._read, self._number = {structure: now}, next(_numbers)
        return True

    def jit_alone(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function compiled; trace it again if the classes of its arguments change."""
        jitted = self.jit(function)

        def call(*arguments: Any) -> Any:
            if self.refresh(jax.tree.structure(arguments)):
                jitted.clear_cache()
            return jitted(*arguments)

        return call

    def jit(self, function: Callable[..., Any], **options: Any) -> "Jitted":
        """Return the function compiled as by `jax.jit`."""
        return Jitted(jax.jit(function, **options), self.run)

    def run(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call the function; its traces belong to this program only."""
        with _context(self._number):
            return function(*arguments, **named)


class Jitted:
    """Jitted function whose traces belong to one program."""

    def __init__(self, function: Any, run: Callable[..., Any]):
        self.function, self._run = function, run

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._run(self.function, *arguments, **named)

    def lower(self, *arguments: Any, **named: Any) -> Any:
        return self._run(self.function.lower, *arguments, **named)

    def clear_cache(self) -> None:
        self.function.clear_cache()

    def _cache_size(self) -> int:
        return self.function._cache_size()
