"""Figures of README.md, the landing page, docs/start/, docs/applications/, docs/concepts/ and docs/how-to/."""

import inspect
import math

import curvature
import jax.numpy as jnp
import numpy as np
from elsewhere import problem
from language_model import Size
from origins import About, AtLeast, AtMost, Claims, cell, column, number, rows

import bilevel as bl
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
from bilevel.loop import program
from bilevel.loop.diagnose import divergence, hook as diagnose_hook, measurements
from bilevel.loop.recovery import snapshots
from bilevel.row_weights import fit as weighing
from bilevel.solvers.parts import line_search
from bilevel.theory.estimation import advice

from .evidence import IMAGES, MIB, MLP

ROUNDING = float(np.finfo(np.float32).eps)


def wrong_labels() -> tuple[float, ...]:
    """Return the shares of wrong labels in the table of the filters, ascending."""
    shares = {number(row["ROC-AUC"].partition(", ")[2]) / 100 for row in rows("cleaning-roc-auc")}
    return tuple(sorted(shares))


def into_lookalikes(method: str) -> list[float]:
    """Return the ROC-AUC of these methods where 40 % of the labels are those of the most similar class."""
    return [
        number(value)
        for row in rows("cleaning-roc-auc")
        for name, value in row.items()
        if "40% between" in row["ROC-AUC"] and name.startswith(method)
    ]


def trusted_rows_rank_best() -> float:
    """Return the share of wrong labels in the one row of breast cancer where only trusted rows rank best."""
    (row,) = (
        row for row in rows("cleaning-roc-auc") if "cancer" in row["ROC-AUC"] and "**" in row["trusted only"]
    )
    return number(row["ROC-AUC"].partition(", ")[2]) / 100


def least_loss() -> float:
    """Return the damping of the adjoint with the least outer loss on both networks, which is Gauss–Newton's."""
    table = [row for row in rows("curvature") if row["fresh"] != "–"]
    (best,) = {min(table, key=lambda row: number(row[head]))["adjoint"] for head in ("outer loss", "fresh")}
    assert best.startswith("CG, Gauss–Newton")
    return number(best.rpartition("damped ")[2])


def enough_damping() -> tuple[float, ...]:
    """Return the dampings of CG on the Hessian: first those that overflow on the way."""
    damped = {
        number(row["adjoint"].removeprefix("CG, damped ")): row["‖v‖"]
        for row in rows("curvature")
        if row["adjoint"].startswith("CG, damped")
    }
    return tuple(sorted(damped, key=lambda damping: damped[damping] != "overflows"))


def first_to_a_level() -> float:
    """Return the level that AmIGO is first to reach on ridge-logistic regression."""
    table = [row for row in rows("variance-ridge-logistic") if "theirs" not in row["method"]]
    (head,) = (head for head in table[0] if head.startswith("s to "))
    reached = {row["method"]: number(row[head]) for row in table if row[head] != "–"}
    assert min(reached, key=lambda method: reached[method]) == "AmIGO"
    return number(head.removeprefix("s to "))


def outer_penalty() -> float:
    """Return the coefficient of ‖x‖² in f: where the penalties exp(x) are huge, y* is 0."""
    x = np.full(5, 100.0)
    return (problem.value(x) - np.mean(problem.b_**2) / 2) / np.sum(x**2)


def largest_kappas() -> tuple[float, ...]:
    """Return the two largest κ of the table of quadratics."""
    names = (row["quadratics"].removeprefix("κ = ") for row in rows("tuning-free-quadratics"))
    return tuple(sorted(number(name) for name in names if name.isdecimal())[-2:])


CLAIMS: Claims = {
    "README.md": {
        "203,530 parameters": MLP,
    },
    "docs/index.md": {"5,000 penalties": sparse_penalties.WORDS},
    "docs/applications/architecture-search.md": {
        "1,500 digits to train on, 1,500 to validate with, 1,000 to test on": architecture_search.SIZES,
        "from the bundled 5,000": sum(IMAGES),
        "an accuracy of 95 % is 0.7 points": lambda: (
            cell("architecture-search", "AID", "test accuracy %") / 100,
            100 * math.sqrt(0.95 * 0.05 / architecture_search.SIZES[2]),
        ),
    },
    "docs/applications/clean.md": {
        "with 10, 20 or 40 % of the labels": wrong_labels,
        "with 40 % into the lookalike, losses fall below 0.9": lambda: (
            wrong_labels()[-1],
            AtMost(max(into_lookalikes("loss"))),
        ),
        "stays at about 0.99": lambda: np.mean(into_lookalikes("bilevel")),
        "On breast cancer at 40 %": trusted_rows_rank_best,
        "a fourth table, 5,000 images": sum(IMAGES),
    },
    "docs/applications/distillation.md": {
        "(0.05, 0.1, 0.2 or the learned one)": distillation.RATES,
    },
    "docs/applications/few-shot-omniglot.md": {
        "chance is 0.2": 1 / few_shot_omniglot.WAYS,
    },
    "docs/applications/few-shot-sinusoids.md": {
        "steps of size 0.02": few_shot_sinusoids.ALPHA,
        "λ = 0.2": few_shot_sinusoids.TIE,
        "2,000 × 25 waves": (application("few-shot-sinusoids").steps, few_shot_sinusoids.TASKS),
    },
    "docs/applications/reward-shaping.md": {
        "γ = 0.8": reward_shaping.GAMMA,
        "δ = 0.97": reward_shaping.DELTA,
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
    },
    "docs/concepts/curvature.md": {
        "that is 0.70 of the operations": (3 * 4 + 2) / (3 * 6 + 2),  # as in tests/solvers/test_curvature.py
        "each of 1,000 training images": curvature.SIZES["train"],
        r"stop at $10^{-3}\|b\|$": curvature.TOL,
        "A damping of 0.01 lies": lambda: enough_damping()[0],
        "0.1 is enough": lambda: enough_damping()[1],
        "CG on Gauss–Newton, damped by 0.01": least_loss,
    },
    "docs/concepts/methods-stochastic.md": {
        "AmIGO is first to $10^{-2}$": first_to_a_level,
        "does not get below $10^{-3}$": lambda: AtLeast(cell("variance-ridge-logistic", "AmIGO", "least")),
    },
    "docs/concepts/methods.md": {
        "0.69 of the floating-point": lambda: (
            cell("README.md", "`bl.soba`", "operations per step")
            / cell("README.md", "`bl.aid`", "operations per step")
        ),
        "with 200,000 unknowns that is everything below about 5": (
            200_000,
            About(200 * np.finfo(np.float32).eps * 200_000),
        ),
        r"$m(\kappa-1) = 0.9$": lambda: (1, cell("compare", "ITD", "(a) ‖∇Φ‖")),
    },
    "docs/how-to/advise.md": {
        "at most 10 %": advice.TOLERATED_BIAS,
    },
    "docs/how-to/diagnose.md": {
        "at most 2 % of the gradients": diagnose_hook.SHARE,
        "stop at a residual of 10⁻³": measurements.TOL,
        "Where 50 products leave more than 5 %": (measurements.SOLVE, measurements.SOLVED),
    },
    "docs/how-to/elsewhere.md": {
        r"+ 0.05\,\|x\|^2": outer_penalty,
        "50 steps on x cost 50 steps on y rather than 2,500": (
            problem.OUTER,
            problem.OUTER,
            problem.INNER * problem.OUTER,
        ),
        "all end within 10⁻⁶ of the minimizer": lambda: AtMost(
            max(column("side-by-side", "from the minimizer"))
        ),
        "runs with torch 2.13, with": lambda: cell("side-by-side", "PyTorch", "version"),
        "runs with torch 2.13. ##": lambda: cell("side-by-side", "PyTorch", "version"),
    },
    "docs/how-to/large-models.md": {
        "steps of 10⁻⁴ would be lost": AtLeast(float(jnp.finfo(jnp.bfloat16).eps) / 2),
        "12 layers × 768 (91.6 million": (Size().layers, Size().width, Size().parameters),
        "From 128 MiB of state on": program.LONG_STEPS / MIB,
    },
    "docs/how-to/many-devices.md": {
        "a step of 91.6 million": Size().parameters,
        "8,192 tokens": Size().sequences * Size().tokens,
    },
    "docs/how-to/memory.md": {
        "at most 2 % of the time": 1 / snapshots.REST,
        "from 1 MiB of state on": program.SMALL / MIB,
        "states beyond 1 MiB": program.SMALL / MIB,
    },
    "docs/how-to/running.md": {
        "beyond 0.9 · 2/L": (divergence.NEAR, 2),
        "states beyond 1 MiB": program.SMALL / MIB,
    },
    "docs/how-to/see-a-run.md": {"states of up to 1 MiB": program.SMALL / MIB},
    "docs/how-to/sklearn.md": {
        "40 % of the labels are wrong": trusted_rows_rank_best,
        "0.4 of it for networks": weighing.NETWORK_RIDGE,
        "16,384 rows": weighing.LARGEST,
    },
    "docs/how-to/troubleshooting.md": {
        "2.30 for ten": math.log(10),
        "at its maximum (1,000)": inspect.signature(bl.hoag).parameters["max_inner_steps"].default,
        "at about 10⁻⁷ of their terms": ROUNDING,
        "a CG tolerance of 10⁻⁸": AtLeast(ROUNDING),
    },
    "docs/how-to/tuning-free.md": {
        r"\Phi + s + 10^{-4}\langle": line_search.SUFFICIENT,
        r"$s = 0.85\,(s": line_search.MEMORY,
        r"The first length is $0.1\,": line_search.FIRST,
        r"$s' = 0.85\,(s": line_search.MEMORY,
        r"$\beta \le 2(1-10^{-4})": (2, 1, line_search.SUFFICIENT),
        r"\le 0.85\,(s+\Phi) + 0.15\,\Phi' \le s + \Phi - 0.15\cdot 10^{-4}": (
            line_search.MEMORY,
            1 - line_search.MEMORY,
            (1 - line_search.MEMORY) * line_search.SUFFICIENT,
        ),
        "κ = 1000 and 10⁴": largest_kappas,
    },
}
