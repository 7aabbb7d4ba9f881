"""Figures from tables. Nothing is computed here: every point is a number in a CSV file.

Each panel is a separate figure. So a page can place two side by side or one below the other.
"""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from bilevel.lab.figures import save_figure
from bilevel.lab.paper.plots import quadratic, real_data
from bilevel.lab.paper.plots.style import house_style
from bilevel.lab.paper.results import Results

DRAWINGS: dict[str, Callable[[Results], dict[str, Figure]]] = {
    "fig1": quadratic.draw_fig1,
    "fig2": quadratic.draw_fig2,
    "fig3-features": real_data.draw_features,
    "fig3-reweighting": real_data.draw_reweighting,
}


def draw_all(results: Results, folder: Path, formats: tuple[str, ...]) -> dict[str, list[str]]:
    """Draw every figure of the experiments that were run, in every format; return the panels."""
    panels = {}
    with house_style():
        for experiment in results.manifests:
            if experiment in DRAWINGS:
                for suffix in formats:
                    # Again for each format: saving fixes the layout at that format's resolution.
                    figures = DRAWINGS[experiment](results)
                    panels[experiment] = list(figures)
                    for name, figure in figures.items():
                        save_figure(figure, folder / f"{name}.{suffix}")
    return panels
