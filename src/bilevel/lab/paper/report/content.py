"""Content of the report, for the web page and for Markdown: verdicts, and the numbers behind them as text."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bilevel.lab.paper.claims import Claim, Verdict
from bilevel.lab.paper.environment import environment
from bilevel.lab.paper.manifest import departures
from bilevel.lab.paper.registry import EXPERIMENTS, Results
from bilevel.lab.paper.tables import Table, select

CAPTIONS = {
    "fig1_left": "AID: the mean of ‖∇Φ(x_k)‖² and its bounds over κ, with μ = M = ρ = 0.1. Each bound has its "
    "own step sizes; the marks of its color show the run with them. Star measures the errors at y* and v*.",
    "fig1_right": "The same against the number of iterations.",
    "fig2_left": "ITD: where ‖∇Φ(x_K)‖² ends, and the part of each bound that no number of iterations removes. Star's "
    "longer inner step ends lower. That its limit lies above its bound for small κ is due to M = 0.1, which is less "
    "than ‖∇_y f‖.",
    "fig2_right": "Theorem 5.17's bound times the factors that put it on the measured limit and on the lower bound "
    "whose instance satisfies all assumptions jointly.",
    "fig3_features": "Feature learning on space_ga: the mean of ‖∇Φ(x_k)‖² over κ in our protocol.",
    "fig3_features_variants": "The exponent in our protocol and in variants of the choices the paper leaves open.",
    "fig3_reweighting": "Data reweighting on MNIST with the paper's step sizes: the validation loss of ITD and AID.",
    "fig3_weights": "The weights that Adam on the logits has given to training images with right and wrong labels.",
}
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


@dataclass(frozen=True)
class Content:
    summary: str
    notes: list[str]
    claims: list[Claim]
    panels: dict[str, list[str]]  # experiment -> names of figures
    grids: dict[str, list[Grid]]  # experiment -> tables that belong to it
    beyond: Grid
    runs: Grid
    environment: dict[str, str]


def gather(results: Results, claims: list[Claim], panels: dict[str, list[str]]) -> Content:
    found = by_experiment(results), beyond(results), runs(results)
    return Content(summary(claims), notes(results), claims, panels, *found, environment())


def summary(claims: list[Claim]) -> str:
    count = Counter(claim.verdict for claim in claims)
    words = {
        Verdict.HOLDS: "hold",
        Verdict.CAVEAT: "hold with a caveat",
        Verdict.DIFFERS: "differ from what we find",
        Verdict.NOT_JUDGED: "are not judged here",
    }
    parts = [f"{count[verdict]} {phrase}" for verdict, phrase in words.items() if count[verdict]]
    return f"Of {len(claims)} claims, {', '.join(parts)}."


def notes(results: Results) -> list[str]:
    """Return the facts that a reader must know before trusting the numbers."""
    found = []
    for name, manifest in results.manifests.items():
        if changed := departures(EXPERIMENTS[name], manifest):
            found.append(f"{name} was run with other settings than the full protocol: {', '.join(changed)}.")
    if missing := [name for name in EXPERIMENTS if name not in results.manifests]:
        found.append(f"Not run: {', '.join(missing)}.")
    return found


def runs(results: Results) -> Grid:
    rows = []
    for manifest in results.manifests.values():
        seeds = manifest["origin"]["settings"].get("seeds", "no randomness")
        if isinstance(seeds, dict):
            seeds = ", ".join(f"{method} 0 to {count - 1}" for method, count in seeds.items())
        elif isinstance(seeds, int):
            seeds = f"0 to {seeds - 1}"
        rows.append((manifest["title"], manifest["source"] or "none", seeds, f"{manifest['seconds']:.1f} s"))
    total = sum(manifest["seconds"] for manifest in results.manifests.values())
    rows.append(("Together", "", "", f"{total:.0f} s"))
    return Grid("", ("experiment", "data", "seeds", "run time"), rows)


def by_experiment(results: Results) -> dict[str, list[Grid]]:
    makers = {
        "table1": (rates, calls, steps),
        "fig3-features": (exponents,),
        "fig3-reweighting": (plateaus, useful),
    }
    return {name: [make(results) for make in makers.get(name, ())] for name in results.manifests}


def rates(results: Results) -> Grid:
    table = results["table1_exponents.csv"]
    meaning = {"rate": "part that vanishes, × K", "inherent": "inherent error", "beta": "β", "eta": "η"}
    found = {}
    for *key, claimed, exponent in _rows(
        table, "method", "quantity", "analysis", "paper_exponent", "exponent"
    ):
        text = f"{exponent:.3f}" + ("" if np.isnan(claimed) else f" ({claimed:g})")
        found[tuple(key)] = text.replace("-", "−")
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
    # The rows of the paper's analysis and of another one, with a valid M.
    pair = lambda file, name: [select(results[file], M_is="valid", analysis=a) for a in ("paper", name)]
    if "fig1" in results.manifests:
        for name, label in OURS.items():
            paper, ours = pair("fig1_kappa.csv", name)
            step, bound = ours["beta"] / paper["beta"], paper["bound"] / ours["bound"]
            rows.append((f"AID, {label}", f"β {_range(step)} × larger, bound {_range(bound)} × lower"))
    if "table1" in results.manifests:
        rows += [("AID, the rate by analysis", rates_in_words(results)), fewer_steps(results)]
    if "fig2" in results.manifests:
        for name, label in OURS.items():
            paper, ours = pair("fig2_kappa.csv", name)
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
        chosen = select(table, chosen=1)
        plain, clean = (select(table, setting=name) for name in ("no weights", "clean images only"))
        rows.append(("Wrong labels found (AUC)", _range(chosen["auc"], "{:.3f}")))
        mean = lambda rows: f"{rows['test_accuracy'].mean():.1%}"
        gain = f"{mean(chosen)}; without weights {mean(plain)}, clean images only {mean(clean)}"
        rows.append(("Test accuracy with learned weights", gain))
    return Grid("", ("what", "result"), rows)


def rates_in_words(results: Results) -> str:
    rows = select(results["table1_exponents.csv"], method="AID", quantity="rate")
    return ", ".join(f"{name} κ^{value:.2f}/K" for name, value in _rows(rows, "analysis", "exponent"))


def fewer_steps(results: Results) -> tuple[str, str]:
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
    text = lambda end: (form or ("{:.2g}" if end < 100 else "{:,.0f}")).format(end)
    low, high = text(values.min()), text(values.max())
    return low if low == high else f"{low} to {high}"
