"""Data sets: loaders for the originals, and bundled sets so that everything runs without a network."""

import warnings
from typing import Any

from .characters import Omniglot, omniglot
from .counties import FEATURES as SPACE_GA_FEATURES, space_ga, space_ga_scale
from .digits import Mnist, mnist
from .directories import cache_directory
from .examples import Examples
from .files import DataError
from .formats import parse_idx, parse_libsvm
from .transforms import corrupt_labels, standardize, unit_range

__all__ = [
    "SPACE_GA_FEATURES",
    "DataError",
    "Examples",
    "Mnist",
    "Omniglot",
    "cache_directory",
    "corrupt_labels",
    "mnist",
    "omniglot",
    "parse_idx",
    "parse_libsvm",
    "space_ga",
    "space_ga_scale",
    "standardize",
    "unit_range",
]


def __getattr__(name: str) -> Any:
    if name == "standardise":
        warnings.warn("bl.data.standardise is now bl.data.standardize", DeprecationWarning, stacklevel=2)
        return standardize
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
