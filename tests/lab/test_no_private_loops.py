"""The experiments run through the library's own loop: none of them takes steps by itself."""

import re
from pathlib import Path

import pytest

import bilevel.lab

ROOT = Path(bilevel.lab.__file__).parent
LOOPS = re.compile(r"\blax\.(scan|fori_loop|while_loop|map)\b|\bfrom jax import lax\b|\bimport jax\.lax\b")
STEPS = re.compile(r"\.step\(|\btake_step\b|\badvance_into\b")


@pytest.mark.parametrize(
    "path", sorted(ROOT.rglob("*.py")), ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_no_loop_over_steps(path):
    source = path.read_text()
    assert not LOOPS.search(source)
    assert not STEPS.search(source)
