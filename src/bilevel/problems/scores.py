"""How good a classifier, or a ranking, is."""

import numpy as np


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """The share of rows whose largest logit is the label's."""
    return float(np.mean(np.argmax(logits, axis=1) == labels))


def roc_auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """P(score of a positive > score of a negative) + ½ P(equal): the area under the ROC curve.

    By ranks (Mann-Whitney): ties get the mean of the ranks they share.
    """
    positive = np.asarray(positive, dtype=bool)
    count, others = int(positive.sum()), int((~positive).sum())
    if not count or not others:
        raise ValueError(f"{count} positives and {others} negatives: the ROC curve needs both")
    _, place, size = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(size) - (size - 1) / 2
    return float((ranks[place][positive].sum() - count * (count + 1) / 2) / (count * others))
