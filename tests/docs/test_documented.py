"""Every code block, every command and every example of the documentation runs."""

import importlib.util
import os
import re
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from pages import ROOT, Part, blocks, differs, imports_torch, parts
from running import run

from bilevel.cli import app

PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "docs").rglob("*")
        if path.suffix in (".md", ".ipynb") and path.parent.name != "measured"
    ),
]

# Definitions that the first block of a page assumes: losses, starting points and data of the reader.
PRELUDES = {
    "README.md": """
        import jax, jax.numpy as jnp
        a = jax.random.normal(jax.random.key(0), (20, 3))
        train = valid = (a, a.sum(axis=1))
        x0, y0 = jnp.zeros(20), jnp.zeros(3)
        validation_loss = lambda x, y, batch: jnp.mean((batch[0] @ y - batch[1]) ** 2)
        weighted_training_loss = lambda x, y, batch: jnp.mean(jax.nn.sigmoid(x) * (batch[0] @ y - batch[1]) ** 2)
        """,
    # Stand-ins for packages that CI does not install, with their signatures; they record their arguments.
    "docs/how-to/see-a-run.md": """
        import contextlib, sys, types
        logged = {"wandb": {}, "mlflow": {}}
        def log(data, step=None, commit=None): logged["wandb"][step] = dict(data)
        def log_metrics(metrics, step=None, synchronous=None): logged["mlflow"][step] = dict(metrics)
        sys.modules["wandb"] = types.SimpleNamespace(init=lambda *, project: None, log=log)
        sys.modules["mlflow"] = types.SimpleNamespace(start_run=contextlib.nullcontext, log_metrics=log_metrics)
        """,
}
# Checks of the promises of a page, after its blocks ran.
POSTLUDES = {
    "README.md": 'assert result.status.code == "completed" and result.x.shape == (20,) and best.step > 0',
    "docs/diagnose.md": (
        'assert [each.code for each in result.diagnosis.findings] == ["adjoint_lags", "y_lags"]; '
        "assert better.diagnosis.findings == ()"
    ),
    "docs/index.md": "assert jax.nn.sigmoid(result.x[:40]).mean() < 0.2 < 0.7 < jax.nn.sigmoid(result.x[40:]).mean()",
    "docs/concepts/meta-learning.md": "assert 3 * error(learned.x) < error(joint.x) < error(x0)",
    "docs/concepts/methods.md": "assert (counts.Gc, counts.Mv) == (300, 200)",
    "docs/concepts/methods-stochastic.md": (
        'assert exact.trace["hypergradient_norm"][-1] < 1e-5 and jnp.abs(exact.x - again.x).max() < 1e-5'
    ),
    "docs/how-to/step-sizes.md": "assert found.best is not None and result.steps == 1000",
    "docs/how-to/troubleshooting.md": (
        "assert (wild.status.code, wild.status.variable, short.steps) == ('diverged', 'y', 3); "
        "assert 'exactly zero' in still.status.message and first_order.status.code == 'completed'; "
        "assert broken.status.code == 'diverged' and finite.status.code == 'completed'; "
        "assert unrolled > 2 * checkpointed; "
        "assert resumed.trace['adjoint_residual'][20] < 0.1 * again.trace['adjoint_residual'][0]"
    ),
    "docs/how-to/see-a-run.md": """
        import re, runpy
        from pathlib import Path
        names = ("outer_value", "hypergradient_norm", "adjoint_residual", "outer/worst")
        rows = {step: {name: float(result.trace[name][step - 1]) for name in names} for step in (50, 100, 150, 200)}
        assert logged == {"wandb": rows, "mlflow": rows}, logged
        runpy.run_path(ROOT + "/docs/pictures/live_view.py")["draw"](Path("run-live.svg"), solver, x0, y0, data)
        shown = re.findall(r"pictures/(.*?)\\)", Path(ROOT, "docs/how-to/see-a-run.md").read_text())
        assert len(shown) == 6 and all(Path(name).exists() for name in shown)
        """.replace("ROOT", repr(str(ROOT))),
    "docs/theory/verification.md": "assert report.ok",
    "docs/how-to/write-a-solver.md": "assert found.scores[found.best] < 1e-3 and result.steps == 100",
}
NEEDS = {"docs/how-to/models.md": ["flax"]}  # extras that a page is about
SHORTER = {"docs/how-to/models.md": ("steps=400", "steps=40")}  # the code is tried, not its patience


def shown(page: str) -> list[Part]:
    """Return the parts of a page to run: its code, and the commands with an output below them."""
    return [
        replace(part, code=part.code.replace(*SHORTER.get(page, ("", ""))))
        for part in parts(page)
        if part.language == "python" or (part.language == "sh" and part.printed is not None)
    ]


def code(text: str) -> list[Part]:
    return [Part("python", textwrap.dedent(text))] if text else []


WIDTH = 90  # characters that fit into the column of a page


@pytest.mark.parametrize("page", PAGES)
def test_no_line_of_code_is_wider_than_a_page(page):
    shown = [
        part for part in parts(page) if not part.language.startswith("{") or "code-block" in part.language
    ]
    assert [line for part in shown for line in part.code.splitlines() if len(line) > WIDTH] == []


def check(page: str, where: Path) -> None:
    """Run the code of a page; raise unless it prints what the page shows."""
    every = [*code(PRELUDES.get(page, "")), *shown(page), *code(POSTLUDES.get(page, ""))]
    for part, printed in zip(every, run(every, where, page), strict=True):
        if part.printed is not None:
            assert not (wrong := differs(part.printed, printed)), f"{page}, line {part.line}: {wrong}"


# tests/docs/test_torch_pages.py runs the others.
@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if shown(page) and not imports_torch(page)])
def test_the_code_of_a_page_runs_from_top_to_bottom_and_prints_what_it_shows(page, tmp_path):
    for name in NEEDS.get(page, []):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{page} is about {name}, which is not installed")
    check(page, tmp_path)


def test_hardly_a_block_is_left_out():
    left_out = [page for page in PAGES for _ in blocks(page, "{code-block} python")]
    assert left_out == [
        "docs/how-to/write-a-solver.md"
    ]  # a row of the table in tests/zoo, which is no module of the reader's


def test_every_picture_is_drawn_by_a_page_that_shows_it():
    by_scripts = {"single-loop.svg", "run-live.svg"}
    drawn = {path.name for path in (ROOT / "docs" / "pictures").glob("*.svg")} - by_scripts
    saved = {
        name
        for page in PAGES
        for name in re.findall(r"pictures/(\S+\.svg)\)", (ROOT / page).read_text())
        if any(f'savefig("{name}")' in block.code for block in blocks(page, "python"))
    }
    assert saved == drawn


@pytest.mark.slow
def test_the_picture_of_a_single_loop_is_drawn(tmp_path):
    script = Part("python", (ROOT / "docs" / "pictures" / "single_loop.py").read_text())
    run([script], tmp_path, "single_loop.py")
    assert "Single loop" in (tmp_path / "single-loop.svg").read_text()


EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
EXAMPLES.remove("domain_weights.py")  # benchmarks/domain_weights.py runs it, for test_measured.py


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_run(example, tmp_path):
    program = [Part("python", (ROOT / "examples" / example).read_text())]
    assert any(run(program, tmp_path, example, ("--steps", "2")))


def commands() -> set[tuple[str, str]]:
    """Return every command `bilevel …` in a block or in a line, with its page."""
    found = set()
    for page in PAGES:
        shown = [line for block in blocks(page, "sh", "bash", "") for line in block.code.splitlines()]
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


@pytest.mark.slow
def test_the_command_for_a_method_of_one_s_own_works_on_the_page_s_code(tmp_path):
    page = "docs/how-to/write-a-solver.md"
    (tmp_path / "mine.py").write_text(blocks(page, "python")[0].code + blocks(page, "python")[-1].code)
    (command,) = (command for on, command in commands() if on == page and "--method" in command)
    only = """
        from bilevel.lab import compare
        compare.METHODS = [method for method in compare.METHODS if method.name == "SOBA"]  # the others take time
        """
    assert "mine" in run([*code(only), Part("sh", command)], tmp_path)[-1]
    assert (tmp_path / "results" / "compare.csv").exists()


def in_toctrees(page: str) -> list[str]:
    """Return the pages in the toctrees of a page, written as `name` or as `Title <name>`."""
    entries = [line for block in blocks(page, "{toctree}") for line in block.code.splitlines()]
    names = [re.sub(r".*<(.*)>", r"\1", entry) for entry in entries if entry and not entry.startswith(":")]
    return [os.path.normpath(f"{os.path.dirname(page)}/{name}") for name in names]


def test_the_navigation_names_every_page_once():
    pages = [page for page in PAGES if page.startswith("docs/")]
    named = [name for page in pages for name in in_toctrees(page)]
    assert sorted([*named, "docs/index"]) == sorted(os.path.splitext(page)[0] for page in pages)


def test_links_to_files_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", (ROOT / page).read_text()):
            assert "://" in target or (ROOT / page).parent.joinpath(target).exists(), f"{page}: {target}"
