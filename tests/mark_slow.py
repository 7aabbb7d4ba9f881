"""Writes tests/slow.txt, which `pytest -m "not slow"` leaves out, from how long every test took:

    pytest --durations=0 -vv | python tests/mark_slow.py

A test is slow if one of its cases takes longer than CASE seconds, or all of them together longer than TOGETHER. The
quickest of a file stays even so, up to LAST seconds, so that every part of the library is still tried.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

CASE, TOGETHER, LAST = 0.3, 1.0, 2.0
LINE = re.compile(r"\s*([\d.]+)s (?:call|setup|teardown) +((tests/[^:]+::[^\[]+)\S*.*)")


def slow(lines: Iterable[str]) -> list[str]:
    cases: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for found in filter(None, map(LINE.fullmatch, map(str.rstrip, lines))):
        seconds, case, test = found.groups()
        cases[test][case] += float(seconds)
    files: dict[str, list[str]] = defaultdict(list)
    for test in sorted(cases, key=lambda test: sum(cases[test].values())):
        files[test.split("::")[0]].append(test)
    total = lambda test: sum(cases[test].values())
    long = lambda test: max(cases[test].values()) > CASE or total(test) > TOGETHER
    stays = lambda test, quickest: test == quickest and total(test) <= LAST
    return sorted(
        test
        for first, *rest in files.values()
        for test in (first, *rest)
        if long(test) and not stays(test, first)
    )


if __name__ == "__main__":
    Path(__file__).with_name("slow.txt").write_text("\n".join(slow(sys.stdin)) + "\n")
