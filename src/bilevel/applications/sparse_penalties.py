"""Thousands of penalties: logistic regression on words with an L1 penalty for each word.

    g(x, y) = (1/n) Σ_i log(1 + exp(−b_i a_iᵀy)) + Σ_j exp(x_j) |y_j|
    f(x, y) = (1/n') Σ_i log(1 + exp(−b'_i a'_iᵀy)) + (c/V) Σ_j (x_j − x̄)²

A single penalty that removes five thousand irrelevant words also shrinks the coefficients of the few relevant
ones. One penalty per word avoids that, but no grid has five thousand dimensions. The problem gives the L1
term as a proximal map. So coefficients are exactly zero, and the hypergradient is the one of the sparse model.

Five thousand hyperparameters can overfit the validation documents. The second term of f keeps penalties close
to each other unless the documents are clear.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

import bilevel as bl
from bilevel.applications.base import Application, Outcome
from bilevel.applications.parts import joined
from bilevel.checks import check_count

WORDS, TELLING, COMMON = 5000, 30, 300  # words; relevant words, which are among the most common ones
SIZES = (1500, 1500, 4000)  # documents for training, validation and test
STEPS = 400
GRID = np.arange(-6.0, -12.6, -0.5)  # logarithms of the single penalty of the baseline
AGREEMENT = 0.5  # c
WARMUP = 300  # steps on y before the first on x
SOLVED, MOST = 1e-8, 20_000  # a fit ends when a step moves y by this share, or after so many steps


# The data: artificial documents, as sparse as real ones


class Documents(NamedTuple):
    """Documents: row i has the word indices of document i and their weights; empty places have weight 0."""

    words: Any
    weights: Any
    labels: Any  # −1 or 1


def documents(seed: int, sizes: tuple[int, ...] = SIZES) -> tuple[list[Documents], np.ndarray]:
    """Return sets of documents, and the relevant words.

    Word r of the vocabulary is drawn with a probability near 1/r (Zipf), 40 to 160 words per document.
    Weights are tf-idf, as from scikit-learn's TfidfVectorizer(sublinear_tf=True): (1 + log count) · idf, each
    document of length one. The label is whether a sum over the relevant words is above its median. So a model
    with the right coefficients makes no mistake.
    """
    for size in sizes:
        check_count(size, "the number of documents")
    rng, n = np.random.default_rng(seed), sum(sizes)
    lengths, chance = rng.integers(40, 160, n), 1 / (np.arange(WORDS) + 6)
    owner = np.repeat(np.arange(n), lengths)
    drawn = rng.choice(WORDS, len(owner), p=chance / chance.sum())
    found, counts = np.unique(owner * WORDS + drawn, return_counts=True)
    owner, word = np.divmod(found, WORDS)
    seen = np.bincount(word[owner < sizes[0]], minlength=WORDS)  # in how many training documents
    weight = (1 + np.log(counts)) * (1 + np.log((1 + sizes[0]) / (1 + seen)))[word]
    weight /= np.sqrt(np.bincount(owner, weight**2))[owner]

    telling, coefficients = rng.choice(COMMON, TELLING, replace=False), np.zeros(WORDS)
    coefficients[telling] = rng.normal(size=TELLING)
    evidence = np.bincount(owner, weight * coefficients[word])
    labels = np.where(evidence > np.median(evidence), 1, -1)

    place = np.arange(len(owner)) - np.searchsorted(owner, owner)  # within its document
    words, weights = np.zeros((n, place.max() + 1), np.int32), np.zeros((n, place.max() + 1), np.float32)
    words[owner, place], weights[owner, place] = word, weight
    ends = np.cumsum(sizes)[:-1]
    parts = (np.split(each, ends) for each in (words, weights, labels.astype(np.float32)))
    return [Documents(*part) for part in zip(*parts, strict=True)], telling


def smoothness(docs: Documents) -> float:
    """Return an upper bound of the curvature of the loss, λ_max(AᵀA)/4n, by the power method plus 5 %."""
    v, largest = np.ones(WORDS), 0.0
    for _ in range(50):
        scores = np.sum(v[docs.words] * docs.weights, axis=1)
        v = np.bincount(docs.words.ravel(), (docs.weights * scores[:, None]).ravel(), minlength=WORDS)
        largest = np.linalg.norm(v)
        v /= largest
    return float(1.05 * largest / (4 * len(docs.labels)))


def logistic(y: Any, docs: Documents) -> jax.Array:
    scores = jnp.sum(y[docs.words] * docs.weights, axis=1)
    return jnp.mean(jax.nn.softplus(-docs.labels * scores))


def validation(x: Any, y: Any, docs: Documents) -> Any:
    alone = logistic(y, docs)
    return alone + AGREEMENT * jnp.var(x), {"loss": alone}


PROX = bl.prox.l1(jnp.exp)
# The penalties are in the proximal map.
PROBLEM = bl.Problem(inner=lambda x, y, docs: logistic(y, docs), outer=validation, prox=PROX)


def task(seed: int) -> bl.problems.Instance:
    (train, valid, _), _ = documents(seed)
    data = jax.tree.map(jnp.asarray, bl.Batch(inner=train, outer=valid))
    L, y0 = smoothness(train), jnp.zeros(WORDS, jnp.float32)
    x0, loss = jnp.full(WORDS, -8.5, jnp.float32), lambda x: logistic(fitted(x, y0, train, 1 / L), data.outer)
    label = "validation loss of a model fitted with penalties exp(x)"
    return bl.problems.Instance("sparse-penalties", PROBLEM, x0, y0, data, L, loss, label)


def solver(L: float) -> bl.Solver:
    """Return a solver with CG, because the relevant directions are much flatter than common words."""
    cg = bl.adjoints.cg(1e-3, max_steps=5)
    return bl.aid(PROBLEM, inner=1 / L, adjoint=cg, outer=optax.adam(0.05), inner_steps=3)


@jax.jit
def fitted(x: Any, y0: Any, docs: Documents, step: Any) -> jax.Array:
    """Return y*(x) by accelerated proximal gradient steps from y0 (Beck and Teboulle 2009).

    The momentum restarts when it points uphill (O'Donoghue and Candès 2015).
    """

    def advance(carry: Any) -> Any:
        y, ahead, momentum, count, _ = carry
        new = PROX(x, ahead - step * jax.grad(logistic)(ahead, docs), step)
        momentum = jnp.where(jnp.vdot(ahead - new, new - y) > 0, 0, momentum + 1)
        moved = jnp.linalg.norm(new - ahead) > SOLVED * jnp.linalg.norm(new)
        return new, new + (momentum / (momentum + 3)).astype(y.dtype) * (new - y), momentum, count + 1, moved

    moving = lambda carry: carry[4] & (carry[3] < MOST)
    return jax.lax.while_loop(moving, advance, (y0, y0, jnp.int32(0), jnp.int32(0), jnp.array(True)))[0]


def trial(seed: int, steps: int, progress: bool) -> Outcome:
    (train, valid, test), telling = documents(seed)
    instance = task(seed)
    step, y0 = 1 / instance.L, instance.y0
    unseen = jax.jit(lambda y: logistic(y, test))
    probe = lambda state, info: {"test": unseen(state.y), "kept": jnp.sum(state.y != 0)}
    more: dict[str, Any] = dict(data=instance.data, warmup=WARMUP if steps > 10 else 1, progress=progress)
    options = bl.RunOptions(every=max(1, steps // 40), probe=probe)
    result = bl.run(solver(instance.L), instance.x0, y0, steps=steps, options=options, **more).check()

    shared = lambda log_penalty: jnp.full_like(instance.x0, log_penalty)
    loss = lambda each: logistic(fitted(shared(each), y0, train, step), valid)
    best = min(GRID[:: 1 if steps > 10 else 6], key=loss)
    everything = joined(train, valid)
    models = {
        "5,000 penalties": fitted(result.x, result.y, train, step),
        "5,000 penalties, refitted on all": fitted(result.x, result.y, everything, step),
        "one penalty": fitted(shared(best), y0, train, step),
        "one penalty, refitted on all": fitted(shared(best), y0, everything, step),
    }
    rows = {name: judged(np.asarray(y), test, telling) for name, y in models.items()}
    seen = {name: result.probes[name] for name in ("step", "test")} | {"valid": result.trace["outer/loss"]}
    seen |= {"penalties": np.exp(np.asarray(result.x)), "telling": telling, "best": float(np.exp(best))}
    return Outcome(rows, seen)


def judged(y: np.ndarray, test: Documents, telling: np.ndarray) -> dict[str, float]:
    margins = np.sum(y[test.words] * test.weights, axis=1) * test.labels
    return {
        "test loss": float(np.mean(np.logaddexp(0, -margins))),
        "test accuracy": float(np.mean(margins > 0)),
        "words kept": float(np.sum(y != 0)),
        f"of the {TELLING} that tell": float(np.sum(y[telling] != 0)),
    }


def draw(figure: Figure, outcomes: list[Outcome]) -> None:
    left, right = figure.subplots(1, 2)
    seen = outcomes[0].seen
    left.plot(seen["valid"], label="validation")
    left.plot(seen["step"], seen["test"], label="test")
    for name, color in {"5,000 penalties": "C1", "one penalty": "gray"}.items():  # y of the run lags behind x
        loss = outcomes[0].scores[name]["test loss"]
        left.axhline(loss, color=color, linestyle="--", label=f"test, {name}, fitted")
    left.set(title="loss", xlabel="step")
    left.legend(fontsize=8)
    others = np.setdiff1d(np.arange(WORDS), seen["telling"])
    for words, label, size, alpha in ((others, "other words", 3, 0.4), (seen["telling"], "telling", 14, 1)):
        right.scatter(words + 1, seen["penalties"][words], label=label, s=size, alpha=alpha)
    right.axhline(seen["best"], color="gray", linestyle="--", label="the best single one")
    right.set(title="penalty of each word", xlabel="rank of the word", xscale="log", yscale="log")
    right.legend(fontsize=8)


TITLE = "an L1 penalty for each of 5,000 words in logistic regression"
BETTER = ("test accuracy", f"of the {TELLING} that tell")
SOURCE = "made up: documents of Zipf-distributed words, of which a few tell the classes apart"
NEUTRAL = ("words kept",)
APPLICATION = Application(
    "sparse-penalties", TITLE, task, STEPS, trial, draw, better=BETTER, neutral=NEUTRAL, source=SOURCE
)
