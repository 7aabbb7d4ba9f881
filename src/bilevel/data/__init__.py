"""Data sets: loaders for the originals, and bundled sets so that everything runs without a network."""

from .cache import cache_directory
from .characters import Omniglot, omniglot
from .counties import FEATURES as SPACE_GA_FEATURES, space_ga, space_ga_scale
from .digits import Mnist, mnist
from .errors import DataError
from .examples import Examples
from .idx import parse_idx
from .libsvm import parse_libsvm
from .noise import corrupt_labels
from .scaling import standardise, unit_range

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
    "standardise",
    "unit_range",
]
