"""Whatever the documentation shows runs: its code blocks, its commands and the examples."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What README's first block takes for granted: the user's own losses, starting point and data.
README_PRELUDE = """
import jax, jax.numpy as jnp
a = jax.random.normal(jax.random.key(0), (20, 3))
train = valid = (a, a.sum(axis=1))
x0, y0 = jnp.zeros(20), jnp.zeros(3)
validation_loss = lambda x, y, batch: jnp.mean((batch[0] @ y - batch[1]) ** 2)
weighted_training_loss = lambda x, y, batch: jnp.mean(jax.nn.sigmoid(x) * (batch[0] @ y - batch[1]) ** 2)
"""


def code_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def run_python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_s_code_runs_as_written():
    (block,) = code_blocks("README.md")
    shown = run_python("-c", README_PRELUDE + block + "\nprint(result.status, result.x.shape)")
    assert "completed" in shown
    assert "(20,)" in shown


def test_the_first_page_s_code_runs_and_finds_the_wrong_rows():
    (block,) = code_blocks("docs/index.md")
    shown = run_python("-c", block)
    wrong, right = (
        float(re.search(rf"trust in {kind} rows\s+(\S+)", shown)[1]) for kind in ("wrong", "right")
    )
    assert wrong < 0.2 < 0.7 < right


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_examples_run(example):
    assert run_python(f"examples/{example}", "--steps", "2")


def test_every_command_the_readme_names_exists():
    from bilevel.cli import app

    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    named = set(
        re.findall(
            r"\bbilevel ([a-z]+)\b",
            "\n".join(re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)),
        )
    )
    assert named
    assert named <= known
