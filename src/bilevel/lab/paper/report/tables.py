"""Numbers behind the verdicts, as small tables for people. Every cell is formatted text."""

from typing import Any, NamedTuple

import numpy as np

from bilevel.lab.paper.results import Results
from bilevel.lab.paper.tables import Table, select

# Analyses that are not the paper's, in the words of the report.
OURS = {
    "sharp": "exact gain on the same lemmas (sharp)",
    "tight": "exact gain on sharper lemmas (tight)",
    "star": "errors at the solutions, driven by the step (star)",
}


class Grid(NamedTuple):
    title: str
    header: tuple[str, ...]
    rows: list[tuple[Any, ...]]


def by_experiment(results: Results) -> dict[str, list[Grid]]:
    makers = {
        "table1": (rates, calls, steps),
        "fig3-features": (exponents,),
        "fig3-reweighting": (plateaus, useful),
    }
    return {name: [make(results) for make in makers.get(name, ())] for name in results.manifests}


def rates(results: Results) -> Grid:
    """Return one row for each quantity, one column for each analysis."""
    table = results["table1_exponents.csv"]
    meaning = {"rate": "part that vanishes, × K", "inherent": "inherent error", "beta": "β", "eta": "η"}
    keys = ("method", "quantity", "analysis", "paper_exponent", "exponent")
    found = {
        (method, quantity, analysis): _signed(
            f"{exponent:.3f}" + ("" if np.isnan(claimed) else f" ({claimed:g})")
        )
        for method, quantity, analysis, claimed, exponent in _rows(table, *keys)
    }
    analyses = list(dict.fromkeys(np.asarray(table["analysis"]).tolist()))
    rows = [
        (method, meaning[quantity], *(found.get((method, quantity, analysis), "–") for analysis in analyses))
        for method, quantity in dict.fromkeys((method, quantity) for method, quantity, _ in found)
    ]
    title = "Exponents of κ in explicit bounds and step sizes (in brackets the paper's; sharp, tight and star are ours)"
    return Grid(title, ("method", "quantity", *analyses), rows)


def calls(results: Results) -> Grid:
    columns = ("gradients_f", "gradients_g", "hessian_products", "cross_products", "Gc", "Mv")
    rows = _cells(results["table1_calls.csv"], "{method} {of}", *(f"{{{name}:g}}" for name in columns))
    header = ("one …", "∇f", "∇g", "Hessian products", "cross products", "Gc", "Mv")
    return Grid("Oracle calls, counted while the programs ran", header, rows)


def steps(results: Results) -> Grid:
    table = results["table1_runs.csv"]
    finest = select(table, epsilon=float(np.min(table["epsilon"])))
    by_kappa = np.argsort(finest["kappa"], kind="stable")
    finest = {name: np.asarray(values)[by_kappa] for name, values in finest.items()}
    numbers = (f"{{{name}:,.0f}}" for name in ("steps", "certified_steps", "Gc", "Mv"))
    rows = _cells(finest, "{kappa:g}", "{analysis}", *numbers)
    title = f"AID until the mean of ‖∇Φ‖² is at most ε = {finest['epsilon'][0]:g}, with each analysis' steps"
    return Grid(title, ("κ", "steps of", "K needed", "K certified", "Gc(ε)", "Mv(ε)"), rows)


def exponents(results: Results) -> Grid:
    cells = ("{exponent:.2f}", "{low:.2f} to {high:.2f}", "{exponent_of_actual_kappa:.2f}", "{seeds:.0f}")
    rows = _cells(results["fig3_exponents.csv"], "{variant}", *cells)
    header = ("variant", "exponent of κ", "95 % interval", "of the average κ", "seeds")
    return Grid("Exponents on space_ga (the paper: 2.26)", header, rows)


def plateaus(results: Results) -> Grid:
    cells = ("{plateau:.4f}", "{fall_in_last_third:.4f}", "{test_accuracy:.1%}")
    weights = "{lowest_weight:.5f} to {highest_weight:.5f}"
    rows = _cells(results["fig3_plateau.csv"], "{method}, seed {seed:.0f}", *cells, weights)
    header = ("run", "plateau", "fall in the last third", "test accuracy", "weights")
    return Grid("The paper's setting: validation loss (the paper: ≈ 0.65)", header, rows)


def useful(results: Results) -> Grid:
    columns = ("setting", "rate", "chosen", "seed", "held_out_loss", "test_accuracy", "auc")
    rows = [
        (
            f"{setting} {rate:g}{', chosen' if chosen else ''}" if rate else setting,
            *(f"{seed:.0f}", f"{loss:.3f}", f"{accuracy:.1%}", f"{auc:.3f}" if rate else "–"),
        )
        for setting, rate, chosen, seed, loss, accuracy, auc in _rows(results["fig3_useful.csv"], *columns)
    ]
    title = (
        "A useful setting: Adam on the logits, its rate chosen by the loss on held-out clean images of seed 0"
    )
    header = ("training", "seed", "held-out loss", "test accuracy", "AUC of “weight low ⇒ label wrong”")
    return Grid(title, header, rows)


def beyond(results: Results) -> Grid:
    """Return the library's additions to the paper, in numbers."""
    rows = []
    if "fig1" in results.manifests:
        for name, label in OURS.items():
            paper, ours = _pair(results["fig1_kappa.csv"], name)
            step, bound = ours["beta"] / paper["beta"], paper["bound"] / ours["bound"]
            rows.append((f"AID, {label}", f"β {_range(step)} × larger, bound {_range(bound)} × lower"))
    if "table1" in results.manifests:
        rows += [("AID, the rate by analysis", rates_in_words(results)), fewer_steps(results)]
    if "fig2" in results.manifests:
        for name, label in OURS.items():
            paper, ours = _pair(results["fig2_kappa.csv"], name)
            inherent = f"inherent error {_range(paper['inherent'] / ours['inherent'])} × lower"
            rows.append((f"ITD, {label}", inherent))
        limits = results["fig2_limit.csv"]
        tight = select(results["fig2_kappa.csv"], M_is="paper", analysis="tight")["inherent"]
        ratio = _range(tight / limits["lower_bound"], "{:.6g}")
        rows.append(("ITD, tight's inherent error over the lower bound for its α = 1/L", ratio))
        ratio = _range(limits["measured_limit"] / limits["measured_limit_star"])
        rows.append(("ITD's measured limit with star's α = 2/(L + μ)", f"{ratio} × lower than with α = 1/L"))
    if "fig3-reweighting" in results.manifests:
        table = results["fig3_useful.csv"]
        chosen, plain, clean = (
            select(table, **wanted)
            for wanted in ({"chosen": 1}, {"setting": "no weights"}, {"setting": "clean images only"})
        )
        rows.append(("Wrong labels found (AUC)", _range(chosen["auc"], "{:.3f}")))
        mean = lambda rows: f"{rows['test_accuracy'].mean():.1%}"
        gain = f"{mean(chosen)}; without weights {mean(plain)}, clean images only {mean(clean)}"
        rows.append(("Test accuracy with learned weights", gain))
    return Grid("", ("what", "result"), rows)


def _pair(table: Table, analysis: str) -> list[Table]:
    """Return the rows of the paper's analysis and of this one, with a valid M."""
    return [select(table, M_is="valid", analysis=name) for name in ("paper", analysis)]


def rates_in_words(results: Results) -> str:
    rows = select(results["table1_exponents.csv"], method="AID", quantity="rate")
    return ", ".join(f"{name} κ^{value:.2f}/K" for name, value in _rows(rows, "analysis", "exponent"))


def fewer_steps(results: Results) -> tuple[str, str]:
    """Return the steps of the hardest run."""
    table = results["table1_runs.csv"]
    kappa, epsilon = float(np.max(table["kappa"])), float(np.min(table["epsilon"]))
    runs = select(table, kappa=kappa, epsilon=epsilon)
    needed = [
        f"{name} {K:,.0f} (certified: {most:,.0f})"
        for name, K, most in _rows(runs, "analysis", "steps", "certified_steps")
        if name in ("earlier", "paper", "star")
    ]
    return f"AID, steps needed at κ = {kappa:g} until ε = {epsilon:g}, by analysis", ", ".join(needed)


def _cells(table: Table, *templates: str) -> list[tuple[str, ...]]:
    """Format a cell per template for every row. Templates refer to columns by name."""
    rows = (dict(zip(table, row, strict=True)) for row in _rows(table, *table))
    return [tuple(template.format(**row) for template in templates) for row in rows]


def _rows(table: Table, *columns: str) -> list[tuple[Any, ...]]:
    return list(zip(*(np.asarray(table[column]).tolist() for column in columns), strict=True))


def _range(values: np.ndarray, form: str | None = None) -> str:
    """Format the range of the values, by default with two digits and no powers of ten."""
    low, high = (
        (form or ("{:.2g}" if end < 100 else "{:,.0f}")).format(end) for end in (values.min(), values.max())
    )
    return low if low == high else f"{low} to {high}"


def _signed(text: str) -> str:
    return text.replace("-", "−")
