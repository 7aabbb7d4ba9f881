"""Tables that pages show: printed, and with `--record docs/measured` written where the pages include them from.

A benchmark whose tables stand on a page takes `--record` and `--quick`. The second is the same with the least work
that fills every column, and is what the tests run (`tests/docs/test_measured.py`): the columns and the names of the
rows have to be those of the file on the page, and so have the numbers of a table that is `repeatable`.
"""

import argparse
import datetime
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bilevel.atomic_files import try_folder, write
from bilevel.lab.paper.environment import machine


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--record", type=_folder, metavar="FOLDER", help="write every table for its page: docs/measured"
    )
    parser.add_argument(
        "--quick", action="store_true", help="least work: to see that it runs, not for the numbers"
    )


def _folder(name: str) -> Path:
    """Refused before anything is measured, not after."""
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try_folder(folder)
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"cannot write into {name!r}: {error}") from error
    return folder


def table(
    name: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    folder: Path | None = None,
    *,
    repeatable: bool = False,
    libraries: Sequence[str] = (),
) -> None:
    """Print it row by row as Markdown, and write it as `folder/name.md` with what made it below.

    Args:
        name: of the file, and unique.
        columns: their heads. The first one's cells are the names of the rows.
        rows: may be computed as they are asked for.
        folder: nothing is written without one.
        repeatable: the numbers are the same on every machine to the digits shown: no timings, no long chaotic runs.
        libraries: further ones whose version matters.
    """
    lines = []
    for cells in (columns, ["---"] * len(columns), *rows):
        assert len(cells) == len(columns), cells
        lines.append("| " + " | ".join(map(str, cells)) + " |")
        print(lines[-1], flush=True)
    print(flush=True)
    if folder is not None:
        about = f"<!-- {'repeatable' if repeatable else 'measured'} -->"
        write(folder / f"{name}.md", "\n".join([about, "", *lines, "", made_by(libraries), ""]).encode())


def made_by(libraries: Sequence[str] = ()) -> str:
    """The command without its folder, the day, versions and machine."""
    words = [word for word in sys.argv[1:] if not word.startswith("--record=")]
    if "--record" in words:
        del words[(at := words.index("--record")) : at + 2]
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])
    with_what = ", ".join(f"{each} {version(each)}" for each in ("jax", *libraries))
    return f"*`{command}`, {datetime.date.today()}: {with_what}; {machine()}.*"
