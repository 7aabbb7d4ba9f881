"""Hyperparameters of a network while it trains: weight decay of every layer, augmentation, learning rate.

    g(x, y) = e^r · (mean_i ℓ(y; T(a_i; s, ε_i), b_i) + Σ_l ½ e^{d_l} ‖W_l‖²)        f(y) = mean_j ℓ(y; a'_j, b'_j)
    x = (log decays d, strengths s of rotation and shift, log rate r)

ℓ is the cross-entropy of an MLP or of a small CNN with weights y. T turns and moves a digit by normal random
amounts of size e^s; bilinear interpolation makes that differentiable. y takes steps of size one (with
momentum) on g, so e^r is the learning rate. The rate does not change the minimizer of g. So methods that
differentiate the minimizer (AID) cannot learn it, but methods that differentiate the steps can. For six
hyperparameters `bl.solvers.rtho` uses forward mode: it carries the derivatives of y along the run (Franceschi
et al. 2017).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

import bilevel as bl
from bilevel.applications.base import Application, Outcome
from bilevel.applications.parts import halved, mnist_parts, patches, run_all, share_right
from bilevel.data.examples import Examples
from bilevel.problems.reweighting import cross_entropies

SIDE, CLASSES = 14, 10
TRAIN, VALID, TEST = 1000, 1000, 1000
BATCH, STEPS = 100, 800
MOMENTUM = 0.9


# The data: digits at half their resolution


def digits(seed: int) -> tuple[Examples, Examples, Examples]:
    """Return images for training, validation and test."""
    small = lambda e: Examples(halved(e.inputs), e.targets, e.source)
    train, valid, test = mnist_parts(TRAIN, VALID, TEST, seed)
    return small(train), small(valid), small(test)


def moved(images: Any, strength: Any, key: Any) -> jax.Array:
    """Turn each image by `strength[0]` · normal radians, and move it by `strength[1]` · normal pixels."""
    noise = jax.random.normal(key, (3, len(images)), images.dtype)
    angle, shift = strength[0] * noise[0], strength[1] * noise[1:]
    center = (SIDE - 1) / 2
    row, column = jnp.mgrid[:SIDE, :SIDE].astype(images.dtype) - center

    def one(image: Any, angle: Any, shift: Any) -> jax.Array:
        sine, cosine = jnp.sin(angle), jnp.cos(angle)
        down = cosine * row - sine * column + center + shift[0]
        right = sine * row + cosine * column + center + shift[1]
        return jax.scipy.ndimage.map_coordinates(image, [down, right], order=1)

    return jax.vmap(one)(images, angle, shift.T)


# The networks: three layers of weights each


def mlp(y: Any, images: Any) -> jax.Array:
    hidden = images.reshape(len(images), -1)
    for W, b in y[:-1]:
        hidden = jax.nn.relu(hidden @ W + b[None, :])
    return hidden @ y[-1][0] + y[-1][1][None, :]


def cnn(y: Any, images: Any) -> jax.Array:
    """Return the logits of two 3 × 3 convolutions with stride 2, and a linear layer."""
    hidden = images[..., None]
    for W, b in y[:-1]:
        hidden = jax.nn.relu(patches(hidden) @ W + b[None, None, None, :])
    return hidden.reshape(len(hidden), -1) @ y[-1][0] + y[-1][1][None, :]


SHAPES = {
    "MLP": ((SIDE**2, 64), (64, 64), (64, CLASSES)),
    "CNN": ((9, 8), (9 * 8, 16), (4 * 4 * 16, CLASSES)),
}
MODELS: dict[str, Callable[..., Any]] = {"MLP": mlp, "CNN": cnn}


def initial(model: str, seed: int) -> list[tuple[Any, ...]]:
    """Return Gaussian weights of variance 2/fan-in (He), and zero biases."""
    rng = np.random.default_rng(seed)
    layer = lambda rows, columns: (rng.normal(size=(rows, columns)) * np.sqrt(2 / rows), np.zeros(columns))
    return [tuple(np.float32(each) for each in layer(*shape)) for shape in SHAPES[model]]


class Hyper(NamedTuple):
    """Hyperparameters x, all as logarithms."""

    decay: Any  # of each layer
    strength: Any  # of rotation, in radians, and of shift, in pixels
    rate: Any


DEFAULT = Hyper(np.log(np.full(3, 5e-4)), np.full(2, -np.inf), np.log(0.02))  # textbook values
START = Hyper(np.log(np.full(3, 5e-4)), np.log(np.array([0.03, 0.1])), np.log(0.02))
LOWEST = Hyper(np.log(np.full(3, 1e-6)), np.log(np.array([0.01, 0.03])), np.log(2e-3))
HIGHEST = Hyper(np.log(np.full(3, 1e-1)), np.log(np.array([0.6, 2.5])), np.log(0.2))
single = lambda x: jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), x)


def problem_of(model: Callable[..., Any]) -> bl.Problem:
    def training(x: Hyper, y: Any, batch: Examples, *, key: Any) -> jax.Array:
        scores = model(y, moved(batch.inputs, jnp.exp(x.strength), key))
        penalty = sum(0.5 * jnp.exp(d) * jnp.sum(W * W) for d, (W, _) in zip(x.decay, y, strict=True))
        return jnp.exp(x.rate) * (jnp.mean(cross_entropies(scores, batch.targets)) + penalty)

    def validation(x: Any, y: Any, batch: Examples) -> jax.Array:
        return jnp.mean(cross_entropies(model(y, batch.inputs), batch.targets))

    return bl.Problem(inner=training, outer=validation)


PROBLEMS = {name: problem_of(model) for name, model in MODELS.items()}


def task(seed: int, model: str = "MLP") -> bl.problems.Instance:
    train, valid, test = digits(seed)
    sizes = bl.Levels(inner=BATCH, outer=2 * BATCH)
    problem, y0 = PROBLEMS[model], initial(model, seed)
    data = bl.epochs(bl.Batch(inner=train, outer=valid), size=sizes, seed=seed)

    wrong = lambda x: 1 - accuracy(model, trained(problem, y0, data, [x], STEPS)[0], test)
    label = f"share of wrong labels of the test after {STEPS} steps with these hyperparameters"
    return bl.problems.Instance("weight-decay", problem, single(START), y0, data, measure=wrong, label=label)


def within(x: Hyper) -> Hyper:
    """Project onto the box, which is also the box of the random search."""
    return jax.tree.map(jnp.clip, x, single(LOWEST), single(HIGHEST))


def solver(problem: bl.Problem) -> bl.Solver:
    """Return the solver: steps of size one on g, and Adam on the logarithms within the box."""
    careful = optax.chain(optax.clip(1.0), optax.adam(0.02))
    return bl.solvers.rtho(
        problem, inner=optax.sgd(1.0, momentum=MOMENTUM), outer=bl.projected(careful, within)
    )


def trained(problem: bl.Problem, y0: Any, data: Any, choices: list[Hyper], steps: int) -> list[Any]:
    """Train a network with each of these constant hyperparameters, all in one program."""
    plain = bl.itd(problem, inner=optax.sgd(1.0, momentum=MOMENTUM), outer=1.0)  # only for its steps on y

    def train(x: Hyper, data: Any) -> Any:
        return bl.warm_up(plain, bl.start(plain, x, y0, data), data, steps=steps).y

    x = jax.tree.map(lambda *each: jnp.stack([jnp.asarray(a, jnp.float32) for a in each]), *choices)
    y = jax.jit(jax.vmap(train, in_axes=(0, None)))(x, data)
    return [jax.tree.map(lambda a, i=i: a[i], y) for i in range(len(choices))]


def accuracy(model: str, y: Any, examples: Examples) -> jax.Array:
    return share_right(MODELS[model](y, jnp.asarray(examples.inputs)), examples.targets)


TRIES = 14  # a step of the method costs 13 to 14 training steps in operations of XLA


def drawn(seed: int, count: int) -> list[Hyper]:
    """Draw uniformly in the box, so evenly in orders of magnitude."""
    rng = np.random.default_rng(seed)
    return [jax.tree.map(lambda low, high: rng.uniform(low, high), LOWEST, HIGHEST) for _ in range(count)]


def trial(seed: int, steps: int, progress: bool) -> Outcome:
    _, valid, test = digits(seed)
    scores, seen = {}, {}
    for model in MODELS:
        instance = task(seed, model)
        record = lambda state, info: jax.tree.map(jnp.exp, state.x)._asdict()
        method = {"RTHO": solver(instance.problem)}
        result = run_all(method, instance, steps, progress, record=record)["RTHO"]
        late = {name: np.log(result.trace[name][-(steps // 4 + 1) :]).mean(axis=0) for name in Hyper._fields}
        tries = drawn(seed, TRIES if steps > 10 else 2)
        choices = [Hyper(**late), DEFAULT, *tries]
        retrained, default, *others = trained(instance.problem, instance.y0, instance.data, choices, steps)
        loss = jax.jit(lambda y, examples, problem=instance.problem: problem.outer(None, y, examples))
        best = min(others, key=lambda y: loss(y, valid))
        networks = {
            "learned along the run": result.y,
            "retrained with the last quarter's mean": retrained,
            "defaults": default,
            f"best of {TRIES} at random": best,
        }
        for name, y in networks.items():
            right, off = float(accuracy(model, y, test)), float(loss(y, test))
            scores[f"{model}, {name}"] = {"test accuracy": right, "test loss": off}
        seen[model] = {name: result.trace[name] for name in Hyper._fields}
    return Outcome(scores, seen)


def draw(figure: Figure, outcomes: list[Outcome]) -> None:
    """Draw the hyperparameters along the run: the first seed in full color, the others faint."""
    titles = {"decay": "weight decay", "strength": "augmentation", "rate": "learning rate"}
    layers = [f"layer {i + 1}" for i in range(3)]
    labels = {"decay": layers, "strength": ["turn, radians", "shift, pixels"], "rate": [None]}
    axes = figure.subplots(len(MODELS), 3, sharex=True, squeeze=False)
    for row, model in zip(axes, MODELS, strict=True):
        for axis, name in zip(row, titles, strict=True):
            for k, outcome in enumerate(outcomes):
                curves = outcome.seen[model][name]
                for i, curve in enumerate(np.reshape(curves, (len(curves), -1)).T):
                    style = {"alpha": 0.25} if k else {"label": labels[name][i]}
                    axis.semilogy(curve, color=f"C{i}", **style)
            if name != "rate":
                axis.legend(fontsize=7)
            axis.set_title(f"{model}: {titles[name]}", fontsize=10)
    for axis in axes[-1]:
        axis.set_xlabel("step")


TITLE = "weight decay of each layer, augmentation and learning rate of a network, learned while it trains"
SOURCE = "MNIST (5,000 images of it bundled), at half its resolution"
BETTER = ("test accuracy",)
APPLICATION = Application("weight-decay", TITLE, task, STEPS, trial, draw, better=BETTER, source=SOURCE)
