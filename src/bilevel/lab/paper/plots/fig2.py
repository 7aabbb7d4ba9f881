"""Figure 2: ITD's inherent error over κ, between the bounds; and Theorem 5.17's bound scaled onto the curves."""

from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bilevel.lab.paper.plots import style
from bilevel.lab.paper.results import Results
from bilevel.lab.paper.tables import select

CURVES: dict[str, tuple[str, style.Look]] = {
    "earlier": ("earlier bound", style.EARLIER),
    "paper": ("Theorem 5.17's bound", style.PAPER),
    "sharp": ("same lemmas, exact gain", style.SHARP),
}
SCALED: dict[str, style.Look] = {
    "measured_limit": {"color": style.SKY, "linestyle": "-"},
    "lower_bound_strict": {"color": style.SKY, "linestyle": "-."},
}


def draw(results: Results) -> dict[str, Figure]:
    return {"fig2_left": bounds(results), "fig2_right": scaled(results)}


def bounds(results: Results) -> Figure:
    figure, axes = style.panel("ITD's inherent error, bounded")
    limits = results["fig2_limit.csv"]
    for name, (label, look) in CURVES.items():
        rows = select(results["fig2_kappa.csv"], M_is="paper", analysis=name)
        axes.plot(rows["kappa"], rows["inherent"], label=label, **look)
    axes.plot(limits["kappa"], limits["lower_bound"], label="lower bound", **style.LOWER)
    axes.plot(limits["kappa"], limits["measured_limit"], label="measured limit", **style.MEASURED)
    star = select(results["fig2_kappa.csv"], M_is="paper", analysis="star")
    axes.plot(star["kappa"], star["inherent"], label="star's bound, α = 2/(L + μ)", **style.STAR)
    axes.plot(limits["kappa"], limits["measured_limit_star"], label="its measured limit", **style.STAR_RUN)
    return _finished(figure, axes, "upper left")


def scaled(results: Results) -> Figure:
    figure, axes = style.panel("Theorem 5.17's bound, scaled")
    limits = results["fig2_limit.csv"]
    paper = select(results["fig2_kappa.csv"], M_is="paper", analysis="paper")
    axes.plot(paper["kappa"], paper["inherent"], label="Theorem 5.17's bound", **style.PAPER)
    for curve, look in SCALED.items():
        factor = select(results["fig2_factors.csv"], curve=curve)["factor"][0]
        axes.plot(limits["kappa"], limits[f"scaled_to_{curve}"], label=f"the bound × {factor:.2f}", **look)
    axes.plot(
        limits["kappa"], limits["measured_limit"], label="measured limit = lower bound", **style.MEASURED
    )
    strict = limits["lower_bound_strict"]
    axes.plot(limits["kappa"], strict, label="lower bound, joint assumptions", **style.LOWER)
    return _finished(figure, axes, "lower right")


def _finished(figure: Figure, axes: Axes, legend: Literal["upper left", "lower right"]) -> Figure:
    style.kappa_axis(axes, (1.5, 2, 3, 5, 10, 20))
    axes.set_yscale("log")
    axes.set_ylabel("lim ‖∇Φ(x_K)‖² (log scale)")
    axes.legend(loc=legend)
    return figure
