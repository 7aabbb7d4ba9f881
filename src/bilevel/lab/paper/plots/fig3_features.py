"""Figure 3, left: feature learning, the protocol with its fit, and its variants."""

from matplotlib.figure import Figure

from bilevel.lab.paper.fig3_features import MAIN
from bilevel.lab.paper.plots import style
from bilevel.lab.paper.results import Results
from bilevel.lab.paper.tables import select


def draw(results: Results) -> dict[str, Figure]:
    return {"fig3_features": fit(results), "fig3_features_variants": variants(results)}


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
    axes.set_yscale("log")
    axes.set_ylabel("mean of ‖∇Φ(x_k)‖² (log scale)")
    axes.legend(loc="upper left")
    return figure


def variants(results: Results) -> Figure:
    figure, axes = style.panel("The exponent in variants of our protocol")
    table = results["fig3_exponents.csv"]
    places = list(range(len(table["variant"])))[::-1]
    for place, name, exponent, low, high in zip(
        places, table["variant"], table["exponent"], table["low"], table["high"], strict=True
    ):
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
