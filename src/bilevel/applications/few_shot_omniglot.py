"""Few-shot classification: five new characters, one drawing of each to learn from.

    f(x, y; Q_i) = mean cross-entropy of network(y, ·) on the query drawings Q_i of task i
    g(x, y; S_i) = the same on its five support drawings S_i, one of each character;    y_i(x): steps on g from x

x is the start of the weights y of a small convolutional network. The 242 characters are split for training,
for the choice of step sizes, and for the test; every step draws 16 new tasks. MAML, first-order MAML, Reptile
and implicit MAML are compared with training from scratch and with the nearest neighbor by pixels or by the
features of a classifier of all training characters. Needs Omniglot: see `bl.data.omniglot`.
"""

from collections.abc import Iterator
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
from bilevel.applications.parts import FreshStream, adapted as adapted_by, patches
from bilevel.data.characters import DRAWERS, Omniglot, omniglot

WAYS, QUERIES, TASKS = 5, 3, 16
SIZE, FILTERS = 20, 16
SPLIT = (150, 32, 60)  # characters for training, validation, test
ALPHA, RATE, TIE = 0.4, 4e-3, 0.5  # of adaptation, of Adam on x, and iMAML's λ
RATES, MOST = (0.1, 0.2, 0.4), 5  # rates and steps of adaptation, chosen on validation tasks


# Data: new tasks at every step


def turned(part: Omniglot) -> Any:
    """Add characters turned by 90°, 180° and 270°: four times as many for training, as usual."""
    return jnp.concatenate([jnp.asarray(np.rot90(part.images, k, (2, 3))) for k in range(4)])


def episodes(key: Any, images: Any, tasks: int, queries: int) -> bl.Batch:
    """Draw tasks from pictures (characters × drawers × size × size), without repetition in a task."""
    some = lambda key, shape, count: lax.top_k(jax.random.uniform(key, shape, jnp.float32), count)[1]
    flat = lambda a: a.reshape(-1, *a.shape[2:])

    def one(key):
        of_characters, of_drawers = jax.random.split(key)
        characters = some(of_characters, images.shape[:1], WAYS)
        drawers = some(of_drawers, (WAYS, DRAWERS), 1 + queries)
        pictures = images[characters[:, None], drawers]
        labels = jnp.broadcast_to(jnp.arange(WAYS, dtype=jnp.int32)[:, None], drawers.shape)
        part = lambda columns: (flat(pictures[:, columns]), flat(labels[:, columns]))
        return bl.Batch(inner=part(slice(0, 1)), outer=part(slice(1, None)))

    return jax.vmap(one)(jax.random.split(key, tasks))


class Episodes(FreshStream):
    images: Any

    def batch(self, key: Any) -> bl.Batch:
        return episodes(key, self.images, TASKS, QUERIES)


class AllShots(Episodes):
    """Tasks for Reptile, which uses only support drawings; they include the queries."""

    def batch(self, key: Any) -> bl.Batch:
        drawn = super().batch(key)
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), drawn.inner, drawn.outer)
        return bl.Batch(inner=both, outer=drawn.outer)


class Drawings(Episodes):
    """Data for a classifier of all characters, as one task. It sees as many drawings as the other methods."""

    def batch(self, key: Any) -> bl.Batch:
        characters, drawers = self.images.shape[:2]
        shape = 1, TASKS * WAYS * (1 + QUERIES)
        number = jax.random.randint(key, shape, 0, characters * drawers, jnp.int32)
        labels = number // drawers
        some = (self.images[labels, number % drawers], labels)
        return bl.Batch(inner=some, outer=some)


# Model: three convolutions with stride 2; the layers of each picture are standardized


def convolved(h: Any, w: Any, b: Any) -> Any:
    """Convolve 3 × 3 with stride 2, as one product of matrices also for weights per task."""
    return patches(h) @ w + b


def features(y: Any, pictures: Any) -> Any:
    h = pictures[..., None]
    for w, b in y["layers"]:
        h = jax.nn.relu(jax.nn.standardize(convolved(h, w, b), axis=(1, 2, 3)))
    return h.reshape(len(h), -1)


def scores(y: Any, pictures: Any) -> Any:
    return features(y, pictures) @ y["w"] + y["b"]


def initial(rng: np.random.Generator, classes: int = WAYS) -> Any:
    normal = lambda *shape: (rng.normal(size=shape) * (2 / shape[0]) ** 0.5).astype(np.float32)
    zeros = lambda count: np.zeros((1, count), np.float32)
    side = -(-SIZE // 8)
    layers = [(normal(9 * count, FILTERS), zeros(FILTERS)[None, None]) for count in (1, FILTERS, FILTERS)]
    return {"layers": layers, "w": 0.3 * normal(side * side * FILTERS, classes), "b": zeros(classes)}


def predicted(x: Any, y: Any, examples: Any) -> Any:
    return scores(y, examples[0])


def cross_entropy(x: Any, predicted: Any, examples: Any) -> Any:
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(predicted, examples[1]))


# A composed loss has a Gauss–Newton curvature, which is positive, as the systems of iMAML need.
LOSS = bl.composed(predicted, cross_entropy)
PROBLEM = bl.Problem(inner=LOSS, outer=lambda x, y, some: cross_entropy(x, scores(y, some[0]), some))


def learners(steps: int) -> Iterator[tuple[str, Any, type[Episodes]]]:
    adam = optax.adam(optax.cosine_decay_schedule(RATE, max(steps, 1)))
    implicit = bl.adjoints.gauss_newton(bl.adjoints.cg(1e-2, max_steps=3))
    few = {"inner": ALPHA / 4, "outer": adam, "inner_steps": 5}
    tied = {"inner": ALPHA / 2, "outer": adam, "inner_steps": 4, "proximal_weight": TIE, "adjoint": implicit}
    yield "MAML", bl.maml(PROBLEM, inner=ALPHA, outer=adam), Episodes
    yield "first-order MAML", bl.solvers.fomaml(PROBLEM, **few), Episodes
    yield "Reptile", bl.solvers.reptile(PROBLEM, **few), AllShots
    yield "implicit MAML", bl.imaml(PROBLEM, **tied), Episodes


def task(seed: int) -> bl.problems.Instance:
    train, valid, _ = omniglot(size=SIZE).split(*SPLIT, seed=seed)
    x0 = initial(np.random.default_rng(seed))
    new = episodes(jax.random.key(seed + 10**6), jnp.asarray(valid.images), 100, QUERIES)
    data = Episodes(jax.random.key(seed), turned(train))
    wrong = lambda x: 1 - jnp.mean(adapted(x, new, ALPHA, 0.0, 1)[:, -1])
    label = "share of wrong labels after one step, on new characters"
    return bl.problems.Instance("few-shot-omniglot", PROBLEM, x0, x0, data, measure=wrong, label=label)


@partial(jax.jit, static_argnums=4)
def adapted(x: Any, new: bl.Batch, rate: Any, tie: Any, steps: int) -> Any:
    """Return the share of right query drawings after 0, 1, … steps, one row per task."""
    right = lambda y, query: _share(lax.argmax(scores(y, query[0]), 1, jnp.int32) == query[1])
    return adapted_by(PROBLEM, right, x, new, rate, tie, steps)[0]


@jax.jit
def by_pixels(new: bl.Batch) -> Any:
    """Return the share that the nearest support drawing gets right."""
    apart = jnp.sum((new.outer[0][:, :, None] - new.inner[0][:, None]) ** 2, axis=(3, 4))
    return jnp.mean(lax.argmin(apart, 2, jnp.int32) == new.outer[1], axis=1, dtype=jnp.float32)


@jax.jit
def by_features(y: Any, new: bl.Batch) -> Any:
    """Return the same for the angle between the features of a network."""

    def one(support, query):
        a, b = features(y, query[0]), features(y, support[0])
        return _share(lax.argmax(a @ b.T / jnp.linalg.norm(b, axis=1)[None], 1, jnp.int32) == query[1])

    return jax.vmap(one)(new.inner, new.outer)


def _share(right: Any) -> Any:
    return jnp.mean(right, dtype=jnp.float32)


def trial(seed: int, steps: int, progress: bool) -> Outcome:
    train, valid, test = omniglot(size=SIZE).split(*SPLIT, seed=seed)
    key, pictures = jax.random.key(seed), turned(train)
    x0 = initial(np.random.default_rng(seed))
    many = 100 if steps > MOST else 10  # a short trial is short in all parts
    choosing = episodes(jax.random.key(seed + 10**6), jnp.asarray(valid.images), many, QUERIES)
    testing = episodes(jax.random.key(seed + 2 * 10**6), jnp.asarray(test.images), 3 * many, 5)
    starts = {}
    for name, solver, stream in learners(steps):
        data = stream(key, pictures)
        starts[name] = bl.run(solver, x0, x0, data=data, steps=steps, progress=progress).check().x
    starts["from scratch"] = x0
    tie = lambda name: TIE * (name == "implicit MAML")
    shares = {name: _chosen(x, choosing, testing, tie(name)) for name, x in starts.items()}
    # Reptile with one step of size 1 is Adam on the mean loss of its data.
    adam = optax.adam(optax.cosine_decay_schedule(RATE, max(steps, 1)))
    wide = initial(np.random.default_rng(seed), classes=len(pictures))
    classifier = bl.solvers.reptile(PROBLEM, inner=1.0, outer=adam, inner_steps=1)
    drawings = Drawings(key, pictures)
    known = bl.run(classifier, wide, wide, data=drawings, steps=steps, progress=progress).check()
    shares["nearest by features of a classifier"] = np.asarray(by_features(known.x, testing))
    shares["nearest by pixels"] = np.asarray(by_pixels(testing))
    half = lambda right: 1.96 * right.std(ddof=1) / len(right) ** 0.5
    found = {name: {"accuracy": float(r.mean()), "95 % ±": float(half(r))} for name, r in shares.items()}
    return Outcome(found, testing)


def _chosen(x: Any, valid: bl.Batch, test: bl.Batch, tie: float) -> np.ndarray:
    """Return the share of right test drawings, with the best rate and number of steps on validation tasks."""
    on_valid = np.array([np.mean(adapted(x, valid, rate, tie, MOST), axis=0) for rate in RATES])
    rate, steps = np.unravel_index(np.argmax(on_valid), on_valid.shape)
    return np.asarray(adapted(x, test, RATES[rate], tie, MOST))[:, steps]


def draw(figure: Figure, outcomes: list[Outcome]) -> None:
    """Draw a test task, and the accuracy of every method."""
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.6))
    test = outcomes[0].seen
    support, query = np.asarray(test.inner[0][0]), np.asarray(test.outer[0][0])
    row = lambda pictures: np.concatenate([np.pad(p, 1, constant_values=0.3) for p in pictures], axis=1)
    shots = [query[i :: len(query) // WAYS][:WAYS] for i in range(4)]
    rows = [row(support), np.ones((3, WAYS * (SIZE + 2))), *map(row, shots)]
    left.imshow(np.concatenate(rows), cmap="gray_r")
    left.set(xticks=[], yticks=[])
    left.set_title("above: one of each to learn from,\nbelow: the test", fontsize=10)
    names = list(outcomes[0].scores)[::-1]
    values = np.array([[one.scores[name]["accuracy"] for one in outcomes] for name in names])
    halves = np.array([np.mean([one.scores[name]["95 % ±"] for one in outcomes]) for name in names])
    colors = ["C0" if "nearest" not in name and "scratch" not in name else "0.6" for name in names]
    right.barh(names, 100 * values.mean(axis=1), xerr=100 * halves, color=colors, capsize=3)
    right.axvline(100 / WAYS, color="k", linestyle=":", linewidth=1)
    right.set(xlim=(0, 100))
    right.set_title("% of drawings classified correctly", fontsize=10)


TITLE = "Few-shot classification: five characters never seen, one drawing of each"
SOURCE = "Omniglot's small background sets, 242 characters (bl.data.omniglot)"
BETTER = ("accuracy",)
NEUTRAL = ("95 % ±",)
APPLICATION = Application(
    "few-shot-omniglot", TITLE, task, 400, trial, draw, better=BETTER, neutral=NEUTRAL, source=SOURCE
)
