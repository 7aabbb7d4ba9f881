"""Problems that come with the library, and scores."""

import numpy as np

import bilevel as bl
from bilevel.problems.reweighting import initial_mlp
from bilevel.problems.scores import accuracy, roc_auc
from fuzz.call import Call
from fuzz.valid import DIGITS, EXAMPLES, INPUTS, PROBLEM, X0, Y0

problems = bl.problems
quadratic, ridge = problems.quadratic(), problems.ridge_logistic()
random = problems.random_quadratic(0)
mlp = initial_mlp(2, 3, 3, 0)
CALLS = [
    Call(
        "bl.problems.quadratic",
        problems.quadratic,
        {},
        {"mu": "traced positive", "kappa": "kappa", "m": "traced number"},
    ),
    Call(
        "bl.problems.Quadratic.itd_limit", quadratic.itd_limit, {"alpha": 0.1}, {"alpha": "traced positive"}
    ),
    Call("bl.problems.Quadratic.instance", quadratic.instance, {}, {"x0": "vector", "y0": "vector"}),
    Call(
        "bl.problems.random_quadratic",
        problems.random_quadratic,
        {"seed": 0},
        {
            "seed": "wide seed",
            "mu": "plain positive",
            "kappa": "kappa",
            "M": "plain positive",
            "m": "count",
            "n": "count",
            "dtype": "dtype",
        },
    ),
    Call("bl.problems.RandomQuadratic.instance", random.instance, {}, {"x0": "vector", "y0": "vector"}),
    Call(
        "bl.problems.ridge_logistic",
        problems.ridge_logistic,
        {"low": 0.1},
        {
            "features": "count",
            "train": "count",
            "valid": "count",
            "seed": "wide seed",
            "dtype": "dtype",
            "low": "plain positive",
            "high": "plain positive",
            "tau": "plain number",
        },
    ),
    Call(
        "bl.problems.RidgeLogistic",
        problems.RidgeLogistic,
        {"train": EXAMPLES, "valid": EXAMPLES},
        {
            "train": "examples",
            "valid": "examples",
            "low": "plain positive",
            "high": "plain positive",
            "tau": "plain number",
        },
    ),
    Call(
        "bl.problems.RidgeLogistic.constants",
        ridge.constants,
        {},
        {"x_radius": "plain number", "y_radius": "plain number"},
        also={"y_radius": ("none",)},
    ),
    Call("bl.problems.RidgeLogistic.instance", ridge.instance, {}, {"x0": "vector", "y0": "vector"}),
    Call(
        "bl.problems.data_reweighting",
        problems.data_reweighting,
        {"train": DIGITS, "valid": DIGITS, "y0": mlp},
        {
            "train": "examples of classes",
            "valid": "examples of classes",
            "y0": "refused",
            "L": "plain positive",
            "training_steps": "count from zero",
        },
    ),
    Call(
        "bl.problems.feature_learning",
        problems.feature_learning,
        {"train": EXAMPLES, "valid": EXAMPLES, "mu": 0.1, "x0": np.eye(2, 3)},
        {"train": "examples", "valid": "examples", "mu": "plain positive", "x0": "layer"},
        costly=True,
    ),
    Call(
        "bl.problems.Instance",
        problems.Instance,
        {"name": "mine", "problem": PROBLEM, "x0": X0, "y0": Y0},
        {"problem": "problem", "L": "plain positive", "measure": "function or none"},
    ),
    Call(
        "bilevel.problems.reweighting.initial_mlp",
        initial_mlp,
        {"inputs": 2, "hidden": 3, "classes": 3, "seed": 0},
        {"inputs": "count", "hidden": "count", "classes": "count", "seed": "wide seed", "dtype": "dtype"},
    ),
    Call(
        "bilevel.problems.scores.accuracy",
        accuracy,
        {"logits": INPUTS, "labels": np.array([0, 1, 0, 1])},
        {"logits": "refused", "labels": "refused"},
    ),
    Call(
        "bilevel.problems.scores.roc_auc",
        roc_auc,
        {"scores": INPUTS[:, 0], "positive": np.array([True, False, True, False])},
        {"scores": "refused", "positive": "refused"},
    ),
]
