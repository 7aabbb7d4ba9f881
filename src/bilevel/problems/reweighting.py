"""Data reweighting: one weight for each training example, learned on clean validation data.

Examples with wrong labels should lose their weight.

    g(x, y) = (1/n) Σ_i σ(x_i) ℓ(y; a_i, b_i)        f(x, y) = (1/n') Σ_j ℓ(y; a'_j, b'_j)

ℓ is the cross-entropy of a multilayer perceptron with parameters y and one hidden layer of rectifiers; σ is
the logistic function and x holds one logit per training example.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int
from optax import tree

from bilevel.batch import Batch
from bilevel.checks import check_array, check_count, check_dtype, check_generator, check_kind, check_labels
from bilevel.composition import composed
from bilevel.data.examples import Examples
from bilevel.problem import Problem
from bilevel.problems.instance import Instance, checked
from bilevel.types import Scalar


class MLP(NamedTuple):
    """inputs → hidden rectifiers → one logit per class."""

    W1: Any
    b1: Any
    W2: Any
    b2: Any


def initial_mlp(inputs: int, hidden: int, classes: int, seed: Any, dtype: Any = np.float32) -> MLP:
    """Return Gaussian weights of variance 2/fan-in (He) and zero biases."""
    for name, size in (("inputs", inputs), ("hidden", hidden), ("classes", classes)):
        check_count(size, name)
    check_dtype(dtype)
    rng = check_generator(seed)
    layer = lambda rows, columns: (rng.normal(size=(rows, columns)) * np.sqrt(2 / rows)).astype(dtype)
    W1 = layer(inputs, hidden)
    return MLP(W1, np.zeros(hidden, dtype), layer(hidden, classes), np.zeros(classes, dtype))


def logits(y: MLP, inputs: Float[Array, "n d"]) -> Float[Array, "n c"]:
    hidden = jax.nn.relu(inputs @ y.W1 + y.b1[None, :])
    return hidden @ y.W2 + y.b2[None, :]


def cross_entropies(scores: Float[Array, "n c"], labels: Int[Array, " n"]) -> Float[Array, " n"]:
    at_label = jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
    return jax.nn.logsumexp(scores, axis=1) - at_label


def losses(y: MLP, batch: Examples) -> Float[Array, " n"]:
    """Return the cross-entropy of each example; targets are whole numbers from 0."""
    return cross_entropies(logits(y, batch.inputs), batch.targets)


def validation_loss(x: Float[Array, " n"], y: MLP, batch: Examples) -> Scalar:
    return jnp.mean(losses(y, batch))


def weighted_loss(
    x: Float[Array, " n"],
    scores: Float[Array, "b c"],
    batch: Examples,
    *,
    rows: Int[Array, " b"] | None = None,
) -> Scalar:
    """Return the weighted loss. `rows` are the weights of the batch; `None`: the batch is all the data."""
    own = x if rows is None else x[rows]
    return jnp.mean(jax.nn.sigmoid(own) * cross_entropies(scores, batch.targets))


def predicted(x: Float[Array, " n"], y: MLP, batch: Examples) -> Float[Array, "b c"]:
    return logits(y, batch.inputs)


weighted_training_loss = composed(predicted, weighted_loss)
PROBLEM = Problem(outer=validation_loss, inner=weighted_training_loss)


def data_reweighting(
    train: Examples, valid: Examples, y0: MLP, *, L: float = 2.0, training_steps: int = 150
) -> Instance:
    """Return the instance in which all weights start at ½.

    y*(x) is not unique, and ∇Φ is not defined. The yardstick of x is the validation loss of a network trained
    with its weights, by `training_steps` gradient steps of size 1 from `y0`. It does not depend on the y of a
    method. `L` is an assumption, for steps of 1/L; a network has no such constant.
    """
    check_count(training_steps, "training_steps", least=0)
    _check(train, valid, y0)
    y0, data = jax.tree.map(jnp.asarray, (y0, Batch(inner=train, outer=valid)))
    return Instance(
        name="reweighting",
        problem=PROBLEM,
        x0=jnp.zeros(len(train), y0.W1.dtype),
        y0=y0,
        data=data,
        L=L,
        measure=trained_by(data, y0, training_steps),
        label="validation loss after training with weights σ(x)",
    )


def _check(train: Any, valid: Any, y0: Any) -> None:
    """Raise if the network does not fit the examples and their labels."""
    check_kind(y0, MLP, "y0", "an MLP", "pass initial_mlp(inputs, hidden, classes, seed)")
    for name, part in y0._asdict().items():
        check_array(part, f"y0.{name}", 2 if name.startswith("W") else 1)
    for name, examples in checked(train, valid):
        if examples.inputs.shape[1] != y0.W1.shape[0]:
            raise ValueError(
                f"{name}.inputs have {examples.inputs.shape[1]} columns, but y0 takes {y0.W1.shape[0]}: make y0 by "
                f"initial_mlp({examples.inputs.shape[1]}, ...)"
            )
        check_labels(examples.targets, f"{name}.targets", y0.W2.shape[1])


def trained_by(data: Batch, y0: MLP, steps: int) -> Callable[[Any], Scalar]:
    """Return a function from x to the validation loss of a network trained with its weights."""

    def loss(x: Any) -> Scalar:
        descend = lambda _, y: tree.add_scale(y, -1.0, PROBLEM.oracles.inner_gradient(x, y, data))
        return PROBLEM.f(x, lax.fori_loop(0, steps, descend, y0), data)

    return loss
