"""Data reweighting: one weight for each training example, so that the classifier trained with them does well on
clean validation data. Examples with wrong labels should lose their weight.

    g(x, y) = (1/n) Σ_i σ(x_i) ℓ(y; a_i, b_i)        f(x, y) = (1/n') Σ_j ℓ(y; a'_j, b'_j)

ℓ is the cross-entropy of a multilayer perceptron with parameters y and one hidden layer of rectifiers; σ is the
logistic function and x holds one logit per training example.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bilevel.problem import Problem


class Labelled(NamedTuple):
    inputs: Any  # one row per example
    labels: Any  # whole numbers from 0


class MLP(NamedTuple):
    """inputs → hidden rectifiers → one logit per class."""

    W1: Any
    b1: Any
    W2: Any
    b2: Any


def initial_mlp(inputs: int, hidden: int, classes: int, seed: Any, dtype: Any = np.float32) -> MLP:
    """Gaussian weights of variance 2/fan-in (He), zero biases."""
    rng = np.random.default_rng(seed)
    layer = lambda rows, columns: (rng.normal(size=(rows, columns)) * np.sqrt(2 / rows)).astype(dtype)
    W1 = layer(inputs, hidden)
    return MLP(W1, np.zeros(hidden, dtype), layer(hidden, classes), np.zeros(classes, dtype))


def logits(y: MLP, inputs: Float[Array, "n d"]) -> Float[Array, "n c"]:
    hidden = jax.nn.relu(inputs @ y.W1 + y.b1[None, :])
    return hidden @ y.W2 + y.b2[None, :]


def losses(y: MLP, batch: Labelled) -> Float[Array, " n"]:
    """The cross-entropy of each example."""
    scores = logits(y, batch.inputs)
    return jax.nn.logsumexp(scores, axis=1) - _at_label(scores, batch.labels)


def validation_loss(x: Float[Array, " n"], y: MLP, batch: Labelled) -> Float[Array, ""]:
    return jnp.mean(losses(y, batch))


def weighted_training_loss(x: Float[Array, " n"], y: MLP, batch: Labelled) -> Float[Array, ""]:
    return jnp.mean(jax.nn.sigmoid(x) * losses(y, batch))


def reweighting() -> Problem:
    """The problem; data are `Batch(inner=Labelled(...), outer=Labelled(...))`, x starts as zeros, y as an MLP."""
    return Problem(outer=validation_loss, inner=weighted_training_loss)


def _at_label(scores: Float[Array, "n c"], labels: Int[Array, " n"]) -> Float[Array, " n"]:
    return jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
