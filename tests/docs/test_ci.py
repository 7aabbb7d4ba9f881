"""`.ci/run` with stand-ins for its programs: a failure of one is shown, ends it, and leaves no process running."""

import os
import select
import shutil
import subprocess

import pytest
from pages import ROOT

TOOLS = (
    "bilevel",
    "chromium",
    "pip",
    "pyright",
    "pytest",
    "python",
    "python3",
    "python3.12",
    "python3.13",
    "ruff",
    "sphinx-build",
)
STAND_IN = r"""#!/usr/bin/env bash
called="$(basename "$0") $*"
echo "$called" >> "$CALLS"
case "$called" in
  python*" -m venv "*) mkdir -p "$3/bin" && : > "$3/bin/activate" ;;
  "python .ci/package.py "*) mkdir -p "$2" && : > "$2/one.whl" ;;
  "bilevel reproduce"*) mkdir -p results/quick && echo report > results/quick/report.html ;;
esac
if [ "$called" = "$STAYS" ]; then : > "$CALLS.stays" && exec sleep 60; fi
if [ "$called" = "$FAILS" ] && mkdir "$CALLS.failed" 2>/dev/null; then
  until [ -z "$STAYS" ] || [ -e "$CALLS.stays" ]; do sleep 0.05; done
  echo "no luck"
  exit 3
fi
"""


@pytest.fixture
def checkout(tmp_path):
    """Make a folder with a space in its name that has only the script and the stand-ins."""
    folder = tmp_path / "a checkout"
    (folder / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci")
    (folder / "bin").mkdir()
    for tool in TOOLS:
        (folder / "bin" / tool).write_text(STAND_IN)
        (folder / "bin" / tool).chmod(0o755)
    return folder


def ran(checkout, fails="", stays="", **options):
    (checkout / "temporary files").mkdir()
    calls = checkout / "calls"
    given = {
        "PATH": f"{checkout / 'bin'}:{os.environ['PATH']}",  # and no HOME
        "TMPDIR": str(checkout / "temporary files"),
        "CALLS": str(calls),
        "FAILS": fails,
        "STAYS": stays,
    }
    command = ["bash", str(checkout / ".ci" / "run")]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False, **options)
    assert list((checkout / "temporary files").iterdir()) == []
    return done, calls.read_text().splitlines()


def test_all_of_it_is_run(checkout):
    done, calls = ran(checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "done" in done.stdout.splitlines()[-1]
    torch = "pytest tests/torch_front tests/docs/test_torch_pages.py tests/package/test_layout.py"
    assert {"pytest ", torch, "pytest -m not slow", "python benchmarks/reliability.py"} <= set(calls)


@pytest.mark.parametrize(
    "fails",
    [
        "pip install -q -e .[test]",
        "pytest ",
        "pytest tests/torch_front tests/docs/test_torch_pages.py tests/package/test_layout.py",
        "ruff check .",
        "python benchmarks/reliability.py",
        "pip check",
    ],
)
def test_what_fails_once_fails_all_and_is_seen(checkout, fails):
    done, _ = ran(checkout, fails)
    assert done.returncode == 3
    assert "no luck" in done.stdout


def test_a_failure_in_one_lane_ends_the_other(checkout):
    """All of its processes hold a pipe open, which ends with the last of them."""
    held, open_end = os.pipe()
    done, _ = ran(checkout, "ruff check .", "python benchmarks/reliability.py", pass_fds=[open_end])
    os.close(open_end)
    ended, _, _ = select.select([held], [], [], 20)
    os.close(held)
    assert ended, "a process of the other lane is still running"
    assert done.returncode == 3
    assert "faults: 50 kills" in done.stdout  # the output of the other lane
