"""Wrong labels: training on many labels, some of them wrong, with the help of a few trusted ones.

f is the mean of ℓ over trusted images, ℓ the cross-entropy of a network with parameters y, and g one of

    weight per image     mean_i σ(x_i) ℓ_i(y)                       x: a logit for every image (Shaban et al. 2019)
    weighting network    Σ_i w(ℓ_i; x) ℓ_i(y) / Σ_i w(ℓ_i; x)       x: a network, from loss to weight (Shu et al. 2019)
    label correction     mean_i H(softmax(s·onehot(b_i) + x_i), p(y; a_i))     x: ten logits for every image

A fourth method uses the weights of one step from y, clipped at zero and normalized (Ren et al. 2018):

    w ∝ max(0, −∂/∂ε f(y − α ∇_y Σ_i ε_i ℓ_i)) at ε = 0
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from matplotlib.figure import Figure

import bilevel as bl
from bilevel.applications.base import Application, Outcome
from bilevel.applications.parts import descend, joined, mean, mnist_parts, share_right
from bilevel.checks import check_generator, check_labels
from bilevel.data.examples import Examples
from bilevel.data.transforms import check_share
from bilevel.problems.reweighting import MLP, initial_mlp, logits, losses
from bilevel.problems.scores import roc_auc

CLASSES, HIDDEN, FOLDS = 10, 64, 3
TRAIN, TRUSTED, TEST = 3000, 500, 1000
BATCH, STEPS, DECAY = 200, 300, 5e-3
NOISES = (("uniform", 0.2), ("uniform", 0.4), ("pairwise", 0.2), ("pairwise", 0.4))
RATE = 0.1  # of the network, with momentum 0.9, for every method and baseline
STEP = 0.3  # of the one-step weights, without momentum


def next_labels(
    labels: np.ndarray, probability: float, *, classes: int, seed: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return `(noisy, wrong)`: each label becomes the next class (cyclically) with the given probability.

    This is the harder kind of noise, because the wrong labels of a class agree with each other.
    """
    share = check_share(probability)
    check_labels(labels, "labels", classes)
    wrong = check_generator(seed).random(np.shape(labels)) < share
    return np.where(wrong, (labels + 1) % classes, labels).astype(labels.dtype), wrong


KINDS = {"uniform": bl.data.corrupt_labels, "pairwise": next_labels}


class Digits(NamedTuple):
    noisy: Examples
    trusted: Examples
    test: Examples
    wrong: np.ndarray  # which of the noisy ones; only for the scores


def digits(seed: int, kind: str, share: float) -> Digits:
    clean, trusted, test = mnist_parts(TRAIN, TRUSTED, TEST, seed)
    labels, wrong = KINDS[kind](clean.targets, share, classes=CLASSES, seed=seed)
    return Digits(replace(clean, targets=labels), trusted, test, wrong)


# Three inner losses, one outer


def decay(y: MLP) -> jax.Array:
    """Return the penalty of all methods and baselines, without which a network memorizes wrong labels."""
    return 0.5 * DECAY * (jnp.sum(y.W1**2) + jnp.sum(y.W2**2))


def weighted(x: Any, y: MLP, batch: Examples, *, rows: Any) -> jax.Array:
    return jnp.mean(jax.nn.sigmoid(x[rows]) * losses(y, batch)) + decay(y)


def weight(x: MLP, each: Any) -> jax.Array:
    """Return the weights of images with these losses."""
    return jax.nn.sigmoid(logits(x, each[:, None]))[:, 0]


def weighted_by_network(x: MLP, y: MLP, batch: Examples) -> jax.Array:
    """Return the loss weighted by the network; w is constant in y, as published."""
    # Normalized in a batch, because otherwise the network would learn a step size.
    each = losses(y, batch)
    w = weight(x, lax.stop_gradient(each))
    return jnp.sum(w * each) / jnp.sum(w) + decay(y)


CONFIDENCE = 4.0  # s: a given label starts with exp(4) times the chance of any other


def belief(x: Any, labels: Any) -> jax.Array:
    """Return soft labels: the given labels, shifted by x."""
    return jax.nn.softmax(CONFIDENCE * jax.nn.one_hot(labels, CLASSES, dtype=x.dtype) + x)


def corrected(x: Any, y: MLP, batch: Examples, *, rows: Any) -> jax.Array:
    scores = logits(y, batch.inputs)
    each = jax.nn.logsumexp(scores, axis=1) - jnp.sum(belief(x[rows], batch.targets) * scores, axis=1)
    return jnp.mean(each) + decay(y)


def trusted_loss(x: Any, y: MLP, batch: Examples) -> jax.Array:
    return jnp.mean(losses(y, batch))


WEIGHTS = bl.Problem(inner=weighted, outer=trusted_loss)
NETWORK = bl.Problem(inner=weighted_by_network, outer=trusted_loss)
CORRECTION = bl.Problem(inner=corrected, outer=trusted_loss)


def task(seed: int, kind: str = "uniform", share: float = 0.4) -> bl.problems.Instance:
    """Return the task with a weight for every image; the other inner losses use the same data."""
    noisy, trusted, test, _ = digits(seed, kind, share)
    y0 = initial_mlp(noisy.inputs.shape[1], HIDDEN, CLASSES, seed=seed)

    def wrong(x: Any) -> jax.Array:
        weights = jnp.concatenate([jax.nn.sigmoid(x), jnp.ones(TRUSTED, jnp.float32)])
        return 1 - accuracy(trained(y0, joined(noisy, trusted), weights, STEPS, seed), test)

    data, x0 = bl.Batch(inner=noisy, outer=trusted), jnp.zeros(TRAIN, jnp.float32)
    label = f"share of wrong labels of the test after {STEPS} steps with these weights"
    stream = bl.epochs(data, size=bl.Levels(inner=BATCH, outer=None), seed=seed)
    return bl.problems.Instance("reweighting", WEIGHTS, x0, y0, stream, measure=wrong, label=label)


# Every method ends with a verdict on the labels; the same plain training follows


class Verdict(NamedTuple):
    labels: Any
    weights: Any  # the lower, the more likely the given label is wrong


class Method(NamedTuple):
    solver: bl.Solver
    x0: Any
    verdict: Callable[[Any, MLP, Examples], Verdict]


def methods() -> dict[str, Method]:
    small = initial_mlp(1, 100, 1, seed=0)
    small = small._replace(W2=0.1 * small.W2)  # nearly the same weight for all losses
    rule, adam = optax.sgd(RATE, momentum=0.9), optax.adam
    per_image = bl.aid(WEIGHTS, inner=rule, adjoint=RATE, outer=adam(0.1))
    by_network = bl.itd(NETWORK, inner=rule, outer=adam(1e-3))
    correction = bl.aid(CORRECTION, inner=rule, adjoint=RATE, outer=adam(0.1))
    by_weight = lambda x, y, noisy: Verdict(noisy.targets, jax.nn.sigmoid(x))
    by_loss = lambda x, y, noisy: Verdict(noisy.targets, weight(x, losses(y, noisy)))
    return {
        "weight per image": Method(per_image, np.zeros(TRAIN, np.float32), by_weight),
        "weighting network": Method(by_network, small, by_loss),
        "label correction": Method(correction, np.zeros((TRAIN, CLASSES), np.float32), by_belief),
    }


def by_belief(x: Any, y: MLP, noisy: Examples) -> Verdict:
    """Return the most believed labels, and the belief in the given ones for the ranking."""
    believed = belief(x, noisy.targets)
    left = jnp.take_along_axis(believed, noisy.targets[:, None], axis=1)[:, 0]
    return Verdict(jnp.argmax(believed, axis=1), left)


@partial(jax.jit, static_argnums=3)
def one_step_weights(y: MLP, noisy: Examples, trusted: Examples, steps: int, seed: Any) -> jax.Array:
    """Train with new weights for every batch, and return the mean weight of each image (Ren et al. 2018)."""

    def step(carry: Any, key: Any) -> Any:
        y, total, times = carry
        rows = jax.random.choice(key, len(noisy), (BATCH,), replace=False)
        batch = jax.tree.map(lambda a: a[rows], noisy)
        g = lambda y, w: jnp.sum(w * losses(y, batch)) + decay(y)
        ahead = lambda w: jax.tree.map(lambda a, b: a - STEP * b, y, jax.grad(g)(y, w))
        slope = jax.grad(lambda w: trusted_loss(w, ahead(w), trusted))(jnp.zeros(BATCH, total.dtype))
        w = jax.nn.relu(-slope) / jnp.maximum(jnp.sum(jax.nn.relu(-slope)), 1e-12)
        return (ahead(w), total.at[rows].add(BATCH * w), times.at[rows].add(1)), None

    none = jnp.zeros(len(noisy), y.W1.dtype)
    (_, total, times), _ = lax.scan(step, (y, none, none), jax.random.split(jax.random.key(seed), steps))
    return total / jnp.maximum(times, 1)


@partial(jax.jit, static_argnums=3)
def trained(y: MLP, examples: Examples, weights: Any, steps: int, seed: Any) -> MLP:
    """Train on batches that contain an image in proportion to its weight."""

    def gradient(y: MLP, key: Any) -> MLP:
        rows = jax.random.choice(key, len(examples), (BATCH,), p=weights / jnp.sum(weights))
        batch = jax.tree.map(lambda a: a[rows], examples)
        return jax.grad(lambda y: jnp.mean(losses(y, batch)) + decay(y))(y)

    keys = jax.random.split(jax.random.key(seed), steps)
    return descend(optax.sgd(RATE, momentum=0.9), gradient, jax.tree.map(jnp.asarray, y), keys)


def accuracy(y: MLP, examples: Examples) -> jax.Array:
    return share_right(logits(y, jnp.asarray(examples.inputs)), examples.targets)


def out_of_fold(y: MLP, noisy: Examples, trusted: Examples, steps: int, seed: int) -> np.ndarray:
    """Return the loss of each label under a network that has not seen it, for filtering."""
    everything, found = joined(noisy, trusted), np.zeros(TRAIN, np.float32)
    for k in range(FOLDS):
        mine = np.arange(TRAIN) % FOLDS == k
        kept = np.concatenate([~mine, np.ones(len(trusted), bool)]).astype(np.float32)
        found[mine] = losses(trained(y, everything, kept, steps, seed), noisy)[mine]
    return found


def verdicts(
    seed: int, instance: bl.problems.Instance, data: Digits, steps: int, progress: bool
) -> dict[str, Verdict]:
    noisy, trusted = jax.tree.map(jnp.asarray, data[:2])
    found = {}
    for name, (solver, x0, verdict) in methods().items():
        options: dict[str, Any] = dict(data=instance.data, steps=steps, warmup=steps // 3, progress=progress)
        result = bl.run(solver, x0, instance.y0, **options).check()  # warm-up, until the losses differ
        found[name] = verdict(result.x, result.y, noisy)
    plain = (jax.tree.map(jnp.asarray, instance.y0), noisy, trusted, steps, seed)
    baselines = {
        "one-step weights": one_step_weights(*plain),
        "filtering by loss": -out_of_fold(*plain),
        "unweighted": np.ones(TRAIN, np.float32),
        "trusted only": np.zeros(TRAIN, np.float32),
    }
    return found | {name: Verdict(noisy.targets, weights) for name, weights in baselines.items()}


def training_weights(name: str, verdict: Verdict, share: float) -> np.ndarray:
    """Return 1 for corrected labels. Filtering keeps the true number of right labels, by least loss."""
    if name == "label correction":
        return np.ones(TRAIN, np.float32)
    if name == "filtering by loss":
        return (np.argsort(np.argsort(-verdict.weights)) < (1 - share) * TRAIN).astype(np.float32)
    return np.asarray(verdict.weights)


def trial(seed: int, steps: int, progress: bool) -> Outcome:
    scores: dict[str, dict[str, float]] = {}
    seen = {}
    for kind, share in NOISES if steps > 10 else NOISES[-1:]:
        setting, data, instance = f"{share:.0%} {kind}", digits(seed, kind, share), task(seed, kind, share)
        for name, verdict in verdicts(seed, instance, data, steps, progress).items():
            labels = replace(data.noisy, targets=np.asarray(verdict.labels, np.int32))
            weights = np.concatenate([training_weights(name, verdict, share), np.ones(TRUSTED, np.float32)])
            y = trained(instance.y0, joined(labels, data.trusted), weights, steps, seed)
            row = scores.setdefault(name, {})
            row[f"accuracy, {setting}"] = float(accuracy(y, data.test))
            if np.ptp(verdict.weights) > 0:
                row[f"AUC, {setting}"] = roc_auc(-np.asarray(verdict.weights, float), data.wrong)
            seen[name, setting] = np.asarray(verdict.weights), data.wrong
    return Outcome(scores, seen)


def draw(figure: Figure, outcomes: list[Outcome]) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(1.4, 1))
    settings = [measure.removeprefix("accuracy, ") for measure in outcomes[0].scores["unweighted"]]
    for i, name in enumerate(outcomes[0].scores):
        means = [mean(outcomes, name, f"accuracy, {setting}") for setting in settings]
        style, alpha = ("o-", 1.0) if i < 4 else ("s--", 0.6)
        left.plot(settings, means, style, alpha=alpha, label=name)
    left.set(title="test accuracy", ylabel="squares: baselines")
    left.tick_params(axis="x", labelsize=8)
    left.legend(fontsize=7)
    weights, wrong = outcomes[0].seen["weight per image", settings[-1]]
    bins = np.linspace(0, 1, 31)
    for mask, label, color in ((~wrong, "right", "C0"), (wrong, "wrong", "C3")):
        right.hist(weights[mask], bins, alpha=0.6, label=f"{label} labels", color=color)
    right.set(title=f"weights, {settings[-1]}", ylabel="images")
    right.legend(fontsize=8)


TITLE = "digits with wrong labels: weights and corrected labels, learned from 500 images that can be trusted"
BETTER = tuple(f"{what}, {share:.0%} {kind}" for what in ("accuracy", "AUC") for kind, share in NOISES)
SOURCE = "MNIST (5,000 images of it bundled), labels made wrong on purpose"
APPLICATION = Application("reweighting", TITLE, task, STEPS, trial, draw, better=BETTER, source=SOURCE)
