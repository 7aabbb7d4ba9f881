"""No file of the package is long: one idea per file."""

from pathlib import Path

import bilevel

SOURCE = Path(bilevel.__file__).parent
MOST_LINES = 300


def test_no_file_is_long():
    lines = {
        path.relative_to(SOURCE).as_posix(): path.read_text().count("\n") for path in SOURCE.rglob("*.py")
    }
    too_long = {name: count for name, count in lines.items() if count > MOST_LINES}
    assert not too_long, f"at most {MOST_LINES} lines"
