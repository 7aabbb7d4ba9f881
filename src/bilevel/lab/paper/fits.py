"""Power laws. The exponent is the slope of a straight line through logarithms."""

from typing import NamedTuple

import numpy as np


class PowerLaw(NamedTuple):
    """Power law value ≈ factor · at^exponent, by least squares in log-log space."""

    exponent: float
    factor: float


class Scale(NamedTuple):
    """Relation target ≈ factor · curve: the factor by log least squares, and the range of target/curve."""

    factor: float
    low: float
    high: float


def power_law(at: np.ndarray, values: np.ndarray) -> PowerLaw:
    slope, intercept = np.polyfit(np.log(at), np.log(values), 1)
    return PowerLaw(float(slope), float(np.exp(intercept)))


def scale(curve: np.ndarray, target: np.ndarray) -> Scale:
    ratio = np.asarray(target) / np.asarray(curve)
    return Scale(float(np.exp(np.mean(np.log(ratio)))), float(ratio.min()), float(ratio.max()))


def bootstrap_exponent(
    at: np.ndarray, values: np.ndarray, seed: int, draws: int = 2000, level: float = 0.95
) -> tuple[float, float]:
    """Return the percentile interval of the exponent fitted to the mean over seeds, the rows of `values`.

    Seeds are resampled whole: the runs of one seed share their data split, so they are not independent. With
    a single seed the interval is NaN.
    """
    seeds = len(values)
    if seeds < 2:
        return np.nan, np.nan
    rows = np.random.default_rng(seed).integers(0, seeds, size=(draws, seeds))
    means = np.log(values[rows].mean(axis=1))
    centered = np.log(at) - np.log(at).mean()
    slopes = means @ centered / (centered @ centered)
    low, high = np.quantile(slopes, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
