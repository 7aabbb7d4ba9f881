"""Figure 1: AID over κ, and over K at one κ. A bound and the run with its step sizes share a color."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bilevel.lab.paper.plots import style
from bilevel.lab.paper.results import Results
from bilevel.lab.paper.tables import Table, select

BOUNDS: dict[str, tuple[str, style.Look]] = {
    "earlier": ("earlier bound", style.EARLIER),
    "paper": ("Theorem 5.9's bound", style.PAPER),
    "sharp": ("same lemmas, exact gain", style.SHARP),
    "star": ("star's bound (κ⁴)", style.STAR),
}
RUNS: dict[str, tuple[str, style.Look]] = {
    "paper": ("run with Theorem 5.9's steps", style.PAPER_RUN),
    "sharp": ("run with exact gain's steps", style.SHARP_RUN),
    "star": ("run with star's steps", style.STAR_RUN),
}


def draw(results: Results) -> dict[str, Figure]:
    return {"fig1_left": over_kappa(results), "fig1_right": over_steps(results)}


def over_kappa(results: Results) -> Figure:
    figure, axes = style.panel(f"AID after K = {results.setting('fig1', 'steps'):,} steps")
    _curves(axes, results["fig1_kappa.csv"], "kappa")
    style.kappa_axis(axes, (1.5, 2, 3, 5, 10, 20))
    axes.set_yscale("log")
    axes.set_ylabel("mean of ‖∇Φ(x_k)‖² (log scale)")
    axes.legend(loc="upper left")
    return figure


def over_steps(results: Results) -> Figure:
    figure, axes = style.panel(f"AID at κ = {results.setting('fig1', 'kappa_right'):g}")
    table = results["fig1_steps.csv"]
    _curves(axes, table, "steps")
    last = select(table, M_is="paper", analysis="paper")
    axes.plot(
        last["steps"], last["last"], label="Theorem 5.9's steps, last iterate", color=style.BLACK, linewidth=1
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("outer iterations K (log scale)")
    axes.set_ylabel("mean of ‖∇Φ(x_k)‖² (log scale)")
    axes.legend(loc="lower left")
    return figure


def _curves(axes: Axes, table: Table, along: str) -> None:
    for name, (label, look) in BOUNDS.items():
        rows = select(table, M_is="paper", analysis=name)
        axes.plot(rows[along], rows["bound"], label=label, **look)
    for name, (label, look) in RUNS.items():
        rows = select(table, M_is="paper", analysis=name)
        axes.plot(rows[along], rows["measured"], label=label, **look)
