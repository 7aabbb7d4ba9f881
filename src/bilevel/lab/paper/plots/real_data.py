"""Figure 3: the exponent on space_ga with its variants, and the validation loss and the weights on MNIST."""

import numpy as np
from matplotlib.figure import Figure

from bilevel.lab.paper.fig3_features import MAIN
from bilevel.lab.paper.plots import style
from bilevel.lab.paper.results import Results
from bilevel.lab.paper.tables import select

LOOKS: dict[str, style.Look] = {
    "ITD": {"color": style.BLUE},
    "AID": {"color": style.VERMILION, "linestyle": "--"},
}


def draw_features(results: Results) -> dict[str, Figure]:
    return {"fig3_features": fit(results), "fig3_features_variants": variants(results)}


def draw_reweighting(results: Results) -> dict[str, Figure]:
    return {"fig3_reweighting": losses(results), "fig3_weights": weights(results)}


def fit(results: Results) -> Figure:
    figure, axes = style.panel(f"ITD on space_ga, K = {results.setting('fig3-features', 'steps'):,}")
    rows = select(results["fig3_features_mean.csv"], variant=MAIN)
    found = select(results["fig3_exponents.csv"], variant=MAIN)
    axes.fill_between(
        rows["kappa"], rows["lowest"], rows["highest"], color=style.SKY, alpha=0.35, label="range over seeds"
    )
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
    for method, look in LOOKS.items():
        rows = select(results["fig3_reweighting.csv"], method=method)
        for i, seed in enumerate(np.unique(rows["seed"])):
            one = select(rows, seed=seed)
            label = None if i else method
            axes.plot(one["step"], one["validation_loss"], label=label, linewidth=1.2, **look)
    axes.axhline(0.65, color=style.BLACK, linestyle=":", label="the paper's ≈ 0.65")
    # A shortened run ends far above the plateau.
    axes.set_ylim(0.4, max(1.4, 2 * float(np.min(results["fig3_reweighting.csv"]["validation_loss"]))))
    axes.set_xlabel("outer iteration")
    axes.set_ylabel("validation loss")
    axes.legend(loc="upper right")
    return figure


def weights(results: Results) -> Figure:
    figure, axes = style.panel("Adam on the weights, first seed")
    table = results["fig3_weights.csv"]
    bars: style.Look = {"x": table["from"], "width": table["to"] - table["from"], "align": "edge"}
    axes.bar(height=table["right_labels"], color=style.SKY, label="right labels", **bars)
    outline: style.Look = dict(facecolor="none", edgecolor=style.VERMILION, hatch="////", linewidth=1.2)
    axes.bar(height=table["wrong_labels"], label="wrong labels", **outline, **bars)
    axes.set_xlabel("weight σ(x_i) of a training image")
    axes.set_ylabel("training images")
    axes.legend(loc="upper center")
    return figure
