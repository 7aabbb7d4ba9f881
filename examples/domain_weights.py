"""Which texts to train a language model on: a weight for every domain, learned while the model trains.

python examples/domain_weights.py [--steps 800] [--seed 0] [--plot weights.png]     about two minutes on two cores
python examples/domain_weights.py --full [--steps 2000]                             12 layers × 768, for a GPU

A guidebook is to say of 64 towns which river each lies on and what people eat there. Of the guidebook itself there are
16 pages, which name few of the facts. There is much text of five other kinds: about rivers, about food, rumors (in
which every river is the wrong one), sums, and noise. x holds the weight of each kind in the training loss, on the
simplex; y is a transformer; the outer loss is that of the 16 pages. The right answer is known: rivers and foods alone.
"""

import argparse
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from matplotlib.figure import Figure

import bilevel as bl

# Text: five domains, and the target's pages, half of them about rivers and half about food

words = str.split
TOWNS = [a + b for a in words("ka mu ti ro se la ni po") for b in words("ka mu ti ro se la ni po")]
RIVERS = words("tiba orla senna dray luve mosk witt aven")
FOODS = words("rice eggs beans bread fish apples leeks oats")
NUMBERS = words("one two three four five six seven eight nine")
WORDS = [*TOWNS, *RIVERS, *FOODS, *NUMBERS, *words("lies on eats plus is .")]
CODE = {word: i for i, word in enumerate(WORDS)}
FACTS = np.random.default_rng(7).integers(8, size=(2, 64))  # of every town: its river, its food


def rivers(rng, wrong=0):
    town = rng.integers(64)
    return f"{TOWNS[town]} lies on {RIVERS[(FACTS[0, town] + wrong) % 8]} ."


def foods(rng):
    town = rng.integers(64)
    return f"{TOWNS[town]} eats {FOODS[FACTS[1, town]]} ."


def rumors(rng):
    return rivers(rng, wrong=1)


def sums(rng):
    a, b = rng.integers(1, 5, size=2)
    return f"{NUMBERS[a - 1]} plus {NUMBERS[b - 1]} is {NUMBERS[a + b - 1]} ."


def noise(rng):
    return " ".join(rng.choice(WORDS, size=5))


DOMAINS = {"rivers": rivers, "foods": foods, "rumors": rumors, "sums": sums, "noise": noise}


def pages(sentence, count, tokens, rng):
    """So many rows of tokens, one more than the model reads, for it predicts the next one."""
    rows = [[] for _ in range(count)]
    for row in rows:
        while len(row) <= tokens:
            row += [CODE[word] for word in sentence(rng).split()]
    return np.array([row[: tokens + 1] for row in rows], np.int32)


# The model: plain functions of a dictionary of float32 arrays, which compute in `dtype`


@dataclass(frozen=True)
class Size:
    layers: int = 2
    width: int = 48
    heads: int = 4
    tokens: int = 20
    rows: int = 4  # of every domain in a batch
    rate: float = 5e-3  # Adam's
    dtype: Any = jnp.float32


FULL = Size(layers=12, width=768, heads=12, tokens=512, rows=3, rate=3e-4, dtype=jnp.bfloat16)


def initial(size, rng):
    """The layers are stacked: one array of each kind, whose first axis `lax.scan` goes along."""
    L, d = size.layers, size.width
    normal = lambda *shape: np.float32(0.02) * rng.standard_normal(shape, np.float32)
    ones = lambda *shape: np.ones(shape, np.float32)
    layers = {
        "before": ones(L, d),
        "qkv": normal(L, d, 3 * d),
        "out": normal(L, d, d),
        "between": ones(L, d),
        "up": normal(L, d, 4 * d),
        "down": normal(L, 4 * d, d),
    }
    return {
        "embedding": normal(len(WORDS), d),
        "position": normal(size.tokens, d),
        "layers": layers,
        "last": ones(d),
    }


def normalized(h, scale):
    wide = h.astype(jnp.float32)  # sums of squares need the precision
    return (wide * lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + 1e-6) * scale).astype(h.dtype)


def losses(size, y, tokens):
    """The mean loss of each row's next tokens."""

    @jax.checkpoint  # keeps a layer's input alone, and computes the rest again on the way back
    def layer(h, w):
        w = {name: a.astype(h.dtype) for name, a in w.items()}  # one layer's weights at a time
        heads = (normalized(h, w["before"]) @ w["qkv"]).reshape(*h.shape[:2], size.heads, -1)
        mixed = jax.nn.dot_product_attention(*jnp.split(heads, 3, axis=-1), is_causal=True)
        h = h + mixed.reshape(h.shape) @ w["out"]
        return h + jax.nn.gelu(normalized(h, w["between"]) @ w["up"]) @ w["down"], None

    h = (y["embedding"][tokens[:, :-1]] + y["position"]).astype(size.dtype)
    h, _ = lax.scan(layer, h, y["layers"])
    logits = normalized(h, y["last"]) @ y["embedding"].T.astype(size.dtype)
    picked = optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), tokens[:, 1:])
    return picked.mean(axis=-1)


# The problem

EVERY = 20  # steps between two looks at the unseen pages


def problem_of(size):
    def training(x, y, batch):  # batch: rows × domains × tokens
        flat = batch.reshape(-1, batch.shape[-1])
        each = losses(size, y, flat).reshape(batch.shape[:2]).mean(axis=0)
        return x @ each, dict(zip(DOMAINS, each, strict=True))

    def target(x, y, batch):
        return losses(size, y, batch).mean()

    return bl.Problem(inner=training, outer=target), target


def adam(size):
    """Lifted by `eps_root`: its root has an infinite slope where a gradient is zero, as a few are in bfloat16."""
    return optax.adam(size.rate, eps_root=1e-8)


def positive(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"at least one step, not {text}")
    return int(text)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=positive, help="800, or 2,000 at full size")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--full", action="store_true", help="12 layers × 768 in bfloat16, for a GPU")
    parser.add_argument("--plot", help="a file for the figure, such as weights.png")
    options = parser.parse_args()
    size = FULL if options.full else Size()
    steps = options.steps or (2000 if options.full else 800)

    rng = np.random.default_rng(options.seed)
    train = np.stack([pages(kind, 1000, size.tokens, rng) for kind in DOMAINS.values()], axis=1)
    guide = lambda count: np.concatenate([pages(kind, count, size.tokens, rng) for kind in (rivers, foods)])
    valid, unseen = guide(8), guide(32 if options.full else 250)
    sizes = bl.Levels(inner=size.rows, outer=None)
    data = bl.epochs(bl.Batch(inner=train, outer=valid), size=sizes, seed=options.seed)

    problem, target = problem_of(size)
    on_simplex = bl.projected(0.5, optax.projections.projection_simplex)
    solver = bl.itd(problem, inner=adam(size), outer=on_simplex)
    x0 = np.full(len(DOMAINS), 1 / len(DOMAINS), np.float32)
    y0 = initial(size, rng)
    held_out = jax.jit(lambda y: target(None, y, unseen))

    result = bl.run(
        solver,
        x0,
        y0,
        data=data,
        steps=steps,
        options=bl.RunOptions(every=EVERY, probe=lambda state, info: {"unseen": held_out(state.y)}),
        record=lambda state, info: {"weights": state.x},
        progress=True,
    )
    print(result.status)
    if result.status.code is bl.Code.DIVERGED:
        raise SystemExit(1)
    for name, weight in zip(DOMAINS, result.x, strict=True):
        print(f"{name:>10} {weight:.3f} {'█' * round(40 * float(weight))}")

    # For comparison: as many steps with equal weights, and on the guidebook's own pages alone
    own = bl.Problem(inner=target, outer=target)
    alone = bl.itd(own, inner=adam(size), outer=1.0)
    runs = {
        "weights learned": list(result.probes["unseen"]),
        "equal weights": trained(solver, x0, y0, data, steps, held_out),
        "its own 16 pages": trained(alone, x0, y0, bl.Batch(inner=valid, outer=valid), steps, held_out),
    }
    print("loss on unseen pages of the guidebook, in nats a word:")
    for name, seen in runs.items():
        print(f"{name:>20} {seen[-1]:.3f} at the end, {min(seen):.3f} at best")
    if options.plot:
        plot(options.plot, result.trace["weights"], runs, steps)


def trained(solver, x0, y0, data, steps, measure):
    """Steps on y alone, and what is measured of it on the way."""
    go_on = jax.jit(lambda run, data, count: bl.warm_up(solver, run, data, steps=count), static_argnums=2)
    run, seen = bl.start(solver, x0, y0, data), []
    for done in range(0, steps, EVERY):
        run = go_on(run, data, min(EVERY, steps - done))
        seen.append(float(measure(run.y)))
    return seen


def plot(file, weights, runs, steps):
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(weights, label=list(DOMAINS))
    left.set(title="weights of the domains", xlabel="step")
    for name, seen in runs.items():
        right.plot([min(EVERY * (i + 1), steps) for i in range(len(seen))], seen, label=name)
    right.set(title="loss on unseen pages of the target", xlabel="step")
    left.legend()
    right.legend()
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()
