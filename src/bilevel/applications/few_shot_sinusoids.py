"""Few-shot regression: a start from which a few gradient steps on ten points fit a new sine wave.

    f(x, y; Q_i) = (1/|Q_i|) Σ_{(t, u) ∈ Q_i} (network(y, t) − u)²        the error on other points of wave i
    g(x, y; S_i) = the same on its ten support points S_i                 y_i(x): five gradient steps on g from x

A wave has a random amplitude in [0.1, 5] and phase in [0, π]; points are in [−5, 5] (Finn et al. 2017). x is
the start of the weights y of a network. MAML, first-order MAML, Reptile and implicit MAML are compared with a
random start and with a network pretrained on the points of all waves together. Every step draws 25 new waves.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

import bilevel as bl
from bilevel.applications.base import Application, Outcome
from bilevel.applications.parts import FreshStream, adapted as adapted_by, descend, run_all

SHOTS, TASKS, HIDDEN = 10, 25, 40
FEW = 5  # gradient steps on a new wave
ALPHA, RATE, TIE = 0.02, 5e-3, 0.2  # of adaptation, of Adam on x, and iMAML's λ
COUNTS = (1, FEW, 50)  # the reported numbers of steps
RATES = (0.003, 0.01, 0.02, 0.04)  # rates of adaptation; every start uses the best on validation waves
LEISURE = 300  # steps of Adam in a long adaptation


# Data: new waves at every step


def waves(key: Any, tasks: int, shots: int = SHOTS) -> bl.Batch:
    """Return (t, u) of `shots` points for each level; one row per wave."""
    uniform = lambda key, columns, *ends: jax.random.uniform(key, (tasks, columns), jnp.float32, *ends)
    of_amplitude, of_phase, of_points = jax.random.split(key, 3)
    amplitude, phase = uniform(of_amplitude, 1, 0.1, 5.0), uniform(of_phase, 1, 0.0, np.pi)
    t = uniform(of_points, 2 * shots, -5.0, 5.0)
    u = amplitude * jnp.sin(t - phase)
    return bl.Batch(inner=(t[:, :shots], u[:, :shots]), outer=(t[:, shots:], u[:, shots:]))


class Waves(FreshStream):
    tasks: int = eqx.field(static=True, default=TASKS)
    shots: int = eqx.field(static=True, default=SHOTS)

    def batch(self, key: Any) -> bl.Batch:
        return waves(key, self.tasks, self.shots)


# Model: two hidden layers


def network(y: Any, t: Any) -> Any:
    hidden = jnp.tanh(t[:, None] * y["a"] + y["b"])
    return jnp.tanh(hidden @ y["c"] + y["d"]) @ y["e"]


def initial(rng: np.random.Generator) -> Any:
    normal = lambda *shape: (rng.normal(size=shape) / shape[0] ** 0.5).astype(np.float32)
    kinks = rng.uniform(-5, 5, (1, HIDDEN)).astype(np.float32)  # spread over the range of the points
    a = normal(1, HIDDEN)
    first = {"a": a, "b": a * kinks, "c": normal(HIDDEN, HIDDEN)}
    return first | {"d": 0 * normal(1, HIDDEN), "e": normal(HIDDEN)}


def squares(x: Any, predicted: Any, examples: Any) -> Any:
    return jnp.mean((predicted - examples[1]) ** 2)


def predicted(x: Any, y: Any, examples: Any) -> Any:
    return network(y, examples[0])


# A composed loss has a Gauss–Newton curvature, which is positive, as the systems of iMAML need.
LOSS = bl.composed(predicted, squares)
PROBLEM = bl.Problem(inner=LOSS, outer=lambda x, y, examples: squares(x, predicted(x, y, examples), examples))


def learners(steps: int) -> dict[str, Any]:
    adam = optax.adam(optax.cosine_decay_schedule(RATE, max(steps, 1)))
    implicit = bl.adjoints.gauss_newton(bl.adjoints.cg(1e-3, max_steps=5))
    few = {"inner": ALPHA, "outer": adam, "inner_steps": FEW}
    tied = few | {"inner_steps": 15, "proximal_weight": TIE, "adjoint": implicit}
    return {
        "MAML": bl.maml(PROBLEM, **few),
        "first-order MAML": bl.solvers.fomaml(PROBLEM, **few),
        "Reptile": bl.solvers.reptile(PROBLEM, **few),
        "implicit MAML": bl.imaml(PROBLEM, **tied),
    }


def task(seed: int) -> bl.problems.Instance:
    x0 = initial(np.random.default_rng(seed))
    new = waves(jax.random.key(seed + 10**6), 100)
    error = lambda x: jnp.mean(adapted(x, new, ALPHA, 0.0, FEW)[0][:, -1])
    label = f"error on other points after {FEW} steps, on new waves"
    data = Waves(jax.random.key(seed))
    return bl.problems.Instance("few-shot-sinusoids", PROBLEM, x0, x0, data, measure=error, label=label)


@partial(jax.jit, static_argnums=4)
def adapted(x: Any, new: bl.Batch, rate: Any, tie: Any, steps: int) -> tuple[Any, Any]:
    """Return the errors on other points after 0, 1, … steps, one row per wave, and the last networks."""
    error = lambda y, query: PROBLEM.f(x, y, bl.Batch(None, query))
    return adapted_by(PROBLEM, error, x, new, rate, tie, steps)


@partial(jax.jit, static_argnums=2)
def at_leisure(x: Any, new: bl.Batch, steps: int) -> Any:
    """Return the error of each wave on other points after many steps of Adam on the support points."""

    def one(support, query):
        gradient = lambda y, _: jax.grad(lambda y: PROBLEM.g(x, y, bl.Batch(support)))(y)
        y = descend(optax.adam(1e-2), gradient, x, None, steps)
        return PROBLEM.f(x, y, bl.Batch(None, query))

    return jax.vmap(one)(new.inner, new.outer)


def trial(seed: int, steps: int, progress: bool) -> Outcome:
    instance = task(seed)
    x0, stream = instance.x0, instance.data
    starts = {name: run.x for name, run in run_all(learners(steps), instance, steps, progress).items()}
    # Reptile with one step of size 1 is Adam on the mean loss; it gets the query points as well.
    pooled = bl.solvers.reptile(PROBLEM, inner=1.0, outer=learners(steps)["Reptile"].outer, inner_steps=1)
    all_points = Waves(stream.key, shots=2 * SHOTS)
    pretrained = bl.run(pooled, x0, x0, data=all_points, steps=steps, progress=progress).check()
    starts |= {"pretrained on all waves": pretrained.x, "from scratch": x0}
    valid, test = (waves(jax.random.key(seed + offset), 400) for offset in (2 * 10**6, 3 * 10**6))
    tie = lambda name: TIE * (name == "implicit MAML")
    judged = {name: _judged(x, valid, test, tie(name), steps) for name, x in starts.items()}
    seen = {
        "curves": {name: curves for name, (_, curves) in judged.items()},
        "starts": {name: starts[name] for name in ("MAML", "pretrained on all waves")},
        "wave": _tallest(test),
    }
    return Outcome({name: scores for name, (scores, _) in judged.items()}, seen)


def _judged(x: Any, valid: bl.Batch, test: bl.Batch, tie: float, steps: int) -> tuple[dict[str, float], Any]:
    """Return the scores of a start. For every number of steps it adapts with the best rate on `valid`."""
    most = max(COUNTS) if steps > max(COUNTS) else FEW  # a short trial is short in all parts
    on_valid = np.array([np.mean(adapted(x, valid, rate, tie, most)[0], axis=0) for rate in RATES])
    on_valid = np.where(np.isfinite(on_valid), on_valid, np.inf)
    on_test = np.array([adapted(x, test, rate, tie, most)[0] for rate in RATES])
    best = np.argmin(on_valid, axis=0)
    chosen = on_test[best, :, np.arange(most + 1)]  # steps × waves
    mean, half = chosen.mean(axis=1), 1.96 * chosen.std(axis=1, ddof=1) / chosen.shape[1] ** 0.5
    scores = {f"{count} step{'s' * (count > 1)}": float(mean[min(count, most)]) for count in COUNTS}
    scores[f"95 % ± at {FEW}"] = float(half[FEW])
    scores[f"{LEISURE} of Adam"] = float(np.mean(at_leisure(x, test, min(LEISURE, 10 * steps))))
    return scores, (mean, half)


def _tallest(new: bl.Batch) -> bl.Batch:
    """Return the wave to draw, the tallest: every start looks good on a flat one."""
    row = int(np.argmax(np.ptp(new.outer[1], axis=1)))
    return jax.tree.map(lambda a: a[row : row + 1], new)


def draw(figure: Figure, outcomes: list[Outcome]) -> None:
    """Draw one wave, and the error after every number of steps."""
    left, right = figure.subplots(1, 2)
    seen = outcomes[0].seen
    t = np.linspace(-5, 5, 200, dtype=np.float32)
    (support_t, support_u), (query_t, query_u) = seen["wave"].inner, seen["wave"].outer
    colors = {name: f"C{i}" for i, name in enumerate(seen["curves"])}
    for name, x in seen["starts"].items():
        _, y = adapted(x, seen["wave"], ALPHA, 0.0, FEW)
        left.plot(t, network(x, t), ":", color=colors[name], label=f"{name}, start")
        last = network(jax.tree.map(lambda a: a[0], y), t)
        left.plot(t, last, color=colors[name], label=f"after {FEW} steps")
    left.plot(support_t[0], support_u[0], "k.", markersize=9, label=f"{SHOTS} points of a new wave")
    left.plot(query_t[0], query_u[0], "ko", markersize=5, fillstyle="none", label="other points")
    left.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False)
    for name, color in colors.items():
        mean, half = np.mean([one.seen["curves"][name] for one in outcomes], axis=0)
        steps = np.arange(len(mean))
        right.fill_between(steps, mean - half, mean + half, color=color, alpha=0.2, linewidth=0)
        right.plot(steps, mean, color=color, label=name)
    right.set(yscale="log", title="mean squared error on other points")
    right.set_xlabel("gradient steps on the ten points")
    right.set_xscale("symlog", linthresh=5)
    right.set_xticks([0, *COUNTS], ["0", *map(str, COUNTS)])
    right.set_xlim(left=0)
    right.legend(fontsize="small", frameon=False, loc="center right", bbox_to_anchor=(1, 0.53))


TITLE = "Few-shot regression: a start from which five gradient steps fit a new sine wave"
SOURCE = "sine waves, drawn as they are needed"
NEUTRAL = (f"95 % ± at {FEW}",)
APPLICATION = Application(
    "few-shot-sinusoids", TITLE, task, 2000, trial, draw, neutral=NEUTRAL, source=SOURCE
)
