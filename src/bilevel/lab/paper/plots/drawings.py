"""Figures of the paper: AID over κ and over K, ITD's inherent error over κ, and the experiments on real data.

In Figure 1 a bound and the run with its step sizes share a color.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bilevel.lab.paper.fig3_features import MAIN
from bilevel.lab.paper.plots import style
from bilevel.lab.paper.registry import Results
from bilevel.lab.paper.tables import Table, select

Labeled = dict[str, tuple[str, style.Look]]
Looks = dict[str, style.Look]
EARLIER, SHARP = ("earlier bound", style.EARLIER), ("same lemmas, exact gain", style.SHARP)
AID_BOUNDS: Labeled = {
    "earlier": EARLIER,
    "paper": ("Theorem 5.9's bound", style.PAPER),
    "sharp": SHARP,
    "star": ("star's bound (κ⁴)", style.STAR),
}
AID_RUNS: Labeled = {
    "paper": ("run with Theorem 5.9's steps", style.PAPER_RUN),
    "sharp": ("run with exact gain's steps", style.SHARP_RUN),
    "star": ("run with star's steps", style.STAR_RUN),
}
ITD_BOUNDS: Labeled = {"earlier": EARLIER, "paper": ("Theorem 5.17's bound", style.PAPER), "sharp": SHARP}
SCALED: Looks = {
    "measured_limit": {"color": style.SKY, "linestyle": "-"},
    "lower_bound_strict": {"color": style.SKY, "linestyle": "-."},
}
KAPPAS = (1.5, 2, 3, 5, 10, 20)
MEAN, LIMIT = "mean of ‖∇Φ(x_k)‖² (log scale)", "lim ‖∇Φ(x_K)‖² (log scale)"
LOOKS: Looks = {"ITD": {"color": style.BLUE}, "AID": {"color": style.VERMILION, "linestyle": "--"}}


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
    axes.set(xscale="log", xlabel="outer iterations K (log scale)")
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


def fit(results: Results) -> Figure:
    figure, axes = style.panel(f"ITD on space_ga, K = {results.setting('fig3-features', 'steps'):,}")
    rows = select(results["fig3_features_mean.csv"], variant=MAIN)
    found = select(results["fig3_exponents.csv"], variant=MAIN)
    area: style.Look = {"color": style.SKY, "alpha": 0.35, "label": "range over seeds"}
    axes.fill_between(rows["kappa"], rows["lowest"], rows["highest"], **area)
    label = f"fit κ^{found['exponent'][0]:.2f} (95 %: {found['low'][0]:.2f} to {found['high'][0]:.2f})"
    axes.plot(rows["kappa"], rows["fit"], label=label, color=style.BLUE)
    axes.plot(rows["kappa"], rows["mean"], label="mean over seeds", **style.MEASURED)
    style.kappa_axis(axes, (3, 5, 10, 20))
    return style.finish(figure, axes, "mean of ‖∇Φ(x_k)‖² (log scale)", "upper left")


def variants(results: Results) -> Figure:
    figure, axes = style.panel("The exponent in variants of our protocol")
    table = results["fig3_exponents.csv"]
    places = list(range(len(table["variant"])))[::-1]
    columns = (table[name] for name in ("variant", "exponent", "low", "high"))
    for place, name, exponent, low, high in zip(places, *columns, strict=True):
        color = style.BLUE if name == MAIN else style.BLACK
        axes.plot([low, high], [place, place], color=color)
        axes.plot([exponent], [place], marker="o", color=color)
    axes.set_yticks(places, ["our protocol" if name == MAIN else name for name in table["variant"]])
    axes.axvline(2.26, color=style.VERMILION, linestyle="--", label="the paper's 2.26")
    axes.set_xlabel("exponent of κ, with its 95 % interval")
    axes.grid(axis="y", visible=False)
    axes.margins(y=0.12)
    figure.legend(loc="outside lower right")
    return figure


def losses(results: Results) -> Figure:
    figure, axes = style.panel("The paper's setting, one line per seed")
    table = results["fig3_reweighting.csv"]
    for method, look in LOOKS.items():
        rows = select(table, method=method)
        for i, seed in enumerate(np.unique(rows["seed"])):
            one, label = select(rows, seed=seed), None if i else method
            axes.plot(one["step"], one["validation_loss"], label=label, linewidth=1.2, **look)
    axes.axhline(0.65, color=style.BLACK, linestyle=":", label="the paper's ≈ 0.65")
    # A shortened run ends far above the plateau.
    axes.set_ylim(0.4, max(1.4, 2 * float(np.min(table["validation_loss"]))))
    axes.set(xlabel="outer iteration", ylabel="validation loss")
    axes.legend(loc="upper right")
    return figure


def weights(results: Results) -> Figure:
    figure, axes = style.panel("Adam on the weights, first seed")
    table = results["fig3_weights.csv"]
    bars: style.Look = {"x": table["from"], "width": table["to"] - table["from"], "align": "edge"}
    axes.bar(height=table["right_labels"], color=style.SKY, label="right labels", **bars)
    outline: style.Look = dict(facecolor="none", edgecolor=style.VERMILION, hatch="////", linewidth=1.2)
    axes.bar(height=table["wrong_labels"], label="wrong labels", **outline, **bars)
    axes.set(xlabel="weight σ(x_i) of a training image", ylabel="training images")
    axes.legend(loc="upper center")
    return figure
