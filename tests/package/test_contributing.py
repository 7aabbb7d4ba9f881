"""CONTRIBUTING.md is correct: every path in it exists, and its map has every folder."""

import re
from pathlib import Path

import bilevel

SOURCE = Path(bilevel.__file__).parent
ROOT = SOURCE.parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
PATH = re.compile(r"`((?:[\w.-]+/)+(?:[\w-]+\.\w+)?|[\w-]+\.(?:py|md|toml|cff))`")
MADE = {"benchmarks/NAME.py", "build/site/index.html"}  # a pattern, and the output of a command


def paths() -> list[str]:
    """Return everything in code that looks like a path."""
    return PATH.findall(TEXT)


def test_every_path_exists():
    assert len(paths()) > 60
    missing = [
        path
        for path in paths()
        if not any((folder / path).exists() for folder in (SOURCE, ROOT)) and path not in MADE
    ]
    assert not missing


def test_the_map_has_every_folder_of_the_package():
    folders = {path.parent for path in SOURCE.glob("*/__init__.py")} | {
        path.parent
        for name in ("loop", "solvers", "theory", "lab")
        for path in SOURCE.glob(f"{name}/*/__init__.py")
    }
    named = {f"{folder.relative_to(SOURCE)}/" for folder in folders}
    covered = {
        path for path in named if any(path.startswith(each) or each.startswith(path) for each in paths())
    }
    assert named - covered == set()
    below = {path for path in named if "/" in path[:-1]}
    assert below - set(paths()) == set()


def test_every_task_names_a_file_or_folder_of_the_package():
    (section,) = re.findall(r"### To change something\n(.*?)\n## ", TEXT, re.DOTALL)
    tasks = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(tasks) >= 12
    for task in tasks:
        opened = PATH.findall(task.split("|")[2])
        assert any((SOURCE / path).exists() for path in opened), task
