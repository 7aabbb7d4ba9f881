"""Losses agree with torch: reductions, weights, ignored labels, certain predictions."""

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bilevel.torch._table.losses import binary_cross_entropy
from bilevel.torch.types import to_jax
from torch_front.layers import check_layer
from torch_front.operations import check, tensor

A, B = tensor(3, 4), tensor(3, 4, seed=1)
UNIT, TARGETS = tensor(3, 4, low=0.05, high=0.95), tensor(3, 4, seed=2, low=0.05, high=0.95)
WEIGHT = tensor(4, seed=3, low=0.2)
NONE, MEAN, SUM = REDUCTIONS = range(3)
LABELS = torch.tensor([1, 0, 3])


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_regression(reduction):
    kinks = torch.tensor([0, 0.5, -0.5, 2, -2], dtype=torch.float64)
    check("aten.mse_loss.default", A, B, reduction)
    for name in ("smooth_l1_loss", "huber_loss"):
        check(f"aten.{name}.default", A, B, reduction, 0.7)
        check(f"aten.{name}.default", kinks, 0 * kinks, reduction, 0.5, derivatives=1)
    for name in ("mse_loss", "smooth_l1_loss", "huber_loss"):
        check(f"aten.{name}.default", A.bfloat16(), B.bfloat16(), reduction)
        check(f"aten.{name}.default", tensor(), tensor(seed=1), reduction)
        check(f"aten.{name}.default", A[:0], B[:0], reduction, derivatives=0)


def reduced(losses, reduction):
    return (losses, losses.mean(), losses.sum())[reduction]


def with_logits(a, target, weight, pos_weight, reduction):
    """Return the loss. Torch's own operation has no derivative in the weights."""
    losses = (target - 1) * F.logsigmoid(-a) - pos_weight * target * F.logsigmoid(a)
    return reduced(weight * losses, reduction)


def with_weight(p, target, weight, reduction):
    return reduced(weight * F.binary_cross_entropy(p, target, reduction="none"), reduction)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_binary_cross_entropy(reduction):
    plain, logits = "aten.binary_cross_entropy.default", "aten.binary_cross_entropy_with_logits.default"
    check(plain, UNIT, TARGETS, None, reduction)
    check(plain, UNIT, TARGETS, WEIGHT.expand(3, 4), reduction, derivatives=0)
    check(plain, UNIT, TARGETS, WEIGHT, reduction, reference=with_weight)
    check(plain, UNIT.bfloat16(), TARGETS.bfloat16(), None, reduction)
    check(logits, A, TARGETS, None, None, reduction)
    check(logits, A, TARGETS, WEIGHT, WEIGHT + 1, reduction, derivatives=0)
    check(logits, A, TARGETS, WEIGHT, WEIGHT + 1, reduction, reference=with_logits)
    check(logits, A.bfloat16(), TARGETS.bfloat16(), None, None, reduction)


def test_certain_predictions():
    """Compare predictions of 0 and 1, right and wrong: torch bounds the logarithms and the slopes."""
    certain, labels = torch.tensor([[0, 0, 1, 1], [0, 1, 0, 1]], dtype=torch.float64)
    check("aten.binary_cross_entropy.default", certain, labels, None, NONE, derivatives=0)
    slopes = jax.grad(lambda p: binary_cross_entropy(p, to_jax(labels), None, SUM))(to_jax(certain))
    certain.requires_grad_(True)
    F.binary_cross_entropy(certain, labels, reduction="sum").backward()
    np.testing.assert_allclose(slopes, certain.grad)
    logits = torch.tensor([0, 0, 800, -800, 800, -800], dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 1, 1, 0], dtype=torch.float64)
    check("aten.binary_cross_entropy_with_logits.default", logits, labels, None, None, MEAN)


def nll(a, target, weight, reduction, ignored):
    """Return the loss and the sum of the weights. Torch's own operation has no derivative in the weights."""
    axis = min(a.ndim - 1, 1)
    index = target.clamp(0)
    weights = torch.where(target == ignored, 0, weight[index])
    losses = -weights * a.gather(axis, index.unsqueeze(axis)).squeeze(axis)
    if reduction == NONE:
        return losses, torch.zeros(()).to(a)
    return losses.sum() / (weights.sum() if reduction == MEAN else 1), weights.sum()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nll(reduction):
    flat = "aten.nll_loss_forward.default"
    for target, ignored in ((LABELS, -100), (LABELS, 0), (torch.tensor([-100, 2, 2]), -100)):
        check(flat, A, target, None, reduction, ignored)
        check(flat, A, target, WEIGHT, reduction, ignored, derivatives=0)
        check(flat, A, target, WEIGHT, reduction, ignored, reference=nll)
    check(flat, A, torch.full((3,), -100), None, reduction, -100, derivatives=0)  # the mean is NaN
    if reduction != NONE:  # torch: another second result
        check(flat, A[0], LABELS[2], None, reduction, -100)
        check(flat, A[0], LABELS[2], WEIGHT, reduction, -100, derivatives=0)
    check(flat, A.bfloat16(), LABELS, None, reduction, -100)
    images, target = tensor(2, 4, 3, 2), tensor(2, 3, 2, low=0, high=3, dtype=torch.int64)
    check("aten.nll_loss2d_forward.default", images, target, None, reduction, 2)
    check("aten.nll_loss2d_forward.default", images, target, WEIGHT, reduction, 2, derivatives=0)
    check("aten.nll_loss2d_forward.default", images, target, WEIGHT, reduction, 2, reference=nll)


def test_classification_of_a_graph():
    """Compare losses that torch decomposes, in one export."""
    parts = tensor(4, seed=5, low=0.1)

    def outputs(a, b):
        chances, weight = b.softmax(1), parts.to(a)
        ignored = F.cross_entropy(a, LABELS, weight=weight, ignore_index=0)
        smooth = [
            F.cross_entropy(a, LABELS, label_smoothing=0.1, reduction=kind)
            for kind in ("none", "mean", "sum")
        ]
        weighted = F.cross_entropy(a, LABELS, weight=weight, ignore_index=3, label_smoothing=0.2)
        soft = F.cross_entropy(a, chances), F.cross_entropy(a, chances, weight=weight, label_smoothing=0.1)
        images = F.cross_entropy(a[None, :, :, None], LABELS[None, :1, None].expand(1, 4, 1) * 0 + 2)
        divergence = (
            F.kl_div(a.log_softmax(1), chances, reduction="batchmean"),
            F.kl_div(a, b, log_target=True, reduction="sum"),
        )
        signs = torch.sign(b).detach()
        margins = (
            F.soft_margin_loss(a, signs),
            F.hinge_embedding_loss(a, signs),
            F.multilabel_soft_margin_loss(a, b),
        )
        others = F.poisson_nll_loss(a, b.exp()), F.l1_loss(a, b)
        return ignored, smooth, weighted, soft, images, divergence, margins, others

    check_layer(outputs, A, B)


def test_similarities_of_a_graph():
    def outputs(a, b):
        signs = torch.tensor([1, -1, 1])
        return (
            F.cosine_similarity(a, b),
            F.cosine_embedding_loss(a, b, signs),
            F.margin_ranking_loss(a[:, 0], b[:, 0], signs),
            F.triplet_margin_loss(a, b, a * b, margin=5.0),
            F.pairwise_distance(a, b),
            F.mse_loss(a, b, reduction="none"),
            F.huber_loss(a, b),
            F.smooth_l1_loss(a, b),
            F.binary_cross_entropy_with_logits(a, b, pos_weight=WEIGHT.to(a)),
        )

    check_layer(outputs, A, B)
