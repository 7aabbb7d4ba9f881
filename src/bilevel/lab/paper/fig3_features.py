"""Figure 3, left: feature learning on space_ga with single-loop ITD; the growth of the mean of ‖∇Φ‖² with κ.

The paper does not specify the ridge, the spectrum, the outer step and the κ grid. Our choices and their
reasons are in docs/about/reproduction.md: the ridge μ = L/κ with L = 1; singular values of the *training*
inputs with which the head problem at x₀ has exactly the constants μ and L; α = 1/L and β = κ⁻³/L, as in
Theorem 5.17; κ³ ≤ K. The exponent depends on these choices. The variants show by how much.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.batch import Batch
from bilevel.data import Examples, space_ga, standardize
from bilevel.lab.paper.experiment import Experiment, Options, Report
from bilevel.lab.paper.fits import bootstrap_exponent, power_law
from bilevel.lab.paper.tables import Table, joined, select
from bilevel.loop.hooks.base import Hook
from bilevel.loop.hooks.event import Event
from bilevel.loop.status import check_status
from bilevel.loop.sweep import sweep
from bilevel.problems.features import PROBLEM, compress, curvatures, feature_learning, hypergradient
from bilevel.problems.instance import Instance
from bilevel.solvers.algorithms.itd import itd

STEPS = 10_000
SEEDS_OF_VARIANTS = 4  # at most
CHUNKS = 20  # parts of a run; each has one report of progress and one spectrum of the heads


class Variant(NamedTuple):
    """β = c·κ^(−order)/L, and the inputs that get the prescribed singular values."""

    c: float
    order: float
    rescaled: str  # "training" or "both"


MAIN = "protocol"
VARIANTS = {
    MAIN: Variant(1.0, 3, "training"),
    "smaller β (κ⁻³/4)": Variant(0.25, 3, "training"),
    "larger β (4κ⁻³)": Variant(4.0, 3, "training"),
    "β = κ⁻²": Variant(1.0, 2, "training"),
    "β = 1/100 for all κ": Variant(0.01, 0, "training"),
    "validation inputs rescaled too": Variant(1.0, 3, "both"),
}
KAPPAS, QUICK_KAPPAS = np.geomspace(3, 20, 8).tolist(), np.geomspace(3, 12, 5).tolist()
PROTOCOL: dict[str, Any] = dict(L=1.0, train=500, valid=500, width=128, steps=STEPS, kappas=KAPPAS, seeds=10)
PROTOCOL["variants"] = {name: list(variant) for name, variant in VARIANTS.items()}
QUICK = dict(steps=2_000, kappas=QUICK_KAPPAS, seeds=3)


def settings(options: Options) -> dict[str, Any]:
    seeds = {"seeds": options.seeds} if options.seeds else {}
    return PROTOCOL | (QUICK if options.quick else {}) | seeds


def load(options: Options) -> Examples:
    return space_ga(options.data, download=options.download)


def run(settings: dict[str, Any], inputs: Examples, report: Report) -> dict[str, Table]:
    with jax.enable_x64(True):
        names, seeds, kappas = zip(*cases(settings), strict=True)
        variants = {name: Variant(*values) for name, values in settings["variants"].items()}
        each = zip(names, seeds, kappas, strict=True)
        lanes = [lane(inputs, kappa, seed, variants[name], settings) for name, seed, kappa in each]
        report(0.0, f"{len(lanes)} runs of {settings['steps']:,} steps at once")
        runs = {"variant": names, "seed": seeds, "kappa": np.array(kappas)} | measure(lanes, settings, report)
        return {
            "fig3_features.csv": runs,
            "fig3_features_mean.csv": over_seeds(runs, settings),
            "fig3_exponents.csv": exponents(runs, settings),
        }


def cases(settings: dict[str, Any]) -> list[tuple[str, int, float]]:
    """Return every (variant, seed, κ) to run: all seeds of the protocol, a few of each variant."""
    few = min(settings["seeds"], SEEDS_OF_VARIANTS)
    return [
        (name, seed, kappa)
        for name in settings["variants"]
        for seed in range(settings["seeds"] if name == MAIN else few)
        for kappa in settings["kappas"]
    ]


def over_seeds(runs: Table, settings: dict[str, Any]) -> Table:
    """Return the mean over seeds, its range and the fitted power law, for the figure."""
    kappas, parts = np.asarray(settings["kappas"]), []
    for name in settings["variants"]:
        mean = select(runs, variant=name)["mean"].reshape(-1, len(kappas))
        fit = power_law(kappas, mean.mean(axis=0))
        range_ = {"mean": mean.mean(axis=0), "lowest": mean.min(axis=0), "highest": mean.max(axis=0)}
        part = {"variant": np.repeat(name, len(kappas)), "kappa": kappas} | range_
        parts.append(part | {"fit": fit.factor * kappas**fit.exponent})
    return joined(parts)


def exponents(runs: Table, settings: dict[str, Any]) -> Table:
    """Return each variant's exponent of κ with its bootstrap interval, and of the actual mean κ."""
    rows, kappas = [], np.asarray(settings["kappas"])
    for name in settings["variants"]:
        chosen = select(runs, variant=name)
        grid = lambda column, chosen=chosen: chosen[column].reshape(-1, len(kappas))
        mean = grid("mean")
        low, high = bootstrap_exponent(kappas, mean, seed=0)
        exponent = power_law(kappas, mean.mean(axis=0)).exponent
        actual = power_law(grid("kappa_mean").mean(axis=0), mean.mean(axis=0)).exponent
        row = {"variant": name, "exponent": exponent, "low": low, "high": high}
        rows.append(row | {"exponent_of_actual_kappa": actual, "seeds": len(mean)})
    return joined(rows)


class Lane(NamedTuple):
    """Run of the experiment: the instance and its outer step size."""

    instance: Instance
    beta: float


def lane(examples: Examples, kappa: float, seed: int, variant: Variant, settings: dict[str, Any]) -> Lane:
    """Return the run of one (κ, seed): the split, the prescribed spectrum and x₀."""
    train, valid = examples.split(settings["train"], settings["valid"], seed=seed)
    A, A_valid = standardize(train.inputs, valid.inputs)
    b, b_valid = standardize(train.targets[:, None], valid.targets[:, None])
    mu = settings["L"] / kappa
    U, old, Vt = np.linalg.svd(A, full_matrices=False)
    new = np.sqrt(len(A) * np.geomspace(settings["L"] - mu, mu, len(old)))
    A, A_valid = U * new, A_valid @ Vt.T  # in principal axes: x₀ is random, so this loses nothing
    if variant.rescaled == "both":
        A_valid = A_valid * (new / old)
    gaussian = np.random.default_rng([seed, 1]).normal(size=(settings["width"], len(old)))
    x0 = np.linalg.qr(gaussian)[0].T
    few, few_valid = compress(Examples(A, b[:, 0])), compress(Examples(A_valid, b_valid[:, 0]))
    return Lane(feature_learning(few, few_valid, mu, x0), variant.c * kappa**-variant.order / settings["L"])


def measure(lanes: list[Lane], settings: dict[str, Any], report: Report) -> Table:
    """Return every run's mean of ‖∇Φ(x_k)‖² over k < K, its first and last values, and the range of κ."""
    instances = [lane.instance for lane in lanes]
    every = max(1, settings["steps"] // CHUNKS)
    seen = Heads([instance.data for instance in instances], every, report)
    runs = sweep(
        [itd(PROBLEM, inner=1 / settings["L"], outer=lane.beta) for lane in lanes],
        starts=[(instance.x0, instance.y0) for instance in instances],
        data=[instance.data for instance in instances],
        combine="zip",
        steps=settings["steps"],
        every=every,
        record=square,
        hooks=[seen],
    )
    for status in runs.status:
        check_status(status, runs)
    norms = np.concatenate([seen.first[:, None], runs.trace["square"]], axis=1)
    largest = np.stack(seen.spectra)[..., -1]
    mu = np.array([instance.data.inner.mu for instance in instances])
    return {
        "mean": norms[:, :-1].mean(axis=1),
        "first": norms[:, 0],
        "last": norms[:, -1],
        "kappa_mean": largest.mean(axis=0) / mu,
        "kappa_lowest": largest.min(axis=0) / mu,
        "kappa_highest": largest.max(axis=0) / mu,
    }


def square(state: Any, info: Any, batch: Batch) -> dict[str, Any]:
    return {"square": jnp.sum(hypergradient(state.x, batch) ** 2)}


class Heads(Hook):
    """Record ‖∇Φ(x₀)‖² and the spectra of the heads' Hessians every so many steps; report the progress."""

    def __init__(self, data: list[Batch], every: int, report: Report):
        self.data = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(a) for a in leaves]), *data)
        self.every, self.report, self.spectra = every, report, []
        self._spectra = jax.jit(jax.vmap(curvatures))

    def begin(self, event: Event) -> None:
        squares = jax.vmap(lambda x, data: jnp.sum(hypergradient(x, data) ** 2))
        self.first = np.asarray(squares(event.state.x, self.data))

    def __call__(self, event: Event) -> None:
        if event.step % self.every == 0:
            self.spectra.append(np.asarray(self._spectra(event.state.x, self.data.inner)))
        self.report(event.step / event.total, f"step {event.step:,}")


TITLE = "Figure 3, left: feature learning on space_ga"
TABLES = ("fig3_features.csv", "fig3_features_mean.csv", "fig3_exponents.csv")
EXPERIMENT = Experiment("fig3-features", TITLE, TABLES, settings, run, load)
