"""Of docs/applications/."""

from math import erf, sqrt

import numpy as np
from origins import AtMost, Claims, Told, cell, number, rows, written

from bilevel.applications import (
    application,
    architecture_search,
    distillation,
    few_shot_omniglot,
    few_shot_sinusoids,
    reward_shaping,
    reweighting,
    sparse_penalties,
    weight_decay,
)

from .about import images

FEATURES = "src/bilevel/applications/feature_learning.py"
DISTILLATION = "src/bilevel/applications/distillation.py"
SPREAD = written("src/bilevel/sklearn/penalty_estimator.py", r"spread: Any = (\S+),")
CHOSEN = Told("how the default was chosen, once, with trials that are not kept")


def interval(file: str, errors: str) -> float:
    """The share of a normal distribution within as many standard errors as the application takes."""
    return erf(written(f"src/bilevel/applications/{file}.py", rf"(\S+) \* {errors}\.std\(") / sqrt(2))


def wrong_labels() -> tuple[float, ...]:
    return written("benchmarks/cleaning.py", r"RATES = (\S+), (\S+), (\S+)")


def into_lookalikes(ours: bool) -> list[float]:
    """ROC-AUC where 40 % of the labels are those of the class most alike: of our rankings, or by losses."""
    return [
        number(value)
        for row in rows("cleaning-roc-auc")
        for method, value in row.items()
        if "40% between" in row["ROC-AUC"] and method.startswith("bilevel" if ours else "loss")
    ]


def trusted_alone_rank_best() -> float:
    """The share of wrong labels in the one row of breast cancer where they do."""
    (row,) = (
        row for row in rows("cleaning-roc-auc") if "cancer" in row["ROC-AUC"] and "**" in row["trusted only"]
    )
    return number(row["ROC-AUC"].partition(", ")[2]) / 100


CLAIMS: Claims = {
    "docs/applications/architecture-search.md": {
        "1,500 digits to train on, 1,500 to validate with, 1,000 to test on": architecture_search.SIZES,
        "from the bundled 5,000": lambda: sum(images()),
        "an accuracy of 95 % is 0.7 points": lambda: (
            cell("architecture-search", "AID", "test accuracy %") / 100,
            100 * sqrt(0.95 * 0.05 / architecture_search.SIZES[2]),
        ),
    },
    "docs/applications/clean.md": {
        "15 % of the labels": lambda: written(
            "docs/applications/clean.md", r"digits.targets, (\S+), classes"
        ),
        "with 10, 20 or 40 % of the labels": wrong_labels,
        "with 40 % into the lookalike, losses fall below 0.9": lambda: (
            wrong_labels()[-1],
            AtMost(max(into_lookalikes(ours=False))),
        ),
        "stays at about 0.99": lambda: np.mean(into_lookalikes(ours=True)),
        "On breast cancer at 40 %": trusted_alone_rank_best,
        "a fourth table, 5,000 images": lambda: sum(images()),
    },
    "docs/applications/distillation.md": {
        "(0.05, 0.1, 0.2 or the learned one)": distillation.RATES,
        "trains on 3,500 images": lambda: written(DISTILLATION, r"digits.train.split\((\d+), 500"),
        "for up to 1,500 steps": lambda: (
            distillation.FEW
            * np.prod(
                written(DISTILLATION, r'(\d+) \* FEW if name == "all real" else FEW, "blocks": min\((\d+)')
            )
        ),
    },
    "docs/applications/feature-learning.md": {
        "2,000 counties to learn from": lambda: written(FEATURES, r"table.split\((\d+),"),
        "fitted to all 2,000": lambda: written(FEATURES, r"table.split\((\d+),"),
    },
    "docs/applications/few-shot-omniglot.md": {
        "once (3 MB)": Told("the size of two files that are downloaded"),
        "chance is 0.2": 1 / few_shot_omniglot.WAYS,
        "the 95 % interval": lambda: interval("few_shot_omniglot", "right"),
        "(98 % and more) are with 1,200 characters, 64 filters": Told("published for MAML, by its authors"),
        "and 60,000 steps": Told("published for MAML, by its authors"),
    },
    "docs/applications/few-shot-sinusoids.md": {
        "Amplitudes lie in [0.1, 5]": lambda: written(
            "src/bilevel/applications/few_shot_sinusoids.py", r"of_amplitude, \(tasks, 1\), (\S+), (\S+)\)"
        ),
        "steps of size 0.02": few_shot_sinusoids.ALPHA,
        "λ = 0.2": few_shot_sinusoids.TIE,
        "2,000 × 25 waves": (application("few-shot-sinusoids").steps, few_shot_sinusoids.TASKS),
        '"95 % ±"': lambda: interval("few_shot_sinusoids", "chosen"),
        "300 steps of Adam (rate 0.01)": lambda: (
            few_shot_sinusoids.LEISURE,
            written("src/bilevel/applications/few_shot_sinusoids.py", r"optax.adam\((1e-2)\)"),
        ),
    },
    "docs/applications/per-feature-penalties.md": {
        "the spreads 5.8, 3.2, 1.8, 1, 0.58 and 0.32 were tried": CHOSEN,
        "and 0.5 lies between two of these": SPREAD,
        "In classification 0.001, 0.5, 1 and 2 were tried": CHOSEN,
        "and 0.001, which is one penalty for all, was as good as 0.5": CHOSEN,
        "at least 2 s and at most 15 s": lambda: (
            written("benchmarks/estimators.py", r"LEAST = (\S+)"),
            written("benchmarks/estimators.py", r'"--most", type=float, default=(\S+),'),
        ),
    },
    "docs/applications/reward-shaping.md": {
        "γ = 0.8": reward_shaping.GAMMA,
        "δ = 0.97": reward_shaping.DELTA,
        "an agent with γ = 0.99": Told("an example of a large discount, not of ours"),
    },
    "docs/applications/reweighting.md": {
        "up to 40 % are wrong": max(share for _, share in reweighting.NOISES),
        "With 40 % pairwise noise": dict(reweighting.NOISES)["pairwise"],
    },
    "docs/applications/sparse-penalties.md": {
        "a vocabulary of 5,000": sparse_penalties.WORDS,
        "1,500 documents for training, 1,500 for validation, 4,000 for the test": sparse_penalties.SIZES,
    },
    "docs/applications/weight-decay.md": {
        "on 1,000 digits": weight_decay.TRAIN,
        "tuned on 1,000 others and judged on 1,000 more, all for 800 steps": (
            weight_decay.VALID,
            weight_decay.TEST,
            weight_decay.STEPS,
        ),
        "a rate of 0.02 with momentum 0.9, a decay of 5·10⁻⁴": (
            np.exp(weight_decay.DEFAULT.rate),
            weight_decay.MOMENTUM,
            np.exp(weight_decay.DEFAULT.decay[0]),
        ),
        "draws 14 times": weight_decay.TRIES,
        "outer Adam (0.02": lambda: written(
            "src/bilevel/applications/weight_decay.py", r"optax.adam\((\S+?)\)"
        ),
    },
}
