"""Figure 3, right: the validation loss in the paper's setting, and the weights in a setting where they move."""

import numpy as np
from matplotlib.figure import Figure

from bilevel.lab.paper.plots import style
from bilevel.lab.paper.results import Results
from bilevel.lab.paper.tables import select

LOOKS: dict[str, style.Look] = {
    "ITD": {"color": style.BLUE},
    "AID": {"color": style.VERMILION, "linestyle": "--"},
}


def draw(results: Results) -> dict[str, Figure]:
    return {"fig3_reweighting": losses(results), "fig3_weights": weights(results)}


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
    outline: style.Look = {
        "facecolor": "none",
        "edgecolor": style.VERMILION,
        "hatch": "////",
        "linewidth": 1.2,
    }
    axes.bar(height=table["wrong_labels"], label="wrong labels", **outline, **bars)
    axes.set_xlabel("weight σ(x_i) of a training image")
    axes.set_ylabel("training images")
    axes.legend(loc="upper center")
    return figure
