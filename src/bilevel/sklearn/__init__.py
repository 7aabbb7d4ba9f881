"""Estimators for scikit-learn: `pip install "bilevel[sklearn]"`.

They work in pipelines, grid searches and cross-validation, and need no knowledge of bilevel optimization.
"""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise ImportError('bilevel.sklearn needs scikit-learn: pip install "bilevel[sklearn]"') from error

from bilevel.sklearn.logistic import (
    PerFeatureLogisticRegression as PerFeatureLogisticRegression,
    PerFeatureSparseLogisticRegression as PerFeatureSparseLogisticRegression,
)
from bilevel.sklearn.reweighted_classifier import ReweightedClassifier as ReweightedClassifier
from bilevel.sklearn.ridge import PerFeatureLasso as PerFeatureLasso, PerFeatureRidge as PerFeatureRidge

__all__ = [
    "PerFeatureLasso",
    "PerFeatureLogisticRegression",
    "PerFeatureRidge",
    "PerFeatureSparseLogisticRegression",
    "ReweightedClassifier",
]
