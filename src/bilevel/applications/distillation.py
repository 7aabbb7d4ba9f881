"""Data distillation: ten synthetic images of each digit that train a network from random weights.

    g(x, y) = mean cross-entropy of network(y, ·) on the images x, ten of each class
    f(x, y) = the same on real images;        y(x): fifteen steps with momentum on g from random weights

After Wang et al. 2018. Every step draws two new networks, so the images do not depend on one start. For
`bl.maml` every network is a task. Its random weights w are the data of the task, and y is the distance from
them. y starts at zero. The outer rule does not change that start: it learns only the images and the rate. The
score is the test accuracy of new networks. It is compared with ten real images of each digit and with the
centers of ten clusters, where the images start.
"""

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
from bilevel.applications.parts import FreshStream, mean, run_all
from bilevel.data.digits import CLASSES
from bilevel.data.examples import Examples

EACH, NETWORKS, BATCH = 10, 2, 200  # images of each class, networks and real images per step
HIDDEN, FEW = 32, 15  # rectifiers, and differentiated training steps
MOMENTUM = optax.sgd(1.0, momentum=0.9)  # the rule of all networks; the rate multiplies the loss
RATE = 0.02  # of Adam on x
LABELS = np.repeat(np.arange(CLASSES, dtype=np.int32), EACH)
RATES = (0.05, 0.1, 0.2)  # training rates to choose from


# Model: one hidden layer; a network is w + y


class Weights(NamedTuple):
    a: Any
    b: Any
    c: Any
    d: Any


def random_weights(key: Any, hidden: int = HIDDEN) -> Weights:
    """Return Gaussian weights of variance 2/fan-in (He)."""
    first, second = jax.random.split(key)
    normal = lambda key, *shape: jax.random.normal(key, shape, jnp.float32) * (2 / shape[0]) ** 0.5
    zeros = lambda count: jnp.zeros((1, count), jnp.float32)
    return Weights(normal(first, 784, hidden), zeros(hidden), normal(second, hidden, CLASSES), zeros(CLASSES))


def scores(w: Weights, images: Any) -> Any:
    return jax.nn.relu(images @ w.a + w.b) @ w.c + w.d


def loss(w: Weights, images: Any, labels: Any) -> Any:
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores(w, images), labels))


# Problem: x and y have one tree, as `bl.maml` has it


class Point(NamedTuple):
    images: Any  # of x: one row of 784 gray values each
    log_rate: Any  # of x: the logarithm of the step size for the images
    moved: Weights  # of y: the change of the weights by training


def synthetic_loss(x: Point, y: Point, w: Weights) -> Any:
    """Return the loss times the rate, so that a step of size 1 has this rate."""
    return jnp.exp(x.log_rate) * loss(optax.tree.add(w, y.moved), x.images, jnp.asarray(LABELS))


def real_loss(x: Point, y: Point, batch: Any) -> Any:
    w, images, labels = batch
    return loss(optax.tree.add(w, y.moved), images, labels)


PROBLEM = bl.Problem(inner=synthetic_loss, outer=real_loss)


class Fresh(FreshStream):
    """Stream of new networks and some of the real images."""

    real: Examples

    def batch(self, key: Any) -> bl.Batch:
        of_weights, of_rows = jax.random.split(key)
        w = jax.vmap(random_weights)(jax.random.split(of_weights, NETWORKS))
        rows = jax.random.randint(of_rows, (NETWORKS, BATCH), 0, len(self.real), jnp.int32)
        return bl.Batch(w, (w, self.real.inputs[rows], self.real.targets[rows]))


def solver(steps: int) -> Any:
    """Return the solver. `moved`, the start of y, stays zero. The images may leave [0, 1]."""
    adam = optax.adam(optax.cosine_decay_schedule(RATE, max(steps, 1)))
    kinds = Point("learned", "learned", Weights(*["kept"] * 4))
    rule = optax.multi_transform({"learned": adam, "kept": optax.set_to_zero()}, kinds)
    return bl.maml(PROBLEM, inner=MOMENTUM, outer=rule, inner_steps=FEW)


def drawn(real: Examples, seed: int) -> Examples:
    """Return ten random real images of each class."""
    rng, targets = np.random.default_rng(seed), np.asarray(real.targets)
    classes = [np.flatnonzero(targets == digit) for digit in range(CLASSES)]
    return real.take(np.concatenate([rng.choice(rows, EACH, replace=False) for rows in classes]))


def centers(real: Examples, seed: int, rounds: int = 20) -> Examples:
    """Return the ten centers of each class by k-means (Lloyd's algorithm, from random images)."""
    found = np.array(drawn(real, seed).inputs).reshape(CLASSES, EACH, -1)
    for digit in range(CLASSES):
        images = np.asarray(real.inputs)[np.asarray(real.targets) == digit]
        for _ in range(rounds):
            # Squared distances without ‖image‖², which is the same for all centers.
            squares = np.sum(found[digit] ** 2, axis=1) - 2 * images @ found[digit].T
            nearest = np.argmin(squares, axis=1)
            for i in set(nearest):
                found[digit, i] = images[nearest == i].mean(axis=0)
    return Examples(jnp.asarray(found.reshape(CLASSES * EACH, -1)), jnp.asarray(LABELS))


@partial(jax.jit, static_argnames=("every", "blocks", "hidden"))
def accuracies(
    key, some: Examples, rate, valid: Examples, test: Examples, *, every=FEW, blocks=1, hidden=HIDDEN
):
    """Return the accuracies on `valid` and `test` after every block of steps from a random start.

    A step uses a hundred images: all, or a random hundred of more.
    """
    of_weights, of_rows = jax.random.split(key)
    label = lambda w, images: lax.argmax(scores(w, images), 1, jnp.int32)
    right = lambda w, on: jnp.mean(label(w, on.inputs) == on.targets, dtype=jnp.float32)

    def step(point, key):
        w, memory = point
        rows = slice(None)
        if len(some) > len(LABELS):
            rows = jax.random.randint(key, LABELS.shape, 0, len(some), jnp.int32)
        slope = jax.grad(lambda w: rate * loss(w, some.inputs[rows], some.targets[rows]))(w)
        update, memory = MOMENTUM.update(slope, memory)
        return (optax.apply_updates(w, update), memory), None

    def block(point, keys):
        point, _ = lax.scan(step, point, keys)
        return point, (right(point[0], valid), right(point[0], test))

    w = random_weights(of_weights, hidden)
    return lax.scan(block, (w, MOMENTUM.init(w)), jax.random.split(of_rows, (blocks, every)))[1]


def judged(some: Examples, rates: tuple[float, ...], on: tuple[Examples, Examples], **lengths: int) -> float:
    """Return the mean test accuracy of three networks, with the best rate and length in validation."""
    of_starts = jax.random.split(jax.random.key(10**6), 3)
    seen = [[accuracies(key, some, rate, *on, **lengths) for key in of_starts] for rate in rates]
    valid, test = np.moveaxis(np.array(seen), 2, 0).mean(axis=2)  # rates × blocks
    return float(test.flat[np.argmax(valid)])


def parts(seed: int) -> tuple[Examples, Examples, Examples]:
    """Return images for training, validation and test."""
    digits = bl.data.mnist()
    train, valid = digits.train.split(3500, 500, seed=seed)
    test = digits.test.take(np.arange(min(len(digits.test), 2000)))
    return jax.tree.map(jnp.asarray, (train, valid, test))


def task(seed: int) -> bl.problems.Instance:
    """Return the task; the images start at the centers of clusters."""
    train, valid, _ = parts(seed)
    zero = jax.tree.map(jnp.zeros_like, random_weights(jax.random.key(0)))
    x0 = Point(centers(train, seed).inputs, jnp.log(jnp.float32(0.1)), zero)

    def wrong(x: Point) -> Any:
        some = Examples(x.images, jnp.asarray(LABELS))
        return 1 - accuracies(jax.random.key(10**6), some, jnp.exp(x.log_rate), valid, valid)[0][-1]

    label = f"share of wrong labels after {FEW} steps from a random start"
    return bl.problems.Instance(
        "distillation", PROBLEM, x0, x0, Fresh(jax.random.key(seed), train), 1.0, wrong, label
    )


def trial(seed: int, steps: int, progress: bool) -> Outcome:
    """Train the network of the synthetic images, and one four times as wide, with every set of images."""
    instance, (train, valid, test) = task(seed), parts(seed)
    (result,) = run_all({"MAML": solver(steps)}, instance, steps, progress).values()
    rates = *RATES, float(jnp.exp(result.x.log_rate))  # the same for all sets
    synthetic = Examples(result.x.images, jnp.asarray(LABELS))
    sets = {"ten synthetic": synthetic, "ten k-means centers": centers(train, seed)}
    sets |= {f"ten real, draw {i + 1}": drawn(train, seed + 1000 * i) for i in range(3)}
    sets["all real"] = train
    found = {}
    for name, some in sets.items():
        lengths = {"every": 10 * FEW if name == "all real" else FEW, "blocks": min(10, steps)}
        judge = partial(judged, some, rates, (valid, test), **lengths)
        found[name] = {"accuracy": judge(), "wider network": judge(hidden=4 * HIDDEN)}
    return Outcome(found, {"pictures": {name: np.asarray(sets[name].inputs) for name in list(sets)[:2]}})


def draw(figure: Figure, outcomes: list[Outcome]) -> None:
    """Draw the images, and the accuracies of networks trained on them."""
    *left, right = figure.subplots(1, 3, width_ratios=(1.5, 1.5, 1))
    for axes, (name, images) in zip(left, outcomes[0].seen["pictures"].items(), strict=True):
        tiles = images.reshape(CLASSES, EACH, 28, 28).transpose(0, 2, 1, 3).reshape(CLASSES * 28, EACH * 28)
        axes.imshow(np.round(8 * tiles), cmap="gray_r", vmin=-2, vmax=10)  # few shades, for a small file
        axes.set(xticks=[], yticks=[], title=name)
    names = list(outcomes[0].scores)[::-1]
    places = np.arange(len(names))
    labels = {"accuracy": "the network they were made for", "wider network": "one four times as wide"}
    for shift, (measure, label) in zip((0.2, -0.2), labels.items(), strict=True):
        widths = [100 * mean(outcomes, name, measure) for name in names]
        right.barh(places + shift, widths, 0.4, label=label)
    right.set_yticks(places, names, fontsize="small")
    right.set(xlim=(50, 100), title="test accuracy, %")
    right.legend(fontsize="x-small", loc="upper center", bbox_to_anchor=(0.4, -0.1), frameon=False)


TITLE = "Data distillation: ten synthetic images per class that train a network"
SOURCE = "MNIST, the bundled 5,000 images or all of them from BILEVEL_DATA"
BETTER = ("accuracy", "wider network")
APPLICATION = Application("distillation", TITLE, task, 500, trial, draw, better=BETTER, source=SOURCE)
