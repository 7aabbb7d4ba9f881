"""SECURITY.md is right: nothing runs code from data, and one module uses the network."""

import ast
from pathlib import Path

import pytest

import bilevel
from bilevel.applications import MODULES
from bilevel.data import counties, digits, download

ROOT = Path(bilevel.__file__).parent
SOURCES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))
}
CODE_FROM_DATA = {
    "pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "subprocess", "pty", "code",
    "tarfile",
}  # fmt: skip
NETWORK = {
    "urllib.request",
    "http.client",
    "http.server",
    "socket",
    "ssl",
    "ftplib",
    "requests",
    "httpx",
    "aiohttp",
}


def imports(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def calls(tree: ast.AST) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def keywords(tree: ast.AST) -> set[str]:
    return {
        word.arg
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for word in node.keywords
        if word.arg
    }


def test_the_search_finds_what_it_is_meant_to_find():
    tree = ast.parse("import pickle\nfrom urllib import request\neval('1')\nnp.load(f, allow_pickle=True)")
    assert {"pickle", "urllib.request"} <= imports(tree)
    assert "eval" in calls(tree)
    assert "allow_pickle" in keywords(tree)


@pytest.mark.slow
def test_no_code_is_made_out_of_data():
    for path, tree in SOURCES.items():
        assert not {name.split(".")[0] for name in imports(tree)} & CODE_FROM_DATA, path
        assert not calls(tree) & {"eval", "exec", "compile", "os.system", "os.popen", "__import__"}, path
        assert not keywords(tree) & {"allow_pickle", "shell"}, path


@pytest.mark.slow
def test_one_module_reads_archives_and_none_unpacks_them():
    assert {path for path, tree in SOURCES.items() if "zipfile" in imports(tree)} == {"data/characters.py"}
    for path, tree in SOURCES.items():
        methods = {call.rsplit(".", 1)[-1] for call in calls(tree)}
        assert not methods & {"extract", "extractall", "unpack_archive"}, path


def test_one_module_uses_the_network():
    assert {path for path, tree in SOURCES.items() if imports(tree) & NETWORK} == {"data/download.py"}


def imports_what_it_is_told(tree: ast.AST) -> bool:
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [node for node in found if ast.unparse(node.func) in ("importlib.import_module", "import_module")]
    return any(not isinstance(node.args[0], ast.Constant) for node in named)


@pytest.mark.slow
def test_modules_are_imported_by_name_in_one_place():
    """`--method` and `--task` of the comparison; packages and applications import the entries of their tables."""
    told = {path for path, tree in SOURCES.items() if imports_what_it_is_told(tree)}
    assert told == {"namespaces.py", "applications/__init__.py", "lab/compare/plugins.py"}
    assert all(name.isidentifier() for name in MODULES.values())
    for package in (bilevel, bilevel.plot, bilevel.solvers):
        assert all(home.startswith("bilevel.") for home in package._HOMES.values())


def test_the_numbers_are_those_of_the_code():
    text = (Path(__file__).parents[2] / "SECURITY.md").read_text()
    assert f"at most {download.LARGEST // 2**20} MiB" in text
    assert "ten minutes" in text
    assert download.DEADLINE_SECONDS == 10 * 60
    assert digits.LARGEST_FILE >= 16 + 60_000 * 28 * 28
    assert counties.LARGEST_FILE >= 565_473
