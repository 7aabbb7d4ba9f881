"""Content of the report, for the web page and for Markdown."""

from collections import Counter
from dataclasses import dataclass

from bilevel.lab.paper.claims import Claim, Verdict
from bilevel.lab.paper.environment import environment
from bilevel.lab.paper.manifest import departures
from bilevel.lab.paper.registry import EXPERIMENTS
from bilevel.lab.paper.report import tables
from bilevel.lab.paper.report.tables import Grid
from bilevel.lab.paper.results import Results

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
    return Content(
        summary=summary(claims),
        notes=notes(results),
        claims=claims,
        panels=panels,
        grids=tables.by_experiment(results),
        beyond=tables.beyond(results),
        runs=runs(results),
        environment=environment(),
    )


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
    missing = [name for name in EXPERIMENTS if name not in results.manifests]
    if missing:
        found.append(f"Not run: {', '.join(missing)}.")
    return found


def runs(results: Results) -> Grid:
    """Return one row for each experiment: data, seeds, time."""
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
