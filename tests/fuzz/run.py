"""One argument after the other gets every odd value; then pairs of them, by hypothesis."""

from collections.abc import Iterator
from typing import Any

from fuzz.call import Call, Later
from fuzz.kinds import KINDS
from fuzz.values import ODD
from fuzz.verdict import outcome


def attempts(call: Call) -> Iterator[dict[str, str]]:
    """Which argument gets which value."""
    for argument, kind in call.kinds.items():
        for value in KINDS[kind].values:
            right = call.costly and accepts(call, argument, value)
            if value not in call.skip.get(argument, ()) and not right:
                yield {argument: value}


def accepts(call: Call, argument: str, value: str) -> bool:
    return value in KINDS[call.kinds[argument]].may or value in call.also.get(argument, ())


def attempt(call: Call, odd: dict[str, str]) -> str | None:
    """What is wrong with how the call ends, if anything."""
    arguments: dict[str, Any] = {k: v.make() if isinstance(v, Later) else v for k, v in call.valid.items()}
    arguments |= {argument: ODD[value]() for argument, value in odd.items()}
    may = all(accepts(call, *pair) for pair in odd.items())
    return outcome(call.function, arguments, odd, may)
