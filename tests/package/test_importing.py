"""`import bilevel` loads little and computes nothing; names do not depend on earlier imports."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import bilevel as bl

MODULES = {"adjoints", "data", "hooks", "plot", "problems", "prox", "solvers", "theory"}


def fresh(*code: str, fails: bool = False) -> str:
    """Return the output of a new interpreter, or its error output if it must fail."""
    ran = subprocess.run([sys.executable, *code], capture_output=True, text=True, timeout=100, check=False)
    assert (ran.returncode != 0) == fails, ran.stderr
    return ran.stderr if fails else ran.stdout


def written() -> dict[str, str]:
    """Return the imports that `__init__.py` shows to readers and type checkers, as name → module."""
    tree = ast.parse(Path(bl.__file__).read_text())
    shown = next(node for node in tree.body if isinstance(node, ast.If))
    assert ast.unparse(shown.test) == "TYPE_CHECKING"
    lines = [node for node in shown.body if isinstance(node, ast.ImportFrom)]
    assert all(alias.name == alias.asname for node in lines for alias in node.names)
    return {alias.name: str(node.module) for node in lines for alias in node.names}


def test_what_is_shown_is_what_is_loaded():
    assert bl.__all__ == sorted(written())
    assert set(dir(bl)) >= {*bl.__all__, "__version__"}
    for name, home in written().items():
        expected = import_module(f"{home}.{name}") if name in MODULES else getattr(import_module(home), name)
        assert getattr(bl, name) is expected
        assert isinstance(expected, ModuleType) == (name in MODULES)


def test_a_name_asked_for_after_its_module_was_imported_is_no_module(monkeypatch):
    for name in bl.__all__:
        known = getattr(bl, name)
        monkeypatch.delitem(vars(bl), name)
        assert getattr(bl, name) is known


def test_solvers_that_moved_still_work_with_a_warning():
    assert len([name for name in bl.solvers.__all__ if name in bl.__all__]) == 10
    for name in set(bl.solvers.__all__) - {"kit"} - set(bl.__all__):
        with pytest.warns(DeprecationWarning, match=f"bl.{name} is now bl.solvers.{name}"):
            assert getattr(bl, name) is getattr(bl.solvers, name)


@pytest.mark.slow
def test_names_that_are_not_there():
    with pytest.raises(AttributeError, match="module 'bilevel' has no attribute 'adi'"):
        bl.adi  # noqa: B018
    with pytest.raises(ImportError, match="adi"):
        from bilevel import adi  # noqa: F401  # pyright: ignore[reportAttributeAccessIssue]
    for name in ("__main__", "loop.run", "", "forks2", "_cli"):  # a look must not start the command line
        assert not hasattr(bl, name)
    said = fresh("-c", "import bilevel; bilevel.aidd", fails=True)
    assert "has no attribute 'aidd'. Did you mean: 'aid'?" in said


@pytest.mark.slow
def test_modules_are_there_in_a_fresh_process_whatever_was_asked_for_before():
    """Each is used as an attribute before anything imports it, and loads only its dependencies."""
    fresh(
        "-c",
        """
import sys
import bilevel as bl
assert bl.oracles is sys.modules["bilevel.oracles"] and "bilevel.solvers" not in sys.modules
from bilevel.adjoints import cg
from bilevel.hooks import Stop
import bilevel.hooks, bilevel.solvers.adjoints
assert cg is bl.adjoints.cg is bilevel.solvers.adjoints.cg and Stop is bl.hooks.Stop is bilevel.hooks.Stop
assert bl.hooks is sys.modules["bilevel.hooks"] and bl.adjoints is sys.modules["bilevel.adjoints"]
for name in ("lab", "cli", "counting", "solvers", "loop", "checks", "batch"):
    assert getattr(bl, name) is sys.modules[f"bilevel.{name}"], name
""",
    )


@pytest.mark.slow
def test_python_m_is_the_command():
    assert fresh("-m", "bilevel", "--version") == f"bilevel {bl.__version__}\n"


@pytest.mark.slow
def test_importing_loads_little_and_computes_nothing():
    """JAX accepts the number of devices only before the first computation: see the last two lines."""
    fresh(
        "-c",
        """
import sys, jax
seen = []
jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: seen.append(event))
import bilevel
ours = {name for name in sys.modules if name.startswith("bilevel")}
assert ours == {"bilevel", "bilevel.forks", "bilevel.namespaces"}, ours
loaded = lambda *names: {*names, "matplotlib", "typer", "orbax", "sklearn", "scipy", "flax", "cvxpy"} & set(sys.modules)
assert not loaded("equinox", "optax", "jaxtyping", "rich"), loaded("equinox", "optax", "jaxtyping", "rich")
from bilevel import Problem, Batch, aid, run, sweep, hooks, data
assert not loaded("rich", "bilevel.theory", "bilevel.solvers.algorithms.soba"), loaded("rich", "bilevel.theory")
from bilevel import *
assert not loaded(), loaded()
assert not seen, seen
jax.config.update("jax_num_cpu_devices", 3)
assert jax.device_count("cpu") == 3
""",
    )


@pytest.mark.slow
def test_names_first_asked_for_in_many_threads_at_once():
    """Modules that are imported later do not replace these names."""
    fresh(
        "-c",
        """
import threading, pkgutil
from types import ModuleType
import bilevel as bl

count = 8
gate, errors, found = threading.Barrier(count), [], [{} for _ in range(count)]

def ask(i):
    turn = len(bl.__all__) * i // count
    gate.wait()
    try:
        for name in bl.__all__[turn:] + bl.__all__[:turn]:
            found[i][name] = getattr(bl, name)
    except BaseException as error:
        errors.append(error)

threads = [threading.Thread(target=ask, args=(i,)) for i in range(count)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
assert not errors, errors
import bilevel.lab, bilevel.solvers.algorithms.aid, bilevel.loop.run, bilevel.loop.sweep, bilevel.loop.data.loaders
assert isinstance(bilevel.solvers.algorithms.aid, ModuleType) and isinstance(bilevel.loop.sweep, ModuleType)
for name in bl.__all__:
    assert all(one[name] is getattr(bl, name) for one in found), name
assert bl.aid is bilevel.solvers.algorithms.aid.aid and bl.sweep is bilevel.loop.sweep.sweep
""",
    )
