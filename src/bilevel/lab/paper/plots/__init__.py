"""Figures from tables. Nothing is computed here: every point is a number in a CSV file.

Each panel is a separate figure, so that a page can place two side by side or one below the other.
"""

import io
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from bilevel.atomic_files import write
from bilevel.lab.paper.plots import fig1, fig2, fig3_features, fig3_reweighting
from bilevel.lab.paper.plots.style import house_style
from bilevel.lab.paper.results import Results

DRAWINGS: dict[str, Callable[[Results], dict[str, Figure]]] = {
    "fig1": fig1.draw,
    "fig2": fig2.draw,
    "fig3-features": fig3_features.draw,
    "fig3-reweighting": fig3_reweighting.draw,
}


def draw_all(results: Results, folder: Path, formats: tuple[str, ...]) -> dict[str, list[str]]:
    """Draw every figure of the experiments that were run, in every format; return the panels by experiment."""
    panels = {}
    with house_style():
        for experiment in results.manifests:
            if experiment in DRAWINGS:
                for suffix in formats:
                    # Again for each format: saving fixes the layout at that format's resolution.
                    figures = DRAWINGS[experiment](results)
                    panels[experiment] = list(figures)
                    for name, figure in figures.items():
                        save(figure, folder / f"{name}.{suffix}")
    return panels


def save(figure: Figure, path: Path) -> None:
    # Without a date, the same tables give the same file.
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    drawn, kind = io.BytesIO(), path.suffix[1:]
    figure.savefig(drawn, format=kind, metadata=undated.get(kind))
    write(path, drawn.getvalue())
