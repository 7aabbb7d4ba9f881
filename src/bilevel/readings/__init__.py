"""Values that functions read in addition to their arguments.

A compiled program keeps the values that its functions read while they were traced: closures, defaults,
globals, attributes of objects, classes and modules. `parts` lists them, each with the path by which the
function reaches it. `Reading` turns the list into a value. If two readings are equal, tracing again gives the
same program. Checkpoints compare the list between processes (`loop/checkpoints/origin.py`).

The walk reads everything mutable through `Walk.look`, which records how to read it again. A reading is
therefore current while all looks give the same objects and all arrays the same numbers. The mutable kinds
are: closure cells, the code, defaults and attributes of functions, globals by name, imported modules, names
in modules, attributes, slots and class of objects, members and bases of classes, containers, partials,
wrapped functions and arrays.

The walk does not follow the code of installed packages, names that are not written in the code, or the
contents of objects that Python cannot list ("hidden"). These are compared by identity.
"""

import operator
import types
from typing import Any

import jax

from bilevel.readings.functions import is_filled as is_filled
from bilevel.readings.kinds import EXACT, NUMBERS as NUMBERS, array_token, digest, is_frozen
from bilevel.readings.walk import Part as Part, Reader as Reader, Walk

KNOWN_NODES = {"builtins", "collections", "jax", "optax", "bilevel"}


class Reading:
    """Record of everything that a function, or an object that holds functions, reads at one time.

    Readings are equal if all that was read is equal.
    """

    def __init__(self, value: Any):
        walk = Walk.of(value, "")
        self.tokens = tuple((part.path, *_token(part)) for part in (*walk.found, *walk.unordered))
        # Kept alive: an identity is only unique while its object lives.
        self._value, self._found = value, (walk.found, walk.unordered)
        self._complete, self._looks, self._arrays = walk.complete, walk.looks, walk.arrays

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reading) and self.tokens == other.tokens

    def __hash__(self) -> int:
        return hash(self.tokens)

    def is_current(self, value: Any) -> bool:
        """Return whether `value` certainly reads the same now; if False, compare with a new reading."""
        identical = lambda now, then: len(now) == len(then) and all(map(operator.is_, now, then))
        try:
            return (
                self._complete
                and _has_same_parts(value, self._value)
                and all(identical(look(*arguments), seen) for look, arguments, seen in self._looks)
                and all(array_token(array) == token for array, token in self._arrays)
            )
        except Exception:  # an object that raises when its attributes are read
            return False


def nodes(structure: Any) -> tuple[Any, ...]:
    """Return the user's classes in a pytree, and the contents of their objects except children.

    Functions that take the tree call the methods of these classes.
    """
    found, left = list[Any](), [structure]
    while left:
        each = left.pop()
        kind, held = each.node_data() or (None, None)
        left += each.children()
        if kind is not None and kind.__module__.partition(".")[0] not in KNOWN_NODES:
            found += [kind, held]
    return tuple(found)


def parts(value: Any, name: str = "") -> list[Part]:
    """Return all parts that a function, or an object with functions, reads, in the same order in every process."""
    return Walk.of(value, name).found


def _has_same_parts(a: Any, b: Any) -> bool:
    """Return whether a walk from either value visits the same objects."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if type(a) in EXACT:
        return repr(a) == repr(b)
    if type(a) in (tuple, list):
        return len(a) == len(b) and all(map(_has_same_parts, a, b))
    if isinstance(a, Reader):
        return _has_same_parts(a.reads(), b.reads())
    if is_frozen(type(a)) and hasattr(a, "__dict__"):
        return [*vars(a)] == [*vars(b)] and all(map(_has_same_parts, vars(a).values(), vars(b).values()))
    return False


def _token(part: Part) -> tuple[Any, ...]:
    value = part.value
    if part.kind == "value":
        exact = isinstance(value, int | str | jax.tree_util.PyTreeDef)
        return type(value), value if exact else repr(value)
    if part.kind == "shape":
        return (value,)
    if part.kind == "array" and not isinstance(value, jax.Array):
        return value.dtype.str, value.shape, digest(value)
    if isinstance(value, types.FunctionType):
        # Of installed ones the code only: optax makes new functions for every rule.
        return (id(value.__code__),) if part.kind == "name" else (id(value), id(value.__code__))
    return (id(value),)
