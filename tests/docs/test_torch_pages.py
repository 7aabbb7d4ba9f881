"""The pages, programs and benchmarks that need PyTorch; without it, all of these tests are skipped."""

import importlib
import re
from pathlib import Path

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import networks_jax  # noqa: E402
import networks_torch  # noqa: E402
import ported  # noqa: E402
from contestants import CONTESTANTS  # noqa: E402
from origins import cell  # noqa: E402
from pages import ROOT, blocks, imports_torch  # noqa: E402
from race import reference, tasks  # noqa: E402
from test_documented import PAGES, check, shown  # noqa: E402
from test_measured import TORCH, check_benchmark  # noqa: E402
from test_reference import EVERY  # noqa: E402

import bilevel as bl  # noqa: E402
import bilevel.torch  # noqa: E402

TORCH_PAGES = [page for page in PAGES if shown(page) and imports_torch(page)]
HOW_TO = "docs/how-to/pytorch.md"


@pytest.mark.parametrize("page", TORCH_PAGES)
def test_the_code_of_a_page_runs_and_prints_what_it_shows(page, tmp_path):
    check(page, tmp_path)


def test_reweighting_takes_at_most_15_lines_beside_the_module():
    _, program, *_ = blocks(HOW_TO, "python")
    assert "front.load(result)" in program.code
    assert sum(bool(line.strip()) for line in program.code.splitlines()) <= 15


def test_the_messages_on_the_page_are_real():
    """tests/torch_front/test_errors.py raises them."""
    source = "".join(path.read_text() for path in Path(bl.torch.__path__[0]).glob("*.py"))
    source = re.sub(r'"\s*\n\s*f?"', "", source)
    messages = re.findall(r'^\|[^|]*\| "([^"]+)" \|', (ROOT / HOW_TO).read_text(), re.MULTILINE)
    assert len(messages) > 5
    assert [each for each in messages if each not in source] == []


def test_the_tested_version_is_that_of_continuous_integration():
    (version,) = re.findall(r"torch==([\d.]+)", (ROOT / ".ci" / "run").read_text())
    assert f"Tested with torch `{version}` on a CPU" in (ROOT / HOW_TO).read_text()


def test_every_public_name_is_in_the_reference():
    assert {f"bilevel.torch.{name}" for name in bl.torch.__all__} == {
        name for name in EVERY if name.startswith("bilevel.torch.")
    }


@pytest.mark.parametrize("program", ported.PROGRAMS, ids=lambda program: program.module)
def test_a_ported_program_has_the_result_of_the_original(program):
    """The number on the page is that of the other library."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as a user has it
        norm = np.linalg.norm(program.solve(program.module, ported.STEPS))
    assert norm == pytest.approx(cell("ported", program.title, "norm of its result"), abs=1e-8)


@pytest.mark.parametrize("program", ported.PROGRAMS, ids=lambda program: program.module)
def test_a_ported_program_is_shown_whole(program):
    source = (ported.FOLDER / f"{program.original}.py").read_text().split('"""', 2)[2].strip()
    assert source in [block.code.strip() for block in blocks("docs/how-to/elsewhere.md", "py")]


@pytest.mark.parametrize("method", ["itd", "soba"])
def test_the_front_arrives_at_the_iterates_of_the_race(method):
    (contestant,) = (each for each in CONTESTANTS if each.module == "with_front")
    assert method in [entry.method for entry in contestant.entries]
    task = tasks.QUICK[method]()
    found = getattr(importlib.import_module("contestants.with_front"), method)(task, 0.0)()
    assert reference.error(task, found, reference.iterates(method, task)) <= task.tolerance


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt", "lstm"])
def test_the_networks_of_the_benchmark_are_the_same(name):
    task = networks_torch.tasks("tiny")[name]
    torch.manual_seed(0)
    model, data = task.build(), networks_torch.data_of(task)
    start = bl.torch.front(model, inner=networks_torch.inner, outer=networks_torch.outer).start
    network = networks_jax.networks(task.heads)[name]
    state = start["model_state"] or {}
    for train in (True, False):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            outputs, new = network(start["y0"], state, np.asarray(data.outer[0]), train)
        theirs = model.train(train)(data.outer[0])
        np.testing.assert_allclose(outputs, theirs.detach(), atol=1e-5)
        for key, value in new.items():
            np.testing.assert_allclose(value, model.state_dict()[key.removeprefix("model.")], atol=1e-6)
        state = new


@pytest.mark.parametrize("script", TORCH)
def test_a_benchmark_still_writes_what_pages_show_of_it(script, tmp_path):
    check_benchmark(script, tmp_path)
