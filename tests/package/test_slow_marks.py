"""What `pytest -m "not slow"` leaves out is there, and was found by the rule that tests/mark_slow.py states."""

import ast
from functools import cache
from pathlib import Path

from mark_slow import slow

TESTS = Path(__file__).parents[1]


@cache
def names(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    inside = {f"{one.name}::{name}" for one in classes for name in functions(one)}
    inherited = {one.name for one in classes if one.bases}
    return functions(tree) | inside | inherited


def functions(node: ast.Module | ast.ClassDef) -> set[str]:
    return {one.name for one in node.body if isinstance(one, ast.FunctionDef)}


def test_every_test_that_is_listed_as_slow_exists():
    for listed in (TESTS / "slow.txt").read_text().split():
        file, _, test = listed.partition("::")
        known = names(TESTS.parent / file)
        assert test in known or test.split("::")[0] in known, listed


def test_one_long_case_or_many_short_ones_are_slow_and_the_quickest_of_a_file_is_not():
    a, b, c = "tests/a.py::", "tests/b.py::TestB::", "tests/c.py::"
    times = [
        f"0.10s call     {a}test_short",
        f"0.20s setup    {a}test_long[x [y] :: z]",
        f"0.30s call     {a}test_long[x [y] :: z]",
        *(f"0.20s call     {a}test_many[{i}]" for i in range(10)),
        f"1.90s call     {b}test_alone",
        f"2.10s call     {c}test_too_long",
        "(3 durations < 0.005s hidden.)",
    ]
    assert slow(times) == [f"{a}test_long", f"{a}test_many", f"{c}test_too_long"]
