"""Figure 3, right: data reweighting on MNIST with 20 % wrong labels.

There are two settings. *The paper's*: outer rate 1e-3, inner rate 5e-2, 3,000 full-batch iterations of ITD,
and of AID for comparison. There the weights hardly move. *A useful one*: Adam on the logits, which does not
depend on the scale of the hypergradients. Its inner rate is ten times the paper's for a tenth of the steps,
so y travels as far. Its outer rate is chosen by the loss on held-out clean images of the first seed, never by
test labels.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from bilevel.data import Examples, Mnist, corrupt_labels, mnist
from bilevel.lab.paper.experiment import Experiment, Options, Report
from bilevel.lab.paper.tables import Table, joined
from bilevel.loop.hooks.event import Event
from bilevel.loop.options import RunOptions
from bilevel.loop.result import Result
from bilevel.loop.run import run as run_solver
from bilevel.problems.instance import Instance
from bilevel.problems.reweighting import PROBLEM, data_reweighting, initial_mlp, logits, validation_loss
from bilevel.problems.scores import accuracy, roc_auc
from bilevel.solvers.algorithms.aid import aid
from bilevel.solvers.algorithms.itd import itd
from bilevel.solvers.base import Solver

TRAIN, VALID, HELD_OUT = 2_000, 500, 500
WRONG = 0.2
HIDDEN, CLASSES = 256, 10
STEPS, INNER, OUTER = 3_000, 5e-2, 1e-3
USEFUL_STEPS, USEFUL_INNER, USEFUL_RATES = 300, 0.5, (0.01, 0.03, 0.1)
SEEDS, SEEDS_OF_AID = 3, 1
PROTOCOL: dict[str, Any] = dict(train=TRAIN, valid=VALID, held_out=HELD_OUT, wrong=WRONG, hidden=HIDDEN)
PROTOCOL |= dict(steps=STEPS, inner=INNER, outer=OUTER, seeds={"ITD": SEEDS, "AID": SEEDS_OF_AID})
PROTOCOL |= dict(useful_steps=USEFUL_STEPS, useful_inner=USEFUL_INNER, useful_rates=list(USEFUL_RATES))
KEEP = 10  # every tenth validation loss goes into the table
EVERY = 25  # steps between two progress reports
TAIL = 0.1  # the plateau is the mean of the last tenth


def settings(options: Options) -> dict[str, Any]:
    seeds = options.seeds or (1 if options.quick else SEEDS)
    of_aid = min(seeds, SEEDS_OF_AID) if options.seeds is None else seeds
    quick = dict(steps=100, useful_steps=60, useful_rates=list(USEFUL_RATES[-1:])) if options.quick else {}
    return PROTOCOL | quick | {"seeds": {"ITD": seeds, "AID": of_aid}}


def load(options: Options) -> Mnist:
    return mnist(options.data, download=options.download)


def run(settings: dict[str, Any], inputs: Mnist, report: Report) -> dict[str, Table]:
    clock = Clock(report, total=_work(settings))
    seeds = settings["seeds"]["ITD"]
    cases = [case(inputs, seed, settings) for seed in range(seeds)]
    curves, plateaus = [], []
    inner, outer = settings["inner"], settings["outer"]
    solvers = {
        "ITD": itd(PROBLEM, inner=inner, outer=outer),
        "AID": aid(PROBLEM, inner=inner, adjoint=inner, outer=outer),
    }
    for name, solver in solvers.items():
        for seed in range(settings["seeds"][name]):
            result = train(solver, cases[seed], settings["steps"], clock, f"{name}, seed {seed}", COST[name])
            curves.append(curve(name, seed, result))
            plateaus.append({"method": name, "seed": seed} | plateau(result) | score(result, cases[seed]))
    useful, weights = useful_setting(cases, settings, clock)
    report(1.0)
    return {
        "fig3_reweighting.csv": joined(curves),
        "fig3_plateau.csv": joined(plateaus),
        "fig3_useful.csv": joined(useful),
        "fig3_weights.csv": histogram(weights, cases[0].wrong),
    }


@dataclass(frozen=True, eq=False)
class Case:
    """Seed of the experiment: the instance, and the data that evaluate its result."""

    instance: Instance
    wrong: np.ndarray
    held_out: Examples
    test: Examples


def case(digits: Mnist, seed: int, settings: dict[str, Any]) -> Case:
    sizes = settings["train"], settings["valid"], settings["held_out"]
    train_, valid, held_out = digits.train.split(*sizes, seed=seed)
    rng = np.random.default_rng([seed, 1])
    labels, wrong = corrupt_labels(train_.targets, settings["wrong"], classes=CLASSES, seed=rng)
    # A pixel blank in all of these images has no gradient and no effect. Without it every loss stays as it is.
    inked = train_.inputs.any(axis=0) | valid.inputs.any(axis=0)
    y0 = initial_mlp(train_.inputs.shape[1], settings["hidden"], CLASSES, seed=[seed, 2])
    see = lambda examples, labels: Examples(jnp.asarray(examples.inputs[:, inked]), jnp.asarray(labels))
    given, trusted = see(train_, labels), see(valid, valid.targets)
    instance = data_reweighting(given, trusted, y0._replace(W1=y0.W1[inked]))
    return Case(instance, wrong, see(held_out, held_out.targets), see(digits.test, digits.test.targets))


def useful_setting(
    cases: list[Case], settings: dict[str, Any], clock: "Clock"
) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Train with Adam on the logits, without weights, and on the clean validation images only."""
    steps, inner = settings["useful_steps"], settings["useful_inner"]
    adam = optax.inject_hyperparams(optax.adam)  # the rate is a leaf of the solver: one program for all

    def go(setting: str, rate: float, seed: int, case: Case) -> tuple[dict[str, Any], np.ndarray]:
        # A rate of zero leaves x at 0: all weights stay equal.
        solver = itd(PROBLEM, inner=inner, outer=adam(learning_rate=rate))
        result = train(solver, case, steps, clock, f"{setting}, seed {seed}", COST["ITD"])
        held_out = float(validation_loss(result.x, result.y, case.held_out))
        row = {"setting": setting, "rate": rate, "seed": seed, "held_out_loss": held_out}
        return row | score(result, case), np.asarray(result.x)

    tried = [go("Adam", rate, 0, cases[0]) for rate in settings["useful_rates"]]
    best, x = min(tried, key=lambda pair: pair[0]["held_out_loss"])
    seeds = list(enumerate(cases))
    runs = [*tried, *(go("Adam", best["rate"], seed, case) for seed, case in seeds[1:])]
    runs += [go("no weights", 0.0, seed, case) for seed, case in seeds]
    runs += [go("clean images only", 0.0, seed, clean_only(case)) for seed, case in seeds]
    return [row | {"chosen": int(row["rate"] == best["rate"])} for row, _ in runs], x


def clean_only(case: Case) -> Case:
    """Return the case with the validation images instead of the training images."""
    clean = case.instance.data.outer
    instance = data_reweighting(clean, clean, case.instance.y0)
    return replace(case, instance=instance, wrong=np.zeros(len(clean), dtype=bool))


def histogram(x: np.ndarray, wrong: np.ndarray) -> Table:
    """Return the numbers of training images with right and with wrong labels by weight."""
    edges, weights = np.linspace(0, 1, 21), weights_of(x)
    right, off = (np.histogram(weights[rows], edges)[0] for rows in (~wrong, wrong))
    return {"from": edges[:-1], "to": edges[1:], "right_labels": right, "wrong_labels": off}


def train(solver: Solver, case: Case, steps: int, clock: "Clock", label: str, cost: float) -> Result:
    x0, y0, options = case.instance.x0, case.instance.y0, RunOptions(every=min(EVERY, steps))
    more: dict[str, Any] = dict(data=case.instance.data, hooks=[clock.of(label, cost)], options=options)
    return run_solver(solver, x0, y0, steps=steps, **more).check()


def curve(method: str, seed: int, result: Result) -> Table:
    steps = np.arange(0, result.steps, KEEP)
    return {
        "method": np.repeat(method, len(steps)),
        "seed": np.repeat(seed, len(steps)),
        "step": steps,
        "validation_loss": result.trace["outer_value"][steps].astype(float),
    }


def plateau(result: Result) -> dict[str, float]:
    """Return the final validation loss, and its decrease over the last third."""
    loss = result.trace["outer_value"].astype(float)
    tail, third = max(1, round(TAIL * len(loss))), len(loss) - len(loss) // 3
    fall = float(loss[third] - loss[-1])
    return {"plateau": float(loss[-tail:].mean()), "lowest": float(loss.min()), "fall_in_last_third": fall}


def score(result: Result, case: Case) -> dict[str, float]:
    """Return the test accuracy, and the success of low weights at finding wrong labels."""
    x = np.asarray(result.x)
    weights, some = weights_of(x), case.wrong.any()
    test = np.asarray(logits(result.y, case.test.inputs))
    return {
        "validation_loss": float(result.trace["outer_value"][-1]),
        "test_accuracy": accuracy(test, np.asarray(case.test.targets)),
        "auc": roc_auc(-x, case.wrong) if some else np.nan,
        "lowest_weight": float(weights.min()),
        "highest_weight": float(weights.max()),
        "mean_weight_of_wrong": float(weights[case.wrong].mean()) if some else np.nan,
        "mean_weight_of_right": float(weights[~case.wrong].mean()),
    }


def weights_of(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x.astype(float)))


COST = {"ITD": 1.0, "AID": 1.8}  # of a step, relative: for the progress shown


def _work(settings: dict[str, Any]) -> float:
    paper = sum(COST[name] * seeds for name, seeds in settings["seeds"].items()) * settings["steps"]
    runs = len(settings["useful_rates"]) + 3 * settings["seeds"]["ITD"] - 1
    return paper + runs * settings["useful_steps"]


class Clock:
    """Add up the work of many runs into one progress report."""

    def __init__(self, report: Report, total: float):
        self.report, self.total, self.done = report, total, 0.0

    def of(self, label: str, cost: float) -> Callable[[Event], None]:
        """Return a hook that adds the steps of one run, each with this cost."""
        before = self.done
        self.report(before / self.total, label)

        def hook(event: Event) -> None:
            self.done = before + event.step * cost
            self.report(min(self.done / self.total, 1.0), label)

        return hook


TITLE = "Figure 3, right: data reweighting on MNIST"
TABLES = ("fig3_reweighting.csv", "fig3_plateau.csv", "fig3_useful.csv", "fig3_weights.csv")
EXPERIMENT = Experiment("fig3-reweighting", TITLE, TABLES, settings, run, load)
