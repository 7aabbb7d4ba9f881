"""Layers: the core imports nothing that is built on it, and no two folders import each other."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import bilevel

ROOT = Path(bilevel.__file__).parent
SATELLITES = {
    "applications", "cleaning", "cli", "data", "lab", "plot", "problems", "row_weights", "sklearn", "theory",
    "torch",
}  # fmt: skip
DEPENDENCIES = {"equinox", "jax", "jaxtyping", "numpy", "optax"}  # of the core
FORBIDDEN_TO_THEORY = {"applications", "cleaning", "cli", "lab", "plot", "problems", "sklearn", "torch"}


def modules() -> dict[str, Path]:
    paths = {
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts): path for path in ROOT.rglob("*.py")
    }
    return {name.removesuffix(".__init__"): path for name, path in paths.items()}


@cache
def imports() -> set[tuple[str, str, str]]:
    """Every import between our modules as (module, imported module, "file:line"), also inside functions."""
    known, found = modules(), set()
    for name, path in known.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                package = name if path.name == "__init__.py" else name.rpartition(".")[0]
                parents = package.split(".")[: len(package.split(".")) - max(node.level - 1, 0)]
                base = ".".join([*(parents if node.level else []), *filter(None, [node.module])])
                full = [f"{base}.{alias.name}" for alias in node.names]
                targets = [target if target in known else base for target in full]
            else:
                continue
            ours = [target for target in targets if target.split(".")[0] == "bilevel"]
            found |= {(name, target, f"{path.relative_to(ROOT)}:{node.lineno}") for target in ours}
    return found


def part(module: str) -> str:
    """The folder, or the file at the top, that a module belongs to; empty for the package root."""
    return module.partition(".")[2].partition(".")[0]


def between(sources: set[str], targets: set[str]) -> list[str]:
    return sorted(
        f"{where} imports {target}"
        for source, target, where in imports()
        if part(source) in sources and part(target) in targets
    )


def test_the_parser_sees_imports_of_every_form():
    seen = {(part(source), part(target)) for source, target, _ in imports()}
    assert {("loop", "solvers"), ("data", "data"), ("theory", "loop"), ("problems", "theory")} <= seen
    assert len(imports()) > 1000


def test_the_core_imports_nothing_that_is_built_on_it():
    core = {part(name) for name in modules()} - SATELLITES - {""}
    assert core >= {"batch", "checks", "loop", "oracles", "problem", "prox", "readings", "solvers", "types"}
    assert between(core, SATELLITES) == []


def test_theory_knows_neither_the_laboratory_nor_the_applications():
    assert between({"theory"}, FORBIDDEN_TO_THEORY) == []


def test_the_loop_and_the_solvers_are_layers():
    assert between({"solvers"}, {"loop", "counting"}) == []
    assert between({"loop"}, {"counting"}) == []
    assert between({"batch", "checks", "oracles", "problem", "prox", "types"}, {"loop", "solvers"}) == []


def test_no_folders_import_each_other():
    """The package root is left out: it loads every public name on demand, and other modules read its version."""
    graph = {part(name): set() for name in modules()}
    for source, target, _ in imports():
        graph[part(source)].add(part(target))

    def reachable(start: str) -> set[str]:
        seen, ahead = set(), graph[start] - {start, ""}
        while ahead:
            seen |= ahead
            ahead = set(chain.from_iterable(graph[each] for each in ahead)) - seen - {""}
        return seen

    assert [name for name in sorted(graph) if name and name in reachable(name)] == []


def libraries(nodes: list[ast.stmt]) -> Iterator[str]:
    """Find the libraries that these statements import, without those inside functions."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]
        elif isinstance(node, ast.Try | ast.With) or (
            isinstance(node, ast.If) and ast.unparse(node.test) != "TYPE_CHECKING"
        ):
            yield from libraries(node.body)


def test_the_core_needs_five_libraries():
    """Others are imported inside the functions that need them; rich is for hooks that draw, loaded with them."""
    allowed = {*sys.stdlib_module_names, *DEPENDENCIES, "bilevel", "bilevel_command", "jaxlib"}
    wrong = {
        (path.relative_to(ROOT).as_posix(), library)
        for name, path in modules().items()
        if part(name) not in SATELLITES
        for library in libraries(ast.parse(path.read_text()).body)
        if library not in allowed and (library != "rich" or not name.startswith("bilevel.loop.hooks."))
    }
    assert not wrong


def test_the_dependencies_are_declared():
    project = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["project"]
    declared = {requirement.partition(">=")[0] for requirement in project["dependencies"]}
    assert declared == DEPENDENCIES | {"matplotlib", "rich", "typer"}


def test_importing_bilevel_loads_no_library_that_only_satellites_use():
    program = "import bilevel, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {"matplotlib", "rich", "sklearn", "torch", "typer"} & set(done.stdout.split()) == set()
