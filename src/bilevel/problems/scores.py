"""Scores of classifiers and rankings."""

import numpy as np

from bilevel.checks import check_array, check_labels


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of rows in which the label has the largest logit."""
    check_array(logits, "logits", 2)
    check_labels(labels, "labels", logits.shape[1])
    if len(logits) != len(labels) or not len(labels):
        raise ValueError(
            f"{len(logits)} rows of logits but {len(labels)} labels: give one label per row, and some"
        )
    return float(np.mean(np.argmax(logits, axis=1) == labels))


def roc_auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Return the area under the ROC curve: P(score of a positive > score of a negative) + ½ P(equal).

    Compute it from ranks (Mann-Whitney); ties get the mean of their ranks.
    """
    check_array(scores, "scores", 1)
    check_array(positive, "positive", 1)
    if len(scores) != len(positive) or not np.all(np.isfinite(np.asarray(scores, float))):
        raise ValueError(
            f"{len(scores)} scores, all of which must be finite, but {len(positive)} entries of positive: give one for "
            "each score"
        )
    positive = np.asarray(positive, dtype=bool)
    count, others = int(positive.sum()), int((~positive).sum())
    if not count or not others:
        raise ValueError(f"{count} positives and {others} negatives: the ROC curve needs both")
    _, place, size = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(size) - (size - 1) / 2
    return float((ranks[place][positive].sum() - count * (count + 1) / 2) / (count * others))
