"""Whatever the documentation shows runs: every code block, every command and the examples."""

import importlib.util
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import typer

from bilevel.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")),
]

# What a page's first block takes for granted: the reader's own losses, starting point and data.
PRELUDES = {
    "README.md": """
        import jax, jax.numpy as jnp
        a = jax.random.normal(jax.random.key(0), (20, 3))
        train = valid = (a, a.sum(axis=1))
        x0, y0 = jnp.zeros(20), jnp.zeros(3)
        validation_loss = lambda x, y, batch: jnp.mean((batch[0] @ y - batch[1]) ** 2)
        weighted_training_loss = lambda x, y, batch: jnp.mean(jax.nn.sigmoid(x) * (batch[0] @ y - batch[1]) ** 2)
        """
}
# What a page's blocks promise, asked for after they ran.
POSTLUDES = {
    "README.md": 'assert result.status.code == "completed" and result.x.shape == (20,) and best.step > 0',
    "docs/diagnose.md": (
        'assert [each.code for each in result.diagnosis.findings] == ["adjoint_lags", "y_lags"]; '
        "assert better.diagnosis.findings == ()"
    ),
    "docs/index.md": "assert jax.nn.sigmoid(result.x[:40]).mean() < 0.2 < 0.7 < jax.nn.sigmoid(result.x[40:]).mean()",
    "docs/meta-learning.md": "assert 3 * error(learned.x) < error(joint.x) < error(x0)",
    "docs/methods.md": "assert (counts.Gc, counts.Mv) == (300, 200)",
    "docs/methods-stochastic.md": (
        'assert exact.trace["hypergradient_norm"][-1] < 1e-5 and jnp.abs(exact.x - again.x).max() < 1e-5'
    ),
    "docs/step-sizes.md": "assert found.best is not None and result.steps == 1000",
    "docs/theory/verification.md": "assert report.ok",
    "docs/write-a-solver.md": "assert found.scores[found.best] < 1e-3 and result.steps == 100",
}
NEEDS = {"docs/models.md": ["flax"]}  # extras that a page is about
SHORTER = {"docs/models.md": ("steps=400", "steps=40")}  # the code is tried, not its patience


def blocks(page: str, *languages: str) -> list[tuple[int, str]]:
    """The page's code in these languages, with the line each block begins after."""
    text = (ROOT / page).read_text()
    found = re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, m.start(2)), m[2]) for m in found if m[1].strip() in languages]


def run_python(*arguments: str, where: Path = ROOT) -> str:
    command = [sys.executable, *arguments]
    quickly = os.environ | {"XLA_FLAGS": os.environ["BILEVEL_TESTS_XLA_FLAGS"]}  # compiled: see conftest.py
    done = subprocess.run(command, capture_output=True, text=True, cwd=where, check=False, env=quickly)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def program(page: str) -> str:
    """The page's blocks one after the other, each where it is on the page, so that a traceback names the line."""
    lines = [textwrap.dedent(PRELUDES.get(page, ""))]
    for line, block in blocks(page, "python"):
        code = "\n" * line + block.replace(*SHORTER.get(page, ("", "")))
        lines.append(f"exec(compile({code!r}, {page!r}, 'exec'))")
    return "\n".join([*lines, POSTLUDES.get(page, "")])


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path):
    for name in NEEDS.get(page, []):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{page} is about {name}, which is not installed")
    (tmp_path / "page.py").write_text(program(page))
    run_python("page.py", where=tmp_path)


def test_hardly_a_block_is_left_out():
    left_out = [page for page in PAGES for _ in blocks(page, "{.python .notest}")]
    assert left_out == [
        "docs/write-a-solver.md"
    ]  # a row of the table in tests/zoo, which is no module of the reader's


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_examples_run(example):
    assert run_python(f"examples/{example}", "--steps", "2")


def commands() -> set[tuple[str, str]]:
    """`bilevel …` wherever it is shown, in a block or in a line, with the page."""
    found = set()
    for page in PAGES:
        shown = [line for _, block in blocks(page, "sh", "bash", "") for line in block.splitlines()]
        shown += re.findall(r"(?<!`)`([^`\n]+)`(?!`)", (ROOT / page).read_text())
        for line in shown:
            found |= {
                (page, command.strip()) for command in re.findall(r"(?:^|&& )(bilevel [a-z][^&#]*)", line)
            }
    return found


def test_every_command_that_is_shown_exists_with_its_options():
    known = typer.main.get_command(app).commands
    shown = commands()
    assert {"reproduce", "demo", "certify", "compare"} <= {command.split()[1] for _, command in shown}
    for page, command in shown:
        _, name, *words = command.split()
        assert name in known, f"{page}: {command}"
        options = {
            option for parameter in known[name].params for option in parameter.opts if option.startswith("--")
        }
        assert {word for word in words if word.startswith("--")} <= options | {"--help"}, f"{page}: {command}"


def test_the_command_for_a_method_of_one_s_own_works_on_the_page_s_code(tmp_path):
    page = "docs/write-a-solver.md"
    (tmp_path / "mine.py").write_text(blocks(page, "python")[0][1] + blocks(page, "python")[-1][1])
    (shown,) = (command for on, command in commands() if on == page and "--method" in command)
    arguments = shown.split()[1:]
    check = f"""
        from bilevel.cli import app
        from bilevel.lab import compare
        compare.METHODS = [method for method in compare.METHODS if method.name == "SOBA"]  # the others take time
        app({arguments!r})
        """
    assert "mine" in run_python("-c", textwrap.dedent(check), where=tmp_path)
    assert (tmp_path / "results" / "compare.csv").exists()


def test_the_navigation_names_every_page_once():
    (nav,) = re.findall(r"^nav:.*", (ROOT / "mkdocs.yml").read_text(), re.DOTALL | re.MULTILINE)
    named = re.findall(r"\S+\.md", nav)
    assert sorted(named) == sorted(page.removeprefix("docs/") for page in PAGES if page.startswith("docs/"))


def test_links_to_files_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", (ROOT / page).read_text()):
            assert "://" in target or (ROOT / page).parent.joinpath(target).exists(), f"{page}: {target}"
