"""A real run for faults to hit: digits with wrong labels reweighted, minibatches, Adam, and hooks that remember.

    python -m faults.worker FOLDER STEPS [--save-every N] [--plain]

Prints "ready" when the first steps are taken and "done …" at the end; leaves with the status that bilevel documents.
"""

import argparse
import hashlib
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import bilevel as bl

ROWS, SIZE = 400, 32


def loss(y, batch):
    hidden = jnp.tanh(batch["x"] @ y["first"])
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ y["second"], batch["label"])


def inner(x, y, batch, *, rows):
    return jnp.mean(jax.nn.sigmoid(x[rows]) * loss(y, batch)) + 1e-3 * sum(
        map(jnp.vdot, y.values(), y.values())
    )


def outer(x, y, batch):
    return jnp.mean(loss(y, batch))


def run(folder: Path, steps: int, save_every: int | None, *, checkpoint: bool = True):
    key = jax.random.key(0)
    kinds = jax.random.normal(key, (5, 16))
    label = jax.random.randint(key, (2 * ROWS,), 0, 5)
    features = kinds[label] + jax.random.normal(jax.random.fold_in(key, 1), (2 * ROWS, 16))
    part = lambda rows, shift: {
        "x": features[rows],
        "label": jnp.where(shift, (label[rows] + 1) % 5, label[rows]),
    }
    train, test = slice(0, ROWS), slice(ROWS, None)
    wrong = jnp.arange(ROWS) % 4 == 0
    data = bl.epochs(bl.Batch(inner=part(train, wrong), outer=part(test, False)), size=SIZE, seed=1)
    y0 = {
        "first": 0.1 * jax.random.normal(key, (16, 24)),
        "second": 0.1 * jax.random.normal(key, (24, 5)),
    }
    solver = bl.aid(
        bl.Problem(inner=inner, outer=outer), inner=optax.adam(3e-3), adjoint=0.1, outer=optax.adam(3e-2)
    )
    best = bl.hooks.Best()
    ready = iter([lambda: print("ready", flush=True)])
    folder.mkdir(parents=True, exist_ok=True)
    hooks = [best, bl.hooks.CSV(folder / "trace.csv", thin=7), lambda event: next(ready, lambda: None)()]
    saved = dict(checkpoint=folder / "checkpoints", resume="auto") if checkpoint else {}
    probe = lambda state, info: {"largest": jnp.max(jnp.abs(state.x))}
    result = bl.run(
        solver,
        jnp.zeros(ROWS),
        y0,
        steps=steps,
        data=data,
        seed=3,
        warmup=20,
        hooks=hooks,
        options=bl.RunOptions(every=5, probe=probe, save_every=save_every if checkpoint else None),
        **saved,
    )
    return result, best


def digest(result, best, folder: Path) -> str:
    """Of every bit of the run, the trace, the probes, the best state and the file."""
    words = hashlib.sha256()
    for leaf in jax.tree.leaves((result.run, result.trace, result.probes, best.state, best.step)):
        array = np.asarray(leaf)
        words.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    words.update((folder / "trace.csv").read_bytes())
    return words.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("--save-every", type=int)
    parser.add_argument("--plain", action="store_true", help="without checkpoints")
    options = parser.parse_args()
    result, best = run(options.folder, options.steps, options.save_every, checkpoint=not options.plain)
    print(f"done {result.steps} {digest(result, best, options.folder)} {result.status}", flush=True)
    return result.status.code.exit_status


if __name__ == "__main__":
    sys.exit(main())
