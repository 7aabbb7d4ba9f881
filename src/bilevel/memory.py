"""What the library keeps about a problem: checked shapes, classified rules, compiled programs."""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import jax

from bilevel.readings import Reading, reading

_numbers = itertools.count(1)
_context = jax.make_user_context(0)  # part of the keys under which JAX keeps what it has traced


class Memory:
    """Values by key, each as long as what it was made from reads the same; the one unused for longest goes first."""

    def __init__(self, most: int):
        self.most = most
        self._kept: OrderedDict[Hashable, tuple[Reading, Any]] = OrderedDict()

    def get(self, key: Hashable, reads: Any, make: Callable[[], Any]) -> Any:
        """Return the value under `key`; make it if it is not there, or if what `reads` reads has changed."""
        now, value = self._kept.pop(key, (None, None))
        if now is None or not now.is_current(reads):
            then, now = now, reading(reads)
            if now != then:
                value = make()  # other threads may do the same meanwhile
        self._kept[key] = now, value
        while len(self._kept) > self.most:
            self._kept.popitem(last=False)
        return value

    def values(self) -> list[Any]:
        """What is kept, the one used last at the end."""
        return [value for _, value in self._kept.values()]

    def __len__(self) -> int:
        return len(self._kept)


class Tracing:
    """Makes JAX trace all functions anew: JAX remembers a function's trace, whatever the function reads meanwhile.

    `lax.scan`, `jax.jit`, `jax.checkpoint` and others keep what they traced with the function object. A compiled
    program and the parts that it calls share one `Tracing`; another program has another.
    """

    def __init__(self) -> None:
        self._number = next(_numbers)

    def jit(self, function: Callable[..., Any], **options: Any) -> "Jitted":
        """Return the function compiled as by `jax.jit`."""
        return Jitted(jax.jit(function, **options), self.run)

    def run(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Return what the function returns; what it traces is traced for this program only."""
        with _context(self._number):
            return function(*arguments, **named)


class Jitted:
    """A jitted function whose traces belong to one program."""

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
