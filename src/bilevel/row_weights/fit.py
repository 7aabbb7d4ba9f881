"""One weight per training row, learned from a few trusted rows, and a ranking of the probably mislabeled ones.

The rows, trusted ones too, are dealt into K folds, and K models are trained at once, the k-th without fold k:

    g(x, y) = Σ_k { mean_i [i not in fold k] (w_i ℓ(y_k; a_i, b_i) + (1 − w_i) ℓ(y_k; a_i, r_i)) + ½ ρ ‖y_k‖² }
    f(x, y) = mean_j ℓ(y_k(j); a_j, b_j) + (1/2m) Σ_i (x_i − p_i)²

w_i = σ(x_i) is how much of row i counts for its label b_i; the rest counts for r_i, the other classes as probable as a
model finds them. Trusted rows have weight three. f is the loss of the m trusted rows, each judging the one model that
has not seen it; so they serve twice, to train and to judge, and no row is ranked by a model that learned its label.

p and r come from rounds of label correction, an EM as of Dawid & Skene (1979), cross-fitted: the models are trained; by
the one that has not seen row i, and a table of which class is mistaken for which, the label of row i is right with
probability σ(p_i), else distributed like r_i. Then hypergradients of f move x from p. Its second term is the prior
that goes with it: the weights are many, and m rows alone would fit them to themselves. Where m is small, x therefore
moves little, and nearly all of the ranking comes from the rounds before.

A row is the more suspicious, the less its label counts in the end and the less probable the model that has not seen it
finds it. The first knows which classes are mistaken for which, the second is safer where mistakes have no pattern.
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
from bilevel.row_weights.models import Predictor, initial, logits, predictor, scale_of
from bilevel.row_weights.padding import bucket, padded
from bilevel.solvers.algorithms.aid import aid
from bilevel.solvers.algorithms.itd import itd

FOLDS = 5
ROUNDS = 10
TRAINING = 40  # steps on the models in a round; the first takes three times as many
LARGEST = 16384  # rows of a batch; fewer are taken whole
SURE = 7.0  # the largest |p|
NETWORK_RIDGE = 0.4  # of a network's weights, to that of logistic regression
TRUST = 3  # how many rows a trusted one counts for
PSEUDO = 10  # rows of each class that the table of confusions begins with, at the overall rate of mistakes


class Weighed(NamedTuple):
    """What `weigh` found."""

    weights: np.ndarray  # of every training row, in [0, 1]: how much its label counts
    suspicion: np.ndarray  # of every training row: the larger, the more probably mislabeled
    probabilities: np.ndarray  # of its classes, by the model that has not seen the row
    model: Any  # the parameters of all models, first axis: folds
    predict: Predictor  # inputs ↦ probabilities of the classes, the mean of all models
    trace: dict[str, np.ndarray]  # of the steps on the weights


class Rows(NamedTuple):
    """Of every row, padding included."""

    inputs: Any
    label: Any  # as probabilities of the classes
    instead: Any  # the same, should the label be wrong; r
    fold: Any
    present: Any  # 0 for padding; else what makes the mean over all rows one over the others


class Constants(NamedTuple):
    """What both objectives see unchanged with every batch."""

    prior: Any  # p, one per row
    pull: Any  # 1/m
    ridge: Any  # one per column


def cross_entropies(y: Any, inputs: Any, targets: Any) -> Any:
    """models × rows"""
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
    losses = jnp.take_along_axis(cross_entropies(y, batch.inputs, batch.label), batch.fold[None, :], axis=0)[
        0
    ]
    away = x - shared.prior
    return jnp.mean(losses * batch.present) + 0.5 * shared.pull * jnp.sum(away**2)


PROBLEM = Problem(inner=training, outer=judgment)
# In the logistic model's coordinates no curvature exceeds one (see `scale_of`), and momentum is free to be large.
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
    """The weight and the suspicion of every training row.

    Args:
        inputs: rows × columns of finite numbers; on any scale, for they are standardized here.
        labels: whole numbers from 0 to classes − 1, some of them wrong.
        trusted_inputs: a few more rows, with the same columns.
        trusted_labels: their labels, which are right.
        classes: how many there are.
        hidden: the width of the network's hidden layer; `None` for logistic regression.
        steps: how many the weights take along their hypergradients.
        seed: of the folds, the networks' starts and the batches.
        progress: draw progress bars.
    """
    n, m, d = _checked(inputs, labels, trusted_inputs, trusted_labels, classes, hidden, steps)
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
    with jax.numpy_dtype_promotion("standard"):  # Adam counts in types of its own
        for k in track(range(ROUNDS), "correcting labels", disable=not progress, transient=True):
            data = _stream(rows, judge, constants, (seed + k) % 2**32)
            for _ in range(3 if k == 0 else 1):
                y = _trained(solver, x, y, data)
            probabilities = np.asarray(_unseen(y, rows), np.float64)[:n, :classes]
            right = corrected(probabilities, labels, confusions(right, labels) if k else None)
            x, rows = _believed(x, rows, right, labels)
            constants = constants._replace(prior=x)
        result = run(
            solver, x, y, data=_stream(rows, judge, constants, seed), steps=steps, progress=progress
        ).check()
    y = result.y
    weights = np.asarray(jax.nn.sigmoid(result.x))[:n]
    suspicion = 1 - (weights + probabilities[np.arange(n), labels]) / 2
    predict = predictor(y, scale, d, classes)
    return Weighed(weights, suspicion, probabilities, predict.layers, predict, dict(result.trace))


def corrected(p: np.ndarray, labels: np.ndarray, table: np.ndarray | None) -> np.ndarray:
    """The probabilities of the true class, given inputs and label: p(c | a) · table[c, label], normalized."""
    right = p if table is None else p * table[:, labels].T
    return right / np.maximum(right.sum(axis=1, keepdims=True), 1e-30)


def confusions(right: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """table[c, b]: the share of class c that is labeled b."""
    classes = right.shape[1]
    counts = right.T @ np.eye(classes)[labels]
    rate = np.trace(counts) / len(labels)
    even = np.where(np.eye(classes, dtype=bool), rate, (1 - rate) / (classes - 1))
    counts += PSEUDO * even
    return counts / counts.sum(axis=1, keepdims=True)


def _believed(x: Any, rows: Rows, right: np.ndarray, labels: np.ndarray) -> tuple[Any, Rows]:
    """x at its prior, and what each row is should its label be wrong."""
    n, classes = right.shape
    own = np.clip(right[np.arange(n), labels], 1e-9, 1 - 1e-9)
    prior, instead = x.copy(), rows.instead.copy()
    prior[:n] = np.clip(np.log(own / (1 - own)), -SURE, SURE)
    others = np.where(np.eye(classes, dtype=bool)[labels], 0, right) + 1e-12
    instead[:n, :classes] = others / others.sum(axis=1, keepdims=True)
    return prior, rows._replace(instead=instead)


def _stream(rows: Rows, judge: Rows, constants: Constants, seed: int) -> Any:
    whole = Batch(inner=rows, outer=judge, shared=constants)
    few = len(rows.fold) <= LARGEST
    return whole if few else epochs(whole, size=Levels(inner=LARGEST, outer=None), seed=seed)


@jax.jit
def _trained(solver: Any, x: Any, y: Any, data: Any) -> Any:
    return warm_up(solver, start(solver, x, y, data), data, steps=TRAINING).y


@jax.jit
def _unseen(y: Any, rows: Rows) -> Any:
    """The probabilities of each row's classes by the model that has not seen it."""
    p = jax.nn.softmax(jax.vmap(logits, (0, None))(y, rows.inputs))
    return jnp.take_along_axis(p, rows.fold[None, :, None], axis=0)[0]


def _checked(inputs, labels, trusted_inputs, trusted_labels, classes, hidden, steps) -> tuple[int, int, int]:
    """The numbers of rows, trusted rows and columns."""
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
        raise ValueError(
            f"inputs have {inputs.shape[1]} columns, trusted_inputs {trusted_inputs.shape[1]}: give both the same"
        )
    return len(inputs), len(trusted_inputs), inputs.shape[1]
