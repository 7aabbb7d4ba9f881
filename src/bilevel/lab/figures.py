"""Figures as files."""

import io
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bilevel.atomic_files import write

UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # so that equal figures give equal files


def save_figure(figure: Figure, path: Path, **options: Any) -> Path:
    """Write the figure to `path` in the format of its suffix; the file appears complete or not at all."""
    drawn, kind = io.BytesIO(), path.suffix[1:]
    figure.savefig(drawn, format=kind, metadata=UNDATED.get(kind), **options)
    return write(path, drawn.getvalue())
