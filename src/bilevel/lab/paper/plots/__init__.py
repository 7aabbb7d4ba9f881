"""Figures from tables. Nothing is computed here: every point is a number in a CSV file.

Each panel is a separate figure. So a page can place two side by side or one below the other.
"""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from bilevel.lab.figures import save_figure
from bilevel.lab.paper.plots import drawings
from bilevel.lab.paper.plots.style import house_style
from bilevel.lab.paper.registry import Results

DRAWINGS: dict[str, dict[str, Callable[[Results], Figure]]] = {  # by experiment, then by panel
    "fig1": {"fig1_left": drawings.aid_over_kappa, "fig1_right": drawings.aid_over_steps},
    "fig2": {"fig2_left": drawings.itd_bounds, "fig2_right": drawings.itd_scaled},
    "fig3-features": {"fig3_features": drawings.fit, "fig3_features_variants": drawings.variants},
    "fig3-reweighting": {"fig3_reweighting": drawings.losses, "fig3_weights": drawings.weights},
}


def draw_all(results: Results, folder: Path, formats: tuple[str, ...]) -> dict[str, list[str]]:
    """Draw every figure of the experiments that were run, in every format; return the panels."""
    panels = {name: DRAWINGS[name] for name in results.manifests if name in DRAWINGS}
    with house_style():
        for suffix in formats:
            for functions in panels.values():
                for name, draw in functions.items():
                    # Again for each format: saving fixes the layout at that format's resolution.
                    save_figure(draw(results), folder / f"{name}.{suffix}")
    return {experiment: list(names) for experiment, names in panels.items()}
