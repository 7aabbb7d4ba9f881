"""Every module is reachable by its path: no function hides a module, and no module hides a function."""

import importlib
import sys
from functools import reduce
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import bilevel
from bilevel import theory

ROOT = Path(bilevel.__file__).parent
# Read from the disk, because pkgutil.walk_packages skips packages that cannot be imported.
PATHS = sorted(path.relative_to(ROOT.parent).with_suffix("") for path in ROOT.rglob("*.py"))
MODULES = [".".join(path.parts).removesuffix(".__init__") for path in PATHS]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_every_module_is_importable_and_reachable_by_its_path(name):
    """`import a.b.c` and the attribute `a.b.c` agree, which a re-export of the module's own name would break."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "bilevel").startswith("bilevel"):
            raise
        pytest.skip(f"{name} needs {error.name}, which is an extra")
    assert isinstance(module, ModuleType)
    assert module.__doc__, f"{name} has no docstring"
    reached = reduce(getattr, name.split(".")[1:], bilevel)
    assert reached is sys.modules[name], f"{name} is hidden behind {reached!r}"


def test_every_folder_of_modules_is_a_package():
    folders = {path.parent for path in ROOT.rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_the_public_functions_of_theory_are_functions():
    for name in ("advise", "aid", "estimate", "exact", "itd", "judge", "lower_bound", "measure", "verify"):
        assert isinstance(getattr(theory, name), FunctionType)
        assert f"bilevel.theory.{name}" not in MODULES
    for name in ("prior", "recursions", "sharp", "tight"):
        assert isinstance(getattr(theory, name), ModuleType)
