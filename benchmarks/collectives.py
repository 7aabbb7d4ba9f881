"""What the devices of a compiled program tell each other, read off its text: how often, and how many bytes."""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

_ARRAY = re.compile(r"\b(pred|[subf]\w*\d+\w*|c64|c128)\[([\d,]*)\]")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+ = (.+?) ([a-z][\w-]*)\(")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) .*\{$")
_CALLED = re.compile(r"(?:body|calls|to_apply|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


class Collective(NamedTuple):
    """One such instruction."""

    kind: str  # one of `KINDS`
    size: int  # bytes of its result on one device
    devices: int  # that take part, in one group
    times: int  # that it runs in one turn of the loops whose length the compiler does not know
    shape: str  # of the result, in the compiler's words

    @property
    def moved(self) -> float:
        """Bytes that each device sends in all, if they stand in a ring."""
        n, size = self.devices, self.size
        once = {
            "all-reduce": 2 * (n - 1) / n * size,
            "all-gather": (n - 1) / n * size,
            "reduce-scatter": (n - 1) * size,
            "all-to-all": (n - 1) / n * size,
            "collective-permute": size,
        }[self.kind]
        return float(self.times * once)


def collectives(program: str) -> list[Collective]:
    """Of a compiled program's text, `jax.jit(f).lower(...).compile().as_text()`.

    A loop of known length counts as often as it turns, one of unknown length as if it turned once: of a compiled chunk
    of a run, that is one step.
    """
    computations, entry = _computations(program)
    return list(_within(computations, entry, 1))


def _computations(program: str) -> tuple[dict[str, list[str]], str]:
    """The lines of each computation, by name; and the name of the first."""
    computations: dict[str, list[str]] = {}
    entry, lines = "", []
    for line in program.splitlines():
        if found := _COMPUTATION.match(line):
            lines = computations.setdefault(found[2], [])
            entry = found[2] if found[1] else entry
        else:
            lines.append(line)
    return computations, entry


def _within(computations: dict[str, list[str]], name: str, times: int) -> Iterator[Collective]:
    for line in computations.get(name, ()):
        found = _INSTRUCTION.match(line)
        if not found:
            continue
        shape, kind = found[1], found[2]
        base = kind.removesuffix("-start")
        if base in KINDS:
            parts = _arrays(shape)
            if (
                kind != base and base != "all-reduce"
            ):  # of an asynchronous one: what goes in, then what comes out
                parts = parts[len(parts) // 2 :][: max(1, len(parts) // 2)]
            yield Collective(base, sum(parts), _group(line), times, shape)
            continue
        turns = times * (int(trips[1]) if kind == "while" and (trips := _TRIPS.search(line)) else 1)
        branches = _BRANCHES.search(line)
        called = [each.strip().lstrip("%") for each in branches[1].split(",")] if branches else []
        for each in [*_CALLED.findall(line), *called]:
            yield from _within(computations, each, turns)


def _arrays(shape: str) -> list[int]:
    """Bytes of the arrays of a shape, which may be a tuple."""
    return [
        _width(kind) * math.prod(int(n) for n in sizes.split(",") if n)
        for kind, sizes in _ARRAY.findall(shape)
    ]


def _width(kind: str) -> int:
    if kind == "pred":
        return 1
    bits = re.search(r"\d+", kind)
    return max(1, int(bits[0]) // 8) if bits else 1


def _group(line: str) -> int:
    """How many devices take part together, as the three ways of writing them have it."""
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return found[1].count(",") + 1
    if found := re.search(r"replica_groups=\[(\d+),(\d+)\]", line):
        return int(found[2])
    if found := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", line):
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", found[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'([^']+)'", found[2]))
    if found := re.search(r"source_target_pairs=\{(.*?)\}\}", line):
        return found[1].count("{")
    return 1
