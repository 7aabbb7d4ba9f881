"""Figures 1 and 2: AID over κ and over K, and ITD's inherent error over κ between its bounds.

In Figure 1 a bound and the run with its step sizes share a color.
"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bilevel.lab.paper.plots import style
from bilevel.lab.paper.results import Results
from bilevel.lab.paper.tables import Table, select

Labeled = dict[str, tuple[str, style.Look]]
AID_BOUNDS: Labeled = {
    "earlier": ("earlier bound", style.EARLIER),
    "paper": ("Theorem 5.9's bound", style.PAPER),
    "sharp": ("same lemmas, exact gain", style.SHARP),
    "star": ("star's bound (κ⁴)", style.STAR),
}
AID_RUNS: Labeled = {
    "paper": ("run with Theorem 5.9's steps", style.PAPER_RUN),
    "sharp": ("run with exact gain's steps", style.SHARP_RUN),
    "star": ("run with star's steps", style.STAR_RUN),
}
ITD_BOUNDS: Labeled = {
    "earlier": ("earlier bound", style.EARLIER),
    "paper": ("Theorem 5.17's bound", style.PAPER),
    "sharp": ("same lemmas, exact gain", style.SHARP),
}
SCALED: dict[str, style.Look] = {
    "measured_limit": {"color": style.SKY, "linestyle": "-"},
    "lower_bound_strict": {"color": style.SKY, "linestyle": "-."},
}
KAPPAS = (1.5, 2, 3, 5, 10, 20)
MEAN, LIMIT = "mean of ‖∇Φ(x_k)‖² (log scale)", "lim ‖∇Φ(x_K)‖² (log scale)"


def draw_fig1(results: Results) -> dict[str, Figure]:
    return {"fig1_left": aid_over_kappa(results), "fig1_right": aid_over_steps(results)}


def draw_fig2(results: Results) -> dict[str, Figure]:
    return {"fig2_left": itd_bounds(results), "fig2_right": itd_scaled(results)}


def aid_over_kappa(results: Results) -> Figure:
    figure, axes = style.panel(f"AID after K = {results.setting('fig1', 'steps'):,} steps")
    _curves(axes, results["fig1_kappa.csv"], "kappa", "bound", AID_BOUNDS)
    _curves(axes, results["fig1_kappa.csv"], "kappa", "measured", AID_RUNS)
    style.kappa_axis(axes, KAPPAS)
    return style.finish(figure, axes, MEAN, "upper left")


def aid_over_steps(results: Results) -> Figure:
    figure, axes = style.panel(f"AID at κ = {results.setting('fig1', 'kappa_right'):g}")
    table = results["fig1_steps.csv"]
    _curves(axes, table, "steps", "bound", AID_BOUNDS)
    _curves(axes, table, "steps", "measured", AID_RUNS)
    last = {"paper": ("Theorem 5.9's steps, last iterate", {"color": style.BLACK, "linewidth": 1})}
    _curves(axes, table, "steps", "last", last)
    axes.set_xscale("log")
    axes.set_xlabel("outer iterations K (log scale)")
    return style.finish(figure, axes, MEAN, "lower left")


def itd_bounds(results: Results) -> Figure:
    figure, axes = style.panel("ITD's inherent error, bounded")
    limits, table = results["fig2_limit.csv"], results["fig2_kappa.csv"]
    _curves(axes, table, "kappa", "inherent", ITD_BOUNDS)
    axes.plot(limits["kappa"], limits["lower_bound"], label="lower bound", **style.LOWER)
    axes.plot(limits["kappa"], limits["measured_limit"], label="measured limit", **style.MEASURED)
    _curves(axes, table, "kappa", "inherent", {"star": ("star's bound, α = 2/(L + μ)", style.STAR)})
    axes.plot(limits["kappa"], limits["measured_limit_star"], label="its measured limit", **style.STAR_RUN)
    style.kappa_axis(axes, KAPPAS)
    return style.finish(figure, axes, LIMIT, "upper left")


def itd_scaled(results: Results) -> Figure:
    figure, axes = style.panel("Theorem 5.17's bound, scaled")
    limits = results["fig2_limit.csv"]
    kappa, measured, strict = (limits[name] for name in ("kappa", "measured_limit", "lower_bound_strict"))
    _curves(axes, results["fig2_kappa.csv"], "kappa", "inherent", {"paper": ITD_BOUNDS["paper"]})
    for curve, look in SCALED.items():
        factor = select(results["fig2_factors.csv"], curve=curve)["factor"][0]
        axes.plot(kappa, limits[f"scaled_to_{curve}"], label=f"the bound × {factor:.2f}", **look)
    axes.plot(kappa, measured, label="measured limit = lower bound", **style.MEASURED)
    axes.plot(kappa, strict, label="lower bound, joint assumptions", **style.LOWER)
    style.kappa_axis(axes, KAPPAS)
    return style.finish(figure, axes, LIMIT, "lower right")


def _curves(axes: Axes, table: Table, along: str, column: str, lines: Labeled) -> None:
    for name, (label, look) in lines.items():
        rows = select(table, M_is="paper", analysis=name)
        axes.plot(rows[along], rows[column], label=label, **look)
