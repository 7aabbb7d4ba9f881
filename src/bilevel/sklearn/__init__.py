"""Estimators for scikit-learn: `pip install "bilevel[sklearn]"`.

They work in pipelines, grid searches and cross-validation, and need no knowledge of bilevel optimization.
"""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise ImportError('bilevel.sklearn needs scikit-learn: pip install "bilevel[sklearn]"') from error

from bilevel.sklearn.logistic import PerFeatureLogisticRegression, PerFeatureSparseLogisticRegression
from bilevel.sklearn.reweighted_classifier import ReweightedClassifier
from bilevel.sklearn.ridge import PerFeatureLasso, PerFeatureRidge

__all__ = [
    "PerFeatureLasso",
    "PerFeatureLogisticRegression",
    "PerFeatureRidge",
    "PerFeatureSparseLogisticRegression",
    "ReweightedClassifier",
]
