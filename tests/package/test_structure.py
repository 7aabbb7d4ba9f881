"""Rules of structure that hold for every file of the package, read from its syntax trees."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import bilevel

ROOT = Path(bilevel.__file__).parent
TREES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in ROOT.rglob("*.py")}
SOLVERS = {
    path: tree
    for path, tree in TREES.items()
    if path.startswith("solvers/algorithms/")
    or path in ("solvers/parts/penalty.py", "solvers/parts/tasks.py")
}
LOOP = {path: tree for path, tree in TREES.items() if path.startswith("loop/")}
ERRORS = ("Error", "Exception")  # how the names of exception classes end
TEXT = {"args", "msg", "message", "__notes__"}  # attributes with the words of an exception
QUESTIONS = {"startswith", "endswith", "find", "index", "count", "match", "fullmatch", "search", "findall"}
# Turns the number of an error of the operating system into the system's words; the number is only in the text.
ALLOWED = {"loop/checkpoints/folder.py": {"reason"}}


def calls(node: ast.AST, *names: str) -> Iterator[ast.Call]:
    """Find calls of plain functions with these names."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in names:
            yield each


def caught(function: ast.AST) -> set[str]:
    """Return the names under which a function knows exceptions."""
    names = {each.name for each in ast.walk(function) if isinstance(each, ast.ExceptHandler) and each.name}
    for each in ast.walk(function):
        if isinstance(each, ast.arg) and each.annotation is not None:
            words = {name.id for name in ast.walk(each.annotation) if isinstance(name, ast.Name)}
            names |= {each.arg} if any(word.endswith(ERRORS) for word in words) else set()
    return names


def is_text(node: ast.AST, errors: set[str], texts: set[str]) -> bool:
    """Return whether an expression contains the words of an exception."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and each.id in texts:
            return True
        if isinstance(each, ast.Attribute) and each.attr in TEXT and named(each.value) in errors:
            return True
        if isinstance(each, ast.FormattedValue) and named(each.value) in errors:
            return True
    return any(named(call.args[0]) in errors for call in calls(node, "str", "repr") if call.args)


def named(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def decisions_on_text(function: ast.AST) -> Iterator[str]:
    """Find comparisons, searches and questions about the words of an exception."""
    errors = caught(function)
    texts = {
        target.id
        for each in ast.walk(function)
        if isinstance(each, ast.Assign) and is_text(each.value, errors, set())
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    for each in ast.walk(function):
        if isinstance(each, ast.Compare) and is_text(each, errors, texts):
            yield ast.unparse(each)
        asks = isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute)
        if asks and each.func.attr in QUESTIONS and is_text(each, errors, texts):
            yield ast.unparse(each)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    yield from (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef))


@pytest.mark.slow
def test_no_decision_depends_on_the_text_of_an_exception():
    found = [
        f"{path}: {function.name}: {words}"
        for path, tree in TREES.items()
        for function in functions(tree)
        if function.name not in ALLOWED.get(path, ())
        for words in decisions_on_text(function)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "body",
    [
        'if "words" in str(error): return 1',
        'return str(error) == "words"',
        'return f"{error}" == "words"',
        'text = str(error); return text.startswith("words")',
        'return error.args[0] == "words"',
        'return re.search("words", str(error))',
    ],
)
def test_the_check_finds_decisions_on_text(body):
    for code in (
        f"def f(error: Exception):\n    {body}",
        f"def f():\n  try: pass\n  except ValueError as error:\n    {body}",
    ):
        assert list(decisions_on_text(ast.parse(code)))


def test_no_attribute_of_a_hook_is_probed():
    probed = [
        f"{path}:{call.lineno}"
        for path, tree in TREES.items()
        for call in calls(tree, "getattr")
        if named(call.args[0]) == "hook"
    ]
    assert not probed


def test_functions_are_compared_by_is():
    """Only three classes define equality, all through `is`; no comparison looks into a function."""
    inside = {"__code__", "__closure__", "__defaults__", "__globals__", "co_code", "co_consts"}
    equal = {
        f"{path}: {each.name}"
        for path, tree in TREES.items()
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef) and any(f.name == "__eq__" for f in functions(each))
    }
    assert equal == {
        "identity.py: Static",
        "readings/__init__.py: Reading",
        "solvers/rule_closures.py: Closures",
    }
    compared = [
        f"{path}:{each.lineno}"
        for path, tree in TREES.items()
        for each in ast.walk(tree)
        if isinstance(each, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq) for op in each.ops)
        if any(isinstance(part, ast.Attribute) and part.attr in inside for part in ast.walk(each))
    ]
    assert not compared


def solver_names() -> tuple[set[str], set[str]]:
    """Return the names of the classes of solvers, and the names that they print."""
    classes, shown = set(), set()
    for tree in SOLVERS.values():
        for each in ast.walk(tree):
            if isinstance(each, ast.ClassDef):
                names = [
                    part.value.value
                    for part in each.body
                    if isinstance(part, ast.AnnAssign) and named(part.target) == "name"
                    if isinstance(part.value, ast.Constant)
                ]
                shown.update(names)
                classes |= {each.name} if names else set()
    return classes, shown


def is_solver(node: ast.AST) -> bool:
    """Return whether it is `solver` or an attribute of that name; `run.solver` is the state of one."""
    return (
        ast.unparse(node) not in ("run.solver", "at.solver")
        and ast.unparse(node).split(".")[-1].lstrip("_") == "solver"
    )


def test_the_loop_names_no_solver():
    """Sentences may recommend one; no decision depends on the class, the name or an attribute of a solver."""
    classes, shown = solver_names()
    assert {"AID", "SOBA", "ITD"} <= classes & shown
    assert len(classes) > 30
    found = []
    for path, tree in LOOP.items():
        for each in ast.walk(tree):
            wrong = (
                (isinstance(each, ast.ImportFrom) and "solvers.algorithms" in (each.module or ""))
                or (isinstance(each, ast.Name) and each.id in classes)
                or (isinstance(each, ast.Constant) and each.value in shown)
                or (isinstance(each, ast.Compare) and "solver.name" in ast.unparse(each))
            )
            if wrong:
                found.append(f"{path}:{each.lineno}: {ast.unparse(each)}")
        found += [
            f"{path}:{call.lineno}: {ast.unparse(call)}"
            for call in calls(tree, "hasattr", "getattr")
            if is_solver(call.args[0])
        ]
    assert not found, "\n".join(found)


def test_every_solver_declares_its_traits_as_data():
    """A property of a method is a field of `Traits`, not an attribute of one class."""
    declared = {
        f"{path}: {part.target.id}"
        for path, tree in SOLVERS.items()
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef)
        for part in each.body
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
        if ast.unparse(part.annotation).startswith("ClassVar")
    }
    assert {entry.partition(": ")[2] for entry in declared} <= {"name", "variables", "traits", "solves"}
