"""Architecture search: the operations of a cell, chosen by gradients while its weights train (DARTS).

A cell has nodes 0 … 3. Node 0 is its input, and every later node sums over the edges from all earlier nodes.
Each edge mixes several operations with the weights softmax(x_edge) (Liu, Simonyan & Yang 2019):

    node_j = Σ_{i<j} Σ_o softmax(x_ij)_o · o(node_i)       o: none, skip, mean 3 × 3, convolution 1 × 1 or 3 × 3

    g(x, y) = cross-entropy on the training half + ½c‖y‖²        f(x, y) = cross-entropy on the validation half

x has the mixtures of the six edges, y the weights of the network. At the end each edge keeps its strongest
operation, each node its two strongest edges, and the cell is trained from scratch on both halves.

To adapt it, change the images in `digits`, or the operations in `OPERATIONS` and `logits`.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from matplotlib.figure import Figure

import bilevel as bl
from bilevel.applications.base import Application, Outcome
from bilevel.applications.parts import descend, halved, joined, mnist_parts, run_all, share_right
from bilevel.applications.table import spread
from bilevel.data.examples import Examples
from bilevel.plot.style import BLUE, ORANGE, SKY

OPERATIONS = ("none", "skip", "mean 3×3", "conv 1×1", "conv 3×3")
NODES, KEPT = 4, 2  # nodes of a cell, and edges that lead to each in the end
EDGES = [(i, j) for i in range(NODES - 1) for j in range(i + 1, NODES)]
INTO = [[edge for edge, (_, end) in enumerate(EDGES) if end == j] for j in range(1, NODES)]  # by their end
CHANNELS, STEPS = 8, 250
DECAY = 1e-3
RATE, MOMENTUM, BATCH = 0.05, 0.9, 32
SIZES = 1500, 1500, 1000  # images for training, validation and test


def digits(seed: int) -> tuple[Examples, Examples, Examples]:
    """Return training, validation and test images of 14 × 14 points, each the mean of four."""
    train, valid, test = mnist_parts(*SIZES, seed=seed)
    small = lambda e: Examples(halved(e.inputs).reshape(-1, 14 * 14), e.targets, e.source)
    return small(train), small(valid), small(test)


# The network: a convolution that halves the image, the cell, and a linear classifier


def initial(seed: int) -> dict[str, Any]:
    """Return Gaussian weights of variance 2/fan-in; two kernels for each edge."""
    rng = np.random.default_rng(seed)
    kernel = lambda *shape: (rng.normal(size=shape) * np.sqrt(2 / shape[-2])).astype(np.float32)
    return {
        "stem": kernel(9, CHANNELS),
        "1×1": kernel(len(EDGES), CHANNELS, CHANNELS),
        "3×3": kernel(len(EDGES), 9 * CHANNELS, CHANNELS),
        "classes": np.float32(0.1) * kernel(9 * CHANNELS * (NODES - 1), 10),
    }


def shifts(side: int, stride: int = 1) -> np.ndarray:
    """Return (9, points, points) matrices that select the neighbors of each point, zero outside the image."""
    line = [np.eye(side, k=k, dtype=np.float32)[::stride] for k in (-1, 0, 1)]
    return np.stack([np.kron(down, right) for down in line for right in line])


HALVE, AROUND = shifts(14, 2), shifts(7)
THIRD = np.repeat(np.eye(3, dtype=np.float32), (2, 3, 2), axis=1)  # of the rows, or of the columns
NINTH = np.kron(THIRD, THIRD) / np.kron(THIRD, THIRD).sum(axis=1, keepdims=True)


def normalized(h: Any) -> Any:
    return h * lax.rsqrt(jnp.mean(h**2, axis=(0, 2), keepdims=True) + 1e-5)


def logits(mixture: Any, y: dict[str, Any], images: Any) -> Any:
    """Return the logits of images, with the operations mixed by `mixture`.

    `mixture` has a row for each edge and a column for each operation. Nodes are (points, images, channels).
    """
    # A 1 × 1 kernel is the middle of a 3 × 3 kernel, and convolutions are linear. So one serves both.
    middle = jnp.pad(y["1×1"], ((0, 0), (4 * CHANNELS, 4 * CHANNELS), (0, 0)))
    _, skip, mean, one, three = mixture.T[..., None, None]  # one for each edge
    kernels = one * middle + three * y["3×3"]
    first = jax.nn.relu(jnp.einsum("kpq,nq->pnk", HALVE, images) @ y["stem"])
    nodes, edge = [first], 0
    rest = jnp.zeros((NODES - 1, *first.shape), first.dtype)  # the nodes to come
    while len(rest):
        h = normalized(nodes[-1])
        near = jnp.einsum("kpq,qnc->pnkc", AROUND, jax.nn.relu(h)).reshape(*h.shape[:2], -1)
        averaged = jnp.einsum("pq,qnc->pnc", AROUND.mean(axis=0), h)
        own = slice(edge, edge + len(rest))  # the edges from this node to later ones
        made = jnp.einsum("pnf,efc->epnc", near, kernels[own])
        rest = rest + made + skip[own, ..., None] * h[None] + mean[own, ..., None] * averaged[None]
        nodes, rest, edge = [*nodes, rest[0]], rest[1:], own.stop
    features = jnp.einsum("zp,pnf->nzf", NINTH, jnp.concatenate(nodes[1:], axis=-1))
    return features.reshape(len(images), -1) @ y["classes"]


def cross_entropy(mixture: Any, y: dict[str, Any], batch: Examples) -> Any:
    scores = logits(mixture, y, batch.inputs)
    return optax.softmax_cross_entropy_with_integer_labels(scores, batch.targets).mean()


def training_loss(mixture: Any, y: dict[str, Any], batch: Examples) -> Any:
    return cross_entropy(mixture, y, batch) + 0.5 * DECAY * optax.tree.norm(y, squared=True)


PROBLEM = bl.Problem(
    inner=lambda x, y, batch: training_loss(jax.nn.softmax(x, axis=1), y, batch),
    outer=lambda x, y, batch: cross_entropy(jax.nn.softmax(x, axis=1), y, batch),
)


def task(seed: int) -> bl.problems.Instance:
    train, valid, test = digits(seed)
    data = bl.Batch(inner=train, outer=valid)
    y0 = jax.tree.map(jnp.asarray, initial(seed))
    x0, stream = jnp.zeros((len(EDGES), len(OPERATIONS)), jnp.float32), bl.epochs(data, size=BATCH, seed=seed)
    wrong = lambda x: 1 - percent_right(discretized(x), y0, joined(train, valid), test, 2 * STEPS) / 100
    label = f"share of wrong labels of the test, after training the cell for {2 * STEPS} steps"
    return bl.problems.Instance("architecture-search", PROBLEM, x0, y0, stream, 1 / RATE, wrong, label)


# Cells: for each edge the number of its operation, 0 for none


def discretized(x: Any) -> np.ndarray:
    """Keep the strongest operation except "none" of each edge, and the strongest edges of each node."""
    weights = np.array(jax.nn.softmax(jnp.asarray(x), axis=1))[:, 1:]
    cell = 1 + weights.argmax(axis=1)
    for into in INTO:
        for edge in sorted(into, key=lambda edge: -weights[edge].max())[KEPT:]:
            cell[edge] = 0
    return cell


def random_cell(rng: np.random.Generator, like: np.ndarray | None = None) -> np.ndarray:
    """Return random operations, or the operations of another cell in random order."""
    cell = np.zeros(len(EDGES), int)
    for into in INTO:
        cell[rng.choice(into, min(KEPT, len(into)), replace=False)] = 1
    used = np.count_nonzero(cell)
    random = lambda: rng.integers(1, len(OPERATIONS), used)
    cell[cell > 0] = random() if like is None else rng.permutation(like[like > 0])
    return cell


def weights_of(cell: np.ndarray) -> int:
    return int(CHANNELS**2 * np.sum((cell == 3) + 9 * (cell == 4)))


@partial(jax.jit, static_argnames="steps")
def trained(mixture: Any, y: dict[str, Any], examples: Examples, *, steps: int) -> Any:
    """Train from scratch by gradient descent with momentum and a rate that falls to zero."""
    rule = optax.sgd(optax.cosine_decay_schedule(RATE, steps), momentum=MOMENTUM)

    def gradient(y, key):
        rows = jax.random.choice(key, len(examples), (BATCH,))
        batch = jax.tree.map(lambda part: part[rows], examples)
        return jax.grad(training_loss, argnums=1)(mixture, y, batch)

    return descend(rule, gradient, y, jax.random.split(jax.random.key(0), steps))


@jax.jit
def accuracy(mixture: Any, y: dict[str, Any], examples: Examples) -> Any:
    return 100 * share_right(logits(mixture, y, examples.inputs), examples.targets)


def percent_right(cell: np.ndarray, y0: dict[str, Any], train: Examples, test: Examples, steps: int) -> float:
    """Return the test accuracy of this cell in a network trained from scratch."""
    mixture = jax.nn.one_hot(cell, len(OPERATIONS), dtype=jnp.float32)
    return float(accuracy(mixture, trained(mixture, y0, train, steps=steps), test))


def methods(problem: bl.Problem) -> dict[str, bl.Solver]:
    inner, outer = optax.sgd(RATE, momentum=MOMENTUM), optax.adam(0.03, b1=0.5)
    return {
        "AID": bl.aid(problem, inner=inner, adjoint=0.1, outer=outer),
        "ITD": bl.itd(problem, inner=inner, outer=outer),
        "DARTS": bl.solvers.darts(problem, inner=inner, outer=outer, virtual_step=RATE),
        "DARTS, first order": bl.solvers.darts_first_order(problem, inner=inner, outer=outer),
    }


def trial(seed: int, steps: int, progress: bool) -> Outcome:
    this, (train, valid, test) = task(seed), digits(seed)
    known, runs = joined(train, valid), run_all(methods(this.problem), this, steps, progress)
    found = {name: discretized(run.x) for name, run in runs.items()}

    def score(cell):
        right = percent_right(cell, this.y0, known, test, 2 * steps)
        return {"test accuracy %": right, "weights of the cell": weights_of(cell)}

    scores = {name: score(cell) for name, cell in found.items()}
    rng, count = np.random.default_rng(seed), 5 if steps > 20 else 1
    mean = lambda cells: {k: float(np.mean([s[k] for s in cells])) for k in cells[0]}
    several = lambda like: mean([score(random_cell(rng, like)) for _ in range(count)])
    scores["random, operations of AID's"] = several(found["AID"])
    scores["random, any operations"] = several(None)
    scores["3×3 convolutions only"] = score(random_cell(rng, np.full(len(EDGES) - 1, 4)))
    return Outcome(scores, found)


COLORS = dict(zip(OPERATIONS, ("#ffffff", "#999999", ORANGE, SKY, BLUE), strict=True))


def draw(figure: Figure, outcomes: list[Outcome]) -> None:
    """Draw the cells that AID found with the first three seeds, and the accuracies of all."""
    shown = outcomes[:3]
    figure.set_size_inches(9, 1.6 + 1.1 * len(shown))
    grid = figure.add_gridspec(len(shown), 2, width_ratios=(1.15, 1))
    for row, outcome in enumerate(shown):
        draw_cell(figure.add_subplot(grid[row, 0]), outcome.seen["AID"])
    figure.axes[0].set_title("the cells that AID found", fontsize=10)
    bars = figure.add_subplot(grid[:, 1])
    names = list(outcomes[0].scores)
    percent = np.array([[each.scores[name]["test accuracy %"] for name in names] for each in outcomes])
    bars.errorbar(percent.mean(axis=0), range(len(names)), xerr=spread(percent), fmt="o", color=BLUE)
    bars.set_yticks(range(len(names)), names)
    bars.invert_yaxis()
    bars.set_title("test accuracy after training from scratch, %", fontsize=10)
    bars.grid(axis="x", color="#dddddd")
    bars.spines[["top", "right"]].set_visible(False)


def draw_cell(axes: Any, cell: np.ndarray) -> None:
    """Draw the nodes in a row. An edge to the next node is straight, a longer one is an arc."""
    for (i, j), operation in zip(EDGES, (OPERATIONS[o] for o in cell), strict=True):
        if operation == "none":
            continue
        bend = {1: 0.0, 2: -0.45}.get(j - i, 0.4)  # above one node, below two
        look = dict(arrowstyle="-|>", color=COLORS[operation], lw=3, connectionstyle=f"arc3,rad={bend}")
        axes.annotate("", (j, 0), (i, 0), arrowprops=dict(**look, shrinkA=14, shrinkB=14, mutation_scale=16))
        height, ground = (-0.5 * bend * (j - i), BEHIND) if bend else (-0.17, None)
        axes.text((i + j) / 2, height, operation, ha="center", va="center", fontsize=8, bbox=ground)
    axes.scatter(range(NODES), [0] * NODES, s=420, color="#f0f0f0", edgecolors="black", zorder=3)
    for node, label in enumerate(("in", *map(str, range(1, NODES)))):
        axes.text(node, 0, label, ha="center", va="center", zorder=4)
    axes.set(xlim=(-0.3, NODES - 0.7), ylim=(-0.75, 0.6))
    axes.axis("off")


BEHIND = dict(boxstyle="round,pad=0.15", facecolor="white", edgecolor="none")  # for the label of an arc

TITLE = "a cell of convolutions, means and skips for digits, chosen by gradients (DARTS)"
SOURCE = (
    "bl.data.mnist(), to 14 × 14 points: 1,500 digits to train on, 1,500 to validate with, 1,000 to test on"
)
BETTER = ("test accuracy %",)
NEUTRAL = ("weights of the cell",)
APPLICATION = Application(
    "architecture-search", TITLE, task, STEPS, trial, draw, better=BETTER, neutral=NEUTRAL, source=SOURCE
)
