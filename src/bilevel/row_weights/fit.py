"""Weights of the training rows, learned from a few trusted rows, and a ranking of probably wrong labels.

All rows, also the trusted ones, are split into K folds, and K models are trained at once, the k-th without
fold k:

    g(x, y) = Σ_k { mean_i [i not in fold k] (w_i ℓ(y_k; a_i, b_i) + (1 − w_i) ℓ(y_k; a_i, r_i)) + ½ ρ ‖y_k‖² }
    f(x, y) = mean_j ℓ(y_k(j); a_j, b_j) + (1/2m) Σ_i (x_i − p_i)²

w_i = σ(x_i) is the weight of the label b_i of row i. 1 − w_i is the weight of r_i, the probabilities of the
other classes. Trusted rows have weight three. f is the loss of the m trusted rows under the models that have
not seen them. So trusted rows serve for training and validation, and no model ranks a row that it was trained on.

p and r come from rounds of label correction, a cross-fitted EM as of Dawid & Skene (1979). Each round trains
the models. By the model that has not seen row i and a table of confusions between classes, the label of row i
is right with probability σ(p_i). Otherwise it is distributed like r_i. Then hypergradients of f move x from
p. The second term of f is the prior: there are many weights, and m rows without a prior would be overfitted.
If m is small, x moves little, and the ranking comes almost only from the rounds before.

A row is more suspicious if the final weight of its label is small, and if the model that has not seen it
finds the label improbable. The weight knows the confusions. The probability is safer if errors have no pattern.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.progress import track

from bilevel.batch import Batch, Levels
from bilevel.checks import check_count, check_labels, check_matrix, check_seed
from bilevel.loop.data.streams import epochs
from bilevel.loop.run import run
from bilevel.loop.scan import warm_up
from bilevel.loop.state import start
from bilevel.problem import Problem
from bilevel.row_weights.models import Predictor, bucket, initial, logits, padded, predictor, scale_of
from bilevel.solvers.algorithms.aid import aid
from bilevel.solvers.algorithms.itd import itd

FOLDS = 5
ROUNDS = 10
TRAINING = 40  # steps on the models per round; three times as many in the first
LARGEST = 16384  # rows of a batch; fewer rows are one batch
SURE = 7.0  # the largest |p|
NETWORK_RIDGE = 0.4  # ridge of a network, relative to logistic regression
TRUST = 3  # the weight of a trusted row
PSEUDO = 10  # prior rows per class in the table of confusions, with the overall error rate


class Weighed(NamedTuple):
    """Result of `weigh`."""

    weights: np.ndarray  # of every label, in [0, 1]
    suspicion: np.ndarray  # of every row, larger for probably wrong labels
    probabilities: np.ndarray  # of the classes, by the model that has not seen the row
    predict: Predictor  # inputs ↦ probabilities of the classes, the mean of all models
    trace: dict[str, np.ndarray]  # of the steps on the weights


class Rows(NamedTuple):
    """Arrays with one entry per row, including padding."""

    inputs: Any
    label: Any  # as probabilities of the classes
    instead: Any  # r, the probabilities if the label is wrong
    fold: Any
    present: Any  # the weight of the row in a mean over all rows; 0 for padding


class Constants(NamedTuple):
    """Constants of both objectives, without the minibatches."""

    prior: Any  # p, one per row
    pull: Any  # 1/m
    ridge: Any  # one per column


def cross_entropies(y: Any, inputs: Any, targets: Any) -> Any:
    """Return the cross-entropies, models × rows."""
    scores = jax.nn.log_softmax(jax.vmap(logits, (0, None))(y, inputs))
    return -jnp.sum(scores * targets[None], axis=2)


def training(x: Any, y: Any, batch: Rows, *, rows: Any, shared: Constants) -> Any:
    w = jax.nn.sigmoid(x[rows])[:, None]
    losses = cross_entropies(y, batch.inputs, w * batch.label + (1 - w) * batch.instead)
    seen = batch.fold[None, :] != jnp.arange(FOLDS, dtype=jnp.int32)[:, None]
    first, *others = [W for W, _ in y]
    ridge = shared.ridge
    penalty = jnp.sum(ridge[None, :, None] * first**2) + sum(ridge[0] * jnp.sum(W**2) for W in others)
    return jnp.sum(jnp.mean(jnp.where(seen, losses * batch.present[None, :], 0.0), axis=1)) + 0.5 * penalty


def judgment(x: Any, y: Any, batch: Rows, *, shared: Constants) -> Any:
    every = cross_entropies(y, batch.inputs, batch.label)
    losses = jnp.take_along_axis(every, batch.fold[None, :], axis=0)[0]
    away = x - shared.prior
    return jnp.mean(losses * batch.present) + 0.5 * shared.pull * jnp.sum(away**2)


PROBLEM = Problem(inner=training, outer=judgment)
# In the coordinates of the logistic model no curvature exceeds one (see `scale_of`).
LOGISTIC = aid(PROBLEM, inner=optax.sgd(1.0, momentum=0.8, nesterov=True), adjoint=0.5, outer=1.0)
NETWORK = itd(PROBLEM, inner=optax.adam(3e-3, eps_root=1e-8), outer=1.0)


def weigh(
    inputs: np.ndarray,
    labels: np.ndarray,
    trusted_inputs: np.ndarray,
    trusted_labels: np.ndarray,
    classes: int,
    *,
    hidden: int | None = None,
    steps: int = 40,
    seed: int = 0,
    progress: bool = False,
) -> Weighed:
    """Return the weight and the suspicion of every training row.

    Args:
        inputs: rows × columns of finite numbers on any scale.
        labels: whole numbers from 0 to classes − 1, some of them wrong.
        trusted_inputs: a few more rows with the same columns.
        trusted_labels: the correct labels of these rows.
        classes: the number of classes.
        hidden: the width of the hidden layer; `None` for logistic regression.
        steps: the number of steps on the weights.
        seed: seed of the folds, the initial networks and the batches.
        progress: whether to draw progress bars.
    """
    _check(inputs, labels, trusted_inputs, trusted_labels, classes, hidden, steps)
    (n, d), m = inputs.shape, len(trusted_inputs)
    rng = np.random.default_rng(int(check_seed(seed)))
    mass = n + TRUST * m
    ridge = (1 if hidden is None else NETWORK_RIDGE) / np.sqrt(n + m)
    counted = np.repeat([1, TRUST], [n, m]) / mass
    scale = scale_of(np.concatenate([inputs, trusted_inputs]), counted, ridge, turned=hidden is None)
    columns, depth = bucket(d, 16), bucket(classes, 2)
    one_hot = np.eye(depth, dtype=np.float32)
    part = lambda a, b, size, present: Rows(
        padded(scale(a).astype(np.float32), size, columns),
        padded(one_hot[b], size),
        np.zeros((size, depth), np.float32),
        padded(rng.permutation(np.arange(len(a)) % FOLDS).astype(np.int32), size),
        padded(np.full(len(a), present, np.float32), size),
    )
    many, few = bucket(n, 256), bucket(m, 64)
    size = many + few
    train = part(inputs, labels, many, size / mass)
    judge = part(trusted_inputs, trusted_labels, few, size / mass * TRUST)
    rows = Rows(*map(np.concatenate, zip(train, judge, strict=True)))
    judge = judge._replace(present=padded(np.full(m, few / m, np.float32), few))

    x = np.full(size, 30.0, np.float32)  # a weight of one
    constants = Constants(x, np.float32(1 / m), padded(scale.ridge.astype(np.float32), columns))
    y = initial(d, columns, hidden, classes, depth, FOLDS, rng)
    share = np.float32(min(size, LARGEST) / size)
    solver = LOGISTIC if hidden is None else NETWORK
    solver = eqx.tree_at(lambda s: s.outer.step_size, solver, 0.5 * m * share)  # the prior's curvature is 1/m
    probabilities, right = np.empty(0), np.empty(0)
    with jax.numpy_dtype_promotion("standard"):  # Adam has a counter of another type
        for k in track(range(ROUNDS), "correcting labels", disable=not progress, transient=True):
            data = _stream(rows, judge, constants, (seed + k) % 2**32)
            for _ in range(3 if k == 0 else 1):
                y = _trained(solver, x, y, data)
            probabilities = np.asarray(_unseen(y, rows), np.float64)[:n, :classes]
            right = corrected(probabilities, labels, confusions(right, labels) if k else None)
            x, rows = _believed(x, rows, right, labels)
            constants = constants._replace(prior=x)
        data = _stream(rows, judge, constants, seed)
        result = run(solver, x, y, data=data, steps=steps, progress=progress).check()
    weights = np.asarray(jax.nn.sigmoid(result.x))[:n]
    suspicion = 1 - (weights + probabilities[np.arange(n), labels]) / 2
    predict = predictor(result.y, scale, d, classes)
    return Weighed(weights, suspicion, probabilities, predict, dict(result.trace))


def corrected(p: np.ndarray, labels: np.ndarray, table: np.ndarray | None) -> np.ndarray:
    """Return the probabilities of the true class: p(c | a) · table[c, label], normalized."""
    right = p if table is None else p * table[:, labels].T
    return right / np.maximum(right.sum(axis=1, keepdims=True), 1e-30)


def confusions(right: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return table[c, b], the share of class c with label b."""
    classes = right.shape[1]
    counts = right.T @ np.eye(classes)[labels]
    rate = np.trace(counts) / len(labels)
    even = np.where(np.eye(classes, dtype=bool), rate, (1 - rate) / (classes - 1))
    counts += PSEUDO * even
    return counts / counts.sum(axis=1, keepdims=True)


def _believed(x: Any, rows: Rows, right: np.ndarray, labels: np.ndarray) -> tuple[Any, Rows]:
    """Return x at its prior, and the rows with the class probabilities for a wrong label."""
    n, classes = right.shape
    own = np.clip(right[np.arange(n), labels], 1e-9, 1 - 1e-9)
    prior, instead = x.copy(), rows.instead.copy()
    prior[:n] = np.clip(np.log(own / (1 - own)), -SURE, SURE)
    others = np.where(np.eye(classes, dtype=bool)[labels], 0, right) + 1e-12
    instead[:n, :classes] = others / others.sum(axis=1, keepdims=True)
    return prior, rows._replace(instead=instead)


def _stream(rows: Rows, judge: Rows, constants: Constants, seed: int) -> Any:
    whole = Batch(inner=rows, outer=judge, shared=constants)
    if len(rows.fold) <= LARGEST:
        return whole
    return epochs(whole, size=Levels(inner=LARGEST, outer=None), seed=seed)


@jax.jit
def _trained(solver: Any, x: Any, y: Any, data: Any) -> Any:
    return warm_up(solver, start(solver, x, y, data), data, steps=TRAINING).y


@jax.jit
def _unseen(y: Any, rows: Rows) -> Any:
    """Return the class probabilities of each row by the model that has not seen it."""
    p = jax.nn.softmax(jax.vmap(logits, (0, None))(y, rows.inputs))
    return jnp.take_along_axis(p, rows.fold[None, :, None], axis=0)[0]


def _check(inputs, labels, trusted_inputs, trusted_labels, classes, hidden, steps) -> None:
    check_count(classes, "classes", least=2)
    check_count(steps, "steps")
    if hidden is not None:
        check_count(hidden, "hidden")
    for name, a, b in (("inputs", inputs, labels), ("trusted_inputs", trusted_inputs, trusted_labels)):
        check_matrix(a, name)
        check_labels(b, name.replace("inputs", "labels"), classes)
        if len(a) != len(b):
            raise ValueError(f"{name} has {len(a)} rows, but there are {len(b)} labels: give each row one")
    if inputs.shape[1] != trusted_inputs.shape[1]:
        widths = f"inputs have {inputs.shape[1]} columns, trusted_inputs {trusted_inputs.shape[1]}"
        raise ValueError(f"{widths}: give both the same")
