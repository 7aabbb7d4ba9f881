"""Step sizes with the lowest bound, by a grid that zooms in. Any others have a valid bound too."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from bilevel.theory.certificates.descent import largest_step
from bilevel.theory.certificates.stochastic.constant import unit_gain
from bilevel.theory.certificates.stochastic.tracking import Method, Numbers, Tracking


def candidates(method: Method, exponents: np.ndarray) -> Tracking:
    """Step sizes as powers of ten of the largest: 2/(L_yy + μ) for α and η, and for β what exact gradients admit."""
    k = method.blocks
    share = 10.0**exponents
    largest = 2 / (k.L_yy + k.mu)
    alpha, eta = largest * share[0], largest * share[1]
    still = Tracking(method, alpha, eta, np.asarray(0.0))
    beta = largest_step(k.L_Phi, unit_gain(still)) * share[2]
    return Tracking(method, *map(np.asarray, (alpha, eta, beta)))


def lowest(
    method: Method,
    objective: Callable[[Tracking], Numbers],
    decades: tuple[float, float, float],
    points: int,
    rounds: int,
) -> Tracking:
    """The candidate with the smallest objective on [10^−decades, 1]³: each round keeps the best one's neighbors."""
    low, high = -np.asarray(decades, float), np.zeros(3)
    grid = np.array(list(product(np.linspace(0, 1, points), repeat=3))).T
    best = low
    for _ in range(rounds):
        exponents = low[:, None] + grid * (high - low)[:, None]
        values = objective(candidates(method, exponents))
        best, cell = exponents[:, np.argmin(values)], (high - low) / (points - 1)
        low, high = np.maximum(best - cell, -np.asarray(decades)), np.minimum(best + cell, 0)
    return candidates(method, best)
