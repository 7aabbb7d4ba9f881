"""The tasks as arrays, the same for every contestant: made here from a fixed seed, with NumPy alone."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Parameters = tuple[NDArray, ...]


@dataclass(frozen=True)
class Task:
    """Data of both levels, where x and y start, the step sizes and the number of outer steps of a run."""

    train: tuple[NDArray, NDArray]  # inputs, and labels or targets
    valid: tuple[NDArray, NDArray]
    x0: NDArray
    y0: Parameters
    alpha: float  # of the steps on y and on the adjoint v
    beta: float  # of the steps on x
    steps: int
    tolerance: float  # ‖error‖ / ‖distance traveled‖ of x and of y that is still right
    solved: bool = False  # the inner and the adjoint problem, at every step, to a tolerance


def reweighting(rows: int, validation: int, inputs: int, hidden: int, classes: int, steps: int) -> Task:
    """One weight σ(x_i) for each training row of a classifier with one hidden layer of rectifiers, in float32."""
    rng = np.random.default_rng(0)
    examples = lambda n: (
        rng.normal(size=(n, inputs)).astype(np.float32),
        rng.integers(0, classes, n, np.int32),
    )
    layer = lambda m, n: (rng.normal(size=(m, n)) * np.sqrt(2 / m)).astype(np.float32)
    train, valid, W1 = examples(rows), examples(validation), layer(inputs, hidden)
    y0 = (W1, np.zeros(hidden, np.float32), layer(hidden, classes), np.zeros(classes, np.float32))
    return Task(train, valid, np.zeros(rows, np.float32), y0, 5e-2, 1e2, steps, tolerance=1e-4)


def ridge(rows: int, validation: int, features: int, steps: int) -> Task:
    """Least squares with a penalty exp(x_j) of its own for each feature, in float64.

    The features' scales fall from 1 to 1/100, so that the curvature at the start has a condition number of about 1000.
    """
    rng = np.random.default_rng(1)
    scales, truth = np.logspace(0, -2, features), rng.normal(size=features)

    def examples(n: int) -> tuple[NDArray, NDArray]:
        inputs = rng.normal(size=(n, features)) * scales
        return inputs, inputs @ truth + 0.5 * rng.normal(size=n)

    x0, y0 = np.full(features, np.log(1e-3)), (np.zeros(features),)
    return Task(examples(rows), examples(validation), x0, y0, 0.0, 100.0, steps, tolerance=1e-5, solved=True)


FULL: dict[str, Callable[[], Task]] = {
    "itd": lambda: reweighting(2000, 500, 784, 256, 10, steps=10),
    "aid": lambda: reweighting(2000, 500, 784, 256, 10, steps=10),
    "soba": lambda: reweighting(2000, 500, 784, 256, 10, steps=10),
    "ridge": lambda: ridge(2000, 1000, 500, steps=5),
}
QUICK: dict[str, Callable[[], Task]] = {
    "itd": lambda: reweighting(40, 30, 6, 5, 3, steps=3),
    "aid": lambda: reweighting(40, 30, 6, 5, 3, steps=3),
    "soba": lambda: reweighting(40, 30, 6, 5, 3, steps=3),
    "ridge": lambda: ridge(60, 40, 10, steps=3),
}
