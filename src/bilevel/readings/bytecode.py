"""The names that a function's code asks for."""

import dis
import functools
import types
from collections import UserDict, deque
from typing import Any, NamedTuple

CONTAINERS = (list, dict, set, deque, UserDict)
COLLECT = {"append", "extend", "add", "appendleft", "insert"}  # methods by which a function only writes


class Names(NamedTuple):
    """The names in the code of a function, and in the code of the functions inside it."""

    globals: tuple[str, ...]
    attributes: frozenset[str]
    modules: tuple[str, ...]  # imported by the function itself
    stored: frozenset[str]  # globals and closures that the function assigns
    collected: frozenset[str]  # globals and closures that the function only writes into

    def is_written(self, name: str, held: Any) -> bool:
        """Return whether this is a counter or a collection of the function, which tracing changes."""
        counts, collects = name in self.stored, name in self.collected
        return (counts and type(held) is int) or (collects and isinstance(held, CONTAINERS))


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> Names:
    """Return the names that this code and the code inside it use."""
    globals_, modules = dict[str, None](), dict[str, None]()
    attributes, stored, collected, used = set[str](), set[str](), set[str](), set[str]()
    codes = [code]
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        steps = list(dis.get_instructions(code))
        for i, step in enumerate(steps):
            following = steps[min(i + 1, len(steps) - 1)]
            if step.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
                attributes.add(step.argval)
            elif step.opname == "IMPORT_NAME":
                modules[step.argval] = None
            elif step.opname == "STORE_GLOBAL" or (
                step.opname == "STORE_DEREF" and step.argval in code.co_freevars
            ):
                stored.add(step.argval)
            elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"):
                if "DEREF" not in step.opname:
                    globals_[step.argval] = None
                asks = following.opname in ("LOAD_ATTR", "LOAD_METHOD")
                puts = [each.opname for each in steps[i + 2 : i + 4]]  # name[key] = …, and name[key] += …
                collects = (asks and following.argval in COLLECT) or "STORE_SUBSCR" in puts[:1]
                (collected if collects or puts == ["COPY"] * 2 else used).add(step.argval)
    return Names(
        tuple(globals_), frozenset(attributes), tuple(modules), frozenset(stored), frozenset(collected - used)
    )
