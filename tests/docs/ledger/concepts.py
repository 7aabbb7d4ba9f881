"""Of docs/concepts/."""

import inspect

import curvature
import numpy as np
from origins import About, AtLeast, Claims, Told, cell, number, rows, written

import bilevel as bl

VARIANCE = "benchmarks/variance_reduction.py"
OUTLIERS = r"OUTLIERS = np.concatenate\(\[np.geomspace\((\S+), (\S+), (\d)\)"


def least_loss() -> float:
    """The damping of the adjoint that is best on the network at hand, and on a fresh one, and has Gauss–Newton."""
    table = [row for row in rows("curvature") if row["fresh"] != "–"]
    (best,) = {min(table, key=lambda row: number(row[head]))["adjoint"] for head in ("outer loss", "fresh")}
    assert best.startswith("CG, Gauss–Newton")
    return number(best.rpartition("damped ")[2])


def enough_damping() -> tuple[float, ...]:
    """Of CG on the Hessian: what overflows on the way, and what does not."""
    damped = {
        number(row["adjoint"].removeprefix("CG, damped ")): row["‖v‖"]
        for row in rows("curvature")
        if row["adjoint"].startswith("CG, damped")
    }
    return tuple(sorted(damped, key=lambda damping: damped[damping] != "overflows"))


def first_to_a_level() -> float:
    """Which AmIGO is first to, on ridge-logistic regression."""
    table = [row for row in rows("variance-ridge-logistic") if "theirs" not in row["method"]]
    (head,) = (head for head in table[0] if head.startswith("s to "))
    reached = {row["method"]: number(row[head]) for row in table if row[head] != "–"}
    assert min(reached, key=lambda method: reached[method]) == "AmIGO"
    return number(head.removeprefix("s to "))


CLAIMS: Claims = {
    "docs/concepts/curvature.md": {
        "that is 0.70 of the operations": (3 * 4 + 2) / (3 * 6 + 2),  # as in tests/solvers/test_curvature.py
        "with eight eigenvalues from $10^2$ to $10^4$": lambda: written(
            "tests/solvers/test_curvature.py", OUTLIERS
        )[1::-1],
        "CG and MINRES to $10^{-8}$": lambda: written(
            "tests/solvers/test_curvature.py", r"without = solve\(make\((\S+)\), H\)"
        ),
        "each of 1,000 training images": curvature.SIZES["train"],
        r"stop at $10^{-3}\|b\|$": curvature.TOL,
        "A damping of 0.01 lies": lambda: enough_damping()[0],
        "0.1 is enough": lambda: enough_damping()[1],
        "CG on Gauss–Newton, damped by 0.01": least_loss,
    },
    "docs/concepts/methods-stochastic.md": {
        "for 8 s each": lambda: written(VARIANCE, r'"--seconds", type=float, default=(\S+),'),
        "not reached in 8 s": lambda: written(VARIANCE, r'"--seconds", type=float, default=(\S+),'),
        "Quadratics, 4,096 and 1,024 samples": lambda: written(
            VARIANCE, r"samples\(some\((\d+)\)\), samples\(some\((\d+)\)\)"
        ),
        "Cleaning 3,072 digits": lambda: written(VARIANCE, r"train.split\(some\((\d+)\)"),
        "AmIGO is first to $10^{-2}$": first_to_a_level,
        "does not get below $10^{-3}$": lambda: AtLeast(cell("variance-ridge-logistic", "AmIGO", "least")),
        r"$\beta \le 0.1": Told("of a rule that was tried and is not in the library"),
    },
    "docs/concepts/methods-unrolled-and-first-order.md": {
        "with momentum 0.9 and radius 0.1": lambda: (
            inspect.signature(bl.solvers.acc_f2ba).parameters["lookahead"].default,
            written("tests/solvers/test_value_function.py", r"XI, radius=(\S+), \*\*common\)\) < error"),
        ),
        "in 20,000 steps": lambda: written(
            "tests/solvers/test_tuning_free.py", r"in_units\(p, outer=1e3\).*steps=(\S+)\)"
        ),
    },
    "docs/concepts/methods.md": {
        "0.69 of the floating-point": lambda: (
            cell("README.md", "`bl.soba`", "operations per step")
            / cell("README.md", "`bl.aid`", "operations per step")
        ),
        "the reweighting task (2,000 images": lambda: written(
            "tests/solvers/test_cost.py", r"TRAIN, VALID = (\d+), \d+"
        ),
        "with 200,000 unknowns that is everything below about 5": (
            200_000,
            About(200 * np.finfo(np.float32).eps * 200_000),
        ),
        "κ = 10⁴": lambda: 1 / written("tests/solvers/test_qnbo.py", r"geomspace\((\S+), 1.0, n\)"),
        "Adam with rate 0.1": lambda: written("src/bilevel/lab/compare/tasks.py", r"rates=\((\S+),\)"),
        "Images are 14 × 14 and 1,000": lambda: (
            14,
            14,
            written("src/bilevel/lab/compare/tasks.py", r"if quick else \((\S+), 150\)"),
        ),
        r"$m(\kappa-1) = 0.9$": lambda: (1, cell("compare", "ITD", "(a) ‖∇Φ‖")),
    },
}
