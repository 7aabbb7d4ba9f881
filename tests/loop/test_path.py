"""The files that a plain first run enters: features that it does not use are none of them."""

import subprocess
import sys

import pytest

SCRIPT = """
import pathlib, sys
import jax, jax.numpy as jnp
import bilevel as bl

root = str(pathlib.Path(bl.__file__).parent)
problem = bl.Problem(inner=lambda x, y: 0.5 * jnp.sum((y - x) ** 2), outer=lambda x, y: 0.5 * jnp.sum((y - 1) ** 2))
entered = []

def note(frame, event, argument):
    name = frame.f_code.co_filename
    if event == "call" and frame.f_code.co_name != "<module>" and name.startswith(root):
        if not entered or entered[-1] != name:
            entered.append(name)

bl.run, bl.aid  # imports
sys.setprofile(note)
bl.run(bl.aid(problem, inner=0.5, adjoint=0.5, outer=0.1), jnp.ones(2), jnp.zeros(2), steps=10)
sys.setprofile(None)
print(*(pathlib.Path(name).relative_to(root).as_posix() for name in entered), sep="\\n")
"""


@pytest.fixture(scope="module")
def entered():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.slow
def test_a_plain_run_enters_no_feature_that_it_does_not_use(entered):
    unused = "devices", "recovery", "diagnose", "checkpoints", "hooks"
    assert [name for name in entered if name.startswith(tuple(f"loop/{each}/" for each in unused))] == []


@pytest.mark.slow
def test_a_plain_run_enters_few_files(entered):
    assert len(set(entered)) <= 42
    assert len(entered) <= 545
    assert len({name for name in entered if name.startswith("loop/")}) <= 17
