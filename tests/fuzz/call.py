"""A valid call of a public function, and what its arguments are."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Later:
    """An argument that is made when it is wanted, not when the table is."""

    make: Callable[[], Any]


@dataclass(frozen=True)
class Call:
    """`valid` are right arguments, by name; `kinds` says what those are that get odd values."""

    name: str
    function: Callable
    valid: dict[str, Any]
    kinds: dict[str, str]
    also: dict[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # odd values that an argument may have besides
    skip: dict[str, tuple[str, ...]] = field(default_factory=dict)
    costly: bool = False  # what it accepts is left to other tests

    def __str__(self) -> str:
        return self.name
