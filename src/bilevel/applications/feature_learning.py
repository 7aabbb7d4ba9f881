"""Feature learning: a layer of features with ridge heads, each head validated on its unseen fold.

    g(x, y) = Σ_k mean_{i ∉ F_k} ½(φ(a_i; x)ᵀy_k − b_i)² + (μ/2) ‖y_k‖²        φ(a; x) = (tanh(Wᵀa + c), 1)
    f(x, y) = mean_i ½(φ(a_i; x)ᵀy_k(i) − b_i)², i in fold k(i)                x = (W, c, log μ)

f is the cross-validation error as a function of the features and of the ridge μ. Features that only memorize
the training counties do not lower it. One bilevel problem has all K folds. The heads have a closed form,

    y_k*(x) = (A_kᵀA_k/n_k + μI)⁻¹ A_kᵀb_k/n_k        with A_k the features of all folds but the k-th,

so every method can be compared with the exact solution. One row of the table solves for the heads at every
step and differentiates through the solution. That needs a closed form, and the other methods do not.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from matplotlib.figure import Figure

import bilevel as bl
from bilevel.applications.base import Application, Outcome
from bilevel.applications.parts import run_all
from bilevel.data.examples import Examples

FEATURES, FOLDS = 40, 4
STEPS = 600
RIDGES = 10.0 ** np.arange(-7.0, 0.0)  # tried by the baselines
RATE = 1e-2  # of Adam, on the features, for every method and for the network


# The data: the turnout of a county, from population, education, houses, income and place


def counties(seed: int) -> tuple[Examples, Examples]:
    """Return two thousand counties for training and the others for the test, in units of the former."""
    table = bl.data.space_ga()
    known, unseen = table.split(2000, len(table) - 2000, seed=seed)
    inputs = bl.data.standardize(known.inputs, unseen.inputs)
    targets = bl.data.standardize(known.targets[:, None], unseen.targets[:, None])
    single = lambda a, b: Examples(np.float32(a), np.float32(b[:, 0]), table.source)
    return single(inputs[0], targets[0]), single(inputs[1], targets[1])


class Folded(NamedTuple):
    examples: Examples
    fold: Any  # n × K: 1 where example i is in fold k


def folded(examples: Examples, folds: int = FOLDS) -> Folded:
    """Take every K-th example as a fold, because their order is random."""
    return Folded(examples, np.eye(folds, dtype=np.float32)[np.arange(len(examples)) % folds])


class Features(NamedTuple):
    W: Any
    c: Any
    log_ridge: Any


def initial(seed: int, inputs: int, features: int = FEATURES) -> Features:
    """Return random features: the start of the methods, and with a good ridge a baseline."""
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(inputs, features)) / np.sqrt(inputs)
    return Features(jnp.float32(W), jnp.float32(rng.normal(size=features)), jnp.float32(np.log(1e-3)))


def phi(x: Features, inputs: Any) -> jax.Array:
    hidden = jnp.tanh(inputs @ x.W + x.c[None, :])
    return jnp.concatenate([hidden, jnp.ones_like(hidden[:, :1])], axis=1)


def errors(x: Features, y: Any, batch: Folded) -> jax.Array:
    """Return half the squared error of head k on county i, n × K."""
    return 0.5 * (phi(x, batch.examples.inputs) @ y - batch.examples.targets[:, None]) ** 2


def training(x: Features, y: Any, batch: Folded) -> jax.Array:
    seen = 1 - batch.fold
    loss = jnp.sum(errors(x, y, batch) * seen / seen.sum(axis=0, keepdims=True))
    return loss + 0.5 * jnp.exp(x.log_ridge) * jnp.sum(y * y)


def validation(x: Features, y: Any, batch: Folded) -> jax.Array:
    return jnp.sum(errors(x, y, batch) * batch.fold) / len(batch.fold)


PROBLEM = bl.Problem(inner=training, outer=validation)


def heads(x: Features, batch: Folded) -> jax.Array:
    """Return y*(x) in closed form, one column per fold."""
    A, seen = phi(x, batch.examples.inputs), 1 - batch.fold
    solve = lambda weights: _ridge(A, batch.examples.targets, weights / weights.sum(), x.log_ridge)
    return jax.vmap(solve, in_axes=1, out_axes=1)(seen)


def value(x: Features, batch: Folded) -> jax.Array:
    """Return the exact Φ(x)."""
    return validation(x, heads(x, batch), batch)


def refitted(x: Features, examples: Examples) -> jax.Array:
    """Return the final head, fitted to all examples."""
    A = phi(x, examples.inputs)
    return _ridge(A, examples.targets, jnp.full(len(A), 1 / len(A), A.dtype), x.log_ridge)


def _ridge(A: Any, b: Any, weights: Any, log_ridge: Any) -> jax.Array:
    H = (A * weights[:, None]).T @ A + jnp.exp(log_ridge) * jnp.eye(A.shape[1], dtype=A.dtype)
    return jnp.linalg.solve(H, A.T @ (weights * b))


def task(seed: int) -> bl.problems.Instance:
    known, _ = counties(seed)
    batch = jax.tree.map(jnp.asarray, folded(known))
    x0, y0 = initial(seed, known.inputs.shape[1]), jnp.zeros((FEATURES + 1, FOLDS), jnp.float32)
    data, L = bl.Batch(batch, batch), FEATURES + 2.0  # features are at most 1: λ_max(AᵀA/n) ≤ FEATURES + 1
    label = "Φ(x) with the closed-form heads"
    return bl.problems.Instance(
        "feature-learning", PROBLEM, x0, y0, data, L, lambda x: _value(x, batch), label
    )


_value, _refitted = jax.jit(value), jax.jit(refitted)


def methods() -> dict[str, bl.Solver]:
    """Use momentum and conjugate gradients, because the heads are badly conditioned least squares."""
    momentum, adam = optax.sgd(0.05, momentum=0.9, nesterov=True), optax.adam(RATE)
    cg = bl.adjoints.cg(1e-3, max_steps=10)
    return {
        "AID": bl.aid(PROBLEM, inner=momentum, adjoint=cg, outer=adam, inner_steps=5),
        "ITD": bl.itd(PROBLEM, inner=momentum, outer=adam, inner_steps=5),
    }


def exact(x0: Features, batch: Folded, steps: int) -> tuple[Features, np.ndarray]:
    """Run Adam on Φ, differentiated through the closed form; return x and the values of Φ."""
    adam = optax.adam(RATE)

    def step(carry: Any, _: Any) -> Any:
        x, memory = carry
        now, gradient = jax.value_and_grad(value)(x, batch)
        updates, memory = adam.update(gradient, memory, x)
        return (optax.apply_updates(x, updates), memory), now

    (x, _), seen = jax.jit(lambda x: lax.scan(step, (x, adam.init(x)), length=steps))(x0)
    return x, np.asarray(seen)


class Network(NamedTuple):
    layer: Features  # the ridge is constant
    y: Any


def network(start: Network, train: Examples, judges: Examples, steps: int) -> tuple[Network, jax.Array]:
    """Train layer and head by Adam. Return them and the squared error on `judges` after each step."""
    adam, whole = optax.adam(RATE), Folded(train, np.zeros((len(train), 1), np.float32))

    def step(carry: Any, _: Any) -> Any:
        net, memory = carry
        gradient = jax.grad(lambda net: training(net.layer, net.y, whole))(net)
        layer = gradient.layer._replace(log_ridge=jnp.zeros_like(net.layer.log_ridge))
        updates, memory = adam.update(gradient._replace(layer=layer), memory, net)
        net = jax.tree.map(jnp.add, net, updates)
        return (net, memory), mean_square(net.layer, net.y[:, 0], judges)

    (net, _), seen = lax.scan(step, (start, adam.init(start)), length=steps)
    return net, seen


_network = jax.jit(network, static_argnums=3)


def mean_square(x: Features, y: Any, examples: Examples) -> jax.Array:
    return jnp.mean((phi(x, examples.inputs) @ y - examples.targets) ** 2)


def early_stopped(x0: Features, known: Examples, unseen: Examples, steps: int) -> tuple[float, float]:
    """Choose decay and length on one fold of four, then train on all: (test error, held-out error)."""
    held = np.arange(len(known)) % FOLDS == 0
    tried, y0 = [], jnp.zeros((FEATURES + 1, 1), jnp.float32)
    for ridge in RIDGES[::2]:
        start = Network(x0._replace(log_ridge=jnp.float32(np.log(ridge))), y0)
        curve = np.asarray(_network(start, known.take(~held), known.take(held), steps)[1])
        tried.append((curve.min(), int(curve.argmin()), start))
    best, length, start = min(tried, key=lambda each: each[0])
    return float(_network(start, known, unseen, steps)[1][length]) ** 0.5, float(best) ** 0.5


def least_squares(known: Examples, unseen: Examples) -> tuple[float, float]:
    """Fit a linear model: (test error, cross-validation error)."""
    with_one = lambda examples: np.column_stack([examples.inputs, np.ones(len(examples), np.float32)])

    def off(train: Examples, judges: Examples) -> float:
        w = np.linalg.lstsq(with_one(train), train.targets)[0]
        return float(np.mean((with_one(judges) @ w - judges.targets) ** 2))

    folds = [np.arange(len(known)) % FOLDS == k for k in range(FOLDS)]
    cross = float(np.mean([off(known.take(~k), known.take(k)) for k in folds]))
    return off(known, unseen) ** 0.5, cross**0.5


TEST: str = "test error"
CROSS: str = "cross-validation error"  # root mean squares; the targets have a standard deviation of 1


def trial(seed: int, steps: int, progress: bool) -> Outcome:
    (known, unseen), instance = counties(seed), task(seed)
    batch = instance.data.inner
    measured = lambda state, info: {"phi": _value(state.x, batch)}
    options = bl.RunOptions(every=max(1, steps // 40), probe=measured)
    results = run_all(methods(), instance, steps, progress, options=options)
    found = {name: result.x for name, result in results.items()}
    curves = {name: (result.probes["step"], result.probes["phi"]) for name, result in results.items()}
    found["closed-form heads"], seen = exact(instance.x0, batch, steps)
    curves["closed-form heads"] = np.arange(steps), seen
    ridges = [instance.x0._replace(log_ridge=jnp.float32(np.log(ridge))) for ridge in RIDGES]
    found["random features"] = min(ridges, key=lambda x: _value(x, batch))

    off = lambda x: float(mean_square(x, _refitted(x, known), unseen)) ** 0.5
    pairs = {name: (off(x), (2 * float(_value(x, batch))) ** 0.5) for name, x in found.items()}
    pairs["whole network, stopped early"] = early_stopped(instance.x0, known, unseen, steps)
    pairs["least squares"] = least_squares(known, unseen)
    scores = {name: {TEST: test, CROSS: cross} for name, (test, cross) in pairs.items()}
    return Outcome(scores, {"curves": curves})


def draw(figure: Figure, outcomes: list[Outcome]) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(1.2, 1))
    for name, (steps, phi) in outcomes[0].seen["curves"].items():
        left.plot(steps, np.sqrt(2 * phi), label=name, linestyle="--" if "closed" in name else "-")
    left.set(title=CROSS, xlabel="step")
    left.legend()
    names = list(outcomes[0].scores)
    for i, name in enumerate(names):
        found = [one.scores[name][TEST] for one in outcomes]
        right.plot(found, [i] * len(outcomes), "o", alpha=0.6, color=f"C{i}")
    right.set(title=f"{TEST}, a dot per seed", yticks=range(len(names)), yticklabels=names)
    right.invert_yaxis()
    right.grid(axis="x", alpha=0.3)


TITLE = "features learned for what ridge heads on them are worth on folds not seen (US counties)"
SOURCE = "space_ga: 3,107 US counties (3,064 of them bundled)"
APPLICATION = Application("feature-learning", TITLE, task, STEPS, trial, draw, source=SOURCE)
