"""What a Python loader costs through `bl.run`, against a loop by hand over it; and a slow loader behind the steps.

    python benchmarks/loaders.py [--rounds 7] [--steps 60]

AID with Adam on the MLP 784-256-10, minibatches of 512 from 60,000 rows at both levels, one weight per row of the
batch. Every variant is timed in every round, one after the other; a ratio is the median over rounds of its time to
that of what it is compared with in the same round. For the slow loaders that is the slower of the two: the loader
alone, or the steps alone on one batch that is there already. Run it on an idle machine.
"""

import argparse
import itertools
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import record

import bilevel as bl
from bilevel.problems.reweighting import PROBLEM, initial_mlp

ROWS, SIZE = 60_000, 512
RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((ROWS, 784), np.float32)
LABELS = RNG.integers(0, 10, ROWS, np.int32)


class Loader:
    """Minibatches; `before` is what it does over each besides."""

    def __init__(self, before=lambda: None, numbered: bool = False):
        self.before, self.numbered = before, numbered

    def __iter__(self):
        rng = np.random.default_rng(1)
        while True:
            self.before()
            inner, outer = rng.integers(0, ROWS, (2, SIZE))
            level = lambda rows: bl.data.Examples(IMAGES[rows], LABELS[rows])
            rows = bl.Levels(inner=np.arange(SIZE)) if self.numbered else bl.Levels()
            yield bl.Batch(inner=level(inner), outer=level(outer), rows=rows)


def solver_on(inner):
    return bl.aid(
        bl.Problem(inner=inner, outer=PROBLEM.outer),
        inner=optax.adam(1e-3),
        adjoint=1e-2,
        outer=optax.adam(1e-3),
    )


def noisy(x, y, batch, *, key):
    """With a key, as dropout has it."""
    images = batch.inputs * jax.random.bernoulli(key, 0.9, batch.inputs.shape[:1])[:, None]
    return PROBLEM.inner(x, y, bl.data.Examples(images, batch.targets))


def by_hand(solver, x0, y0, loader, steps: int):
    """The loop that one writes: a donated step, two batches ahead of the device, the losses kept."""
    programs = jax.jit(solver.init), jax.jit(solver.step, donate_argnums=0)
    init, step = STEPS.setdefault(id(solver), programs)
    batches = iter(loader)
    state, losses = init(x0, y0, next(batches)), []
    for batch in itertools.islice(batches, steps):
        state, info = step(state, jax.device_put(batch))
        losses.append(info.outer_value)
        if len(losses) > 2:
            jax.block_until_ready(losses[-3])
    return jax.block_until_ready(state)


STEPS: dict = {}


def seconds(call) -> float:
    began = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - began


def timed(loader: str, variants: dict, against, rounds: int, steps: int):
    """`against(times of a round)` is what the others are compared with."""
    for call in variants.values():
        seconds(call)  # compiles
    times = [{name: seconds(call) for name, call in variants.items()} for _ in range(rounds)]
    for name in variants:
        ratio = statistics.median(each[name] / against(each) for each in times)
        each = 1e3 * statistics.median(each[name] for each in times) / steps
        yield loader, name, f"{each:.1f}", f"{ratio:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.options(parser)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    rounds, steps = (1, 1) if given.quick else (given.rounds, given.steps)
    columns = ("loader", "loop", "ms a step", "relative")
    record.table("loaders", columns, rows(rounds, steps, given.quick), given.record)


class Quiet(bl.hooks.Hook):
    reads_info = False


def rows(rounds: int, steps: int, quick: bool):
    x0, y0 = jnp.zeros(SIZE, jnp.float32), jax.tree.map(jnp.asarray, initial_mlp(784, 256, 10, seed=0))
    plain, keyed = solver_on(PROBLEM.inner), solver_on(noisy)
    run = lambda loader, solver=plain, **more: bl.run(solver, x0, y0, data=loader, steps=steps, **more).state
    variants = {
        "by hand, the step donated": lambda: by_hand(plain, x0, y0, Loader(), steps),
        "`bl.run`": lambda: run(Loader()),
        "`bl.run`, `prefetch=0`": lambda: run(Loader(), options=bl.RunOptions(prefetch=0)),
        "`bl.run`, hooks": lambda: run(
            Loader(), hooks=[Quiet(), bl.hooks.EarlyStopping("outer_value", patience=10**6)]
        ),
        "`bl.run`, a hook that reads the Info": lambda: run(Loader(), hooks=[lambda event: event.info]),
        "`bl.run`, row numbers": lambda: run(Loader(numbered=True)),
        "`bl.run`, keys": lambda: run(Loader(), keyed),
    }
    if quick:
        variants = dict(itertools.islice(variants.items(), 2))
    yield from timed("quick", variants, lambda each: each["by hand, the step donated"], rounds, steps)
    if quick:
        return

    batch = next(iter(Loader()))
    alone = statistics.median(seconds(lambda: run([batch] * steps)) for _ in range(3)) / steps
    sortable = RNG.normal(size=200_000)
    sort = lambda: np.sort(sortable)
    sorts = max(1, round(alone / max(statistics.median(seconds(sort) for _ in range(5)), 1e-9)))
    slow = {
        "waits as long as a step takes": lambda: time.sleep(alone),
        "sorts as long as a step takes": lambda: [sort() for _ in range(sorts)],
    }
    for name, before in slow.items():
        variants = {
            "the steps alone": lambda: run([batch] * steps),
            "the loader alone": lambda before=before: list(itertools.islice(Loader(before), steps)) and None,
            "by hand, the step donated": lambda before=before: by_hand(plain, x0, y0, Loader(before), steps),
            "`bl.run`": lambda before=before: run(Loader(before)),
            "`bl.run`, `prefetch=0`": lambda before=before: run(
                Loader(before), options=bl.RunOptions(prefetch=0)
            ),
        }
        slower = lambda each: max(each["the steps alone"], each["the loader alone"])
        yield from timed(name, variants, slower, rounds, steps)


if __name__ == "__main__":
    main()
