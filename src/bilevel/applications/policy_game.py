"""Stackelberg game of two policies with sampled trajectories: an inspector commits, a plant responds.

In each of T periods the inspector (the leader) sees the pollution of a river, s = 0, 1, 2, and inspects with
probability σ(x_s). The plant (the follower) pollutes with probability σ(y_ts) and earns 1. If it is caught,
it pays a fine, and nothing flows. The river gets dirtier if something flows and recovers otherwise, both by
chance. The inspector pays for dirt and for inspections. The plant maximizes its own return with an entropy
bonus of temperature τ:

    g(x, y) = −E Σ_t (r_F(s_t, a_t, b_t) + τ H(y_ts))        f(x, y) = −E Σ_t r_L(s_t, a_t, b_t)

g has one stationary point, which backward induction finds. A leader who commits inspects more often than pays
at the moment, because that deters. Two players who each follow their own gradient miss this effect.

The expectations are unknown. f and g are averages over trajectories, drawn with the key of the step from the
policies x and y. A plain gradient misses that x and y change the distribution of trajectories. Each term is
therefore multiplied by a factor that is always 1 and has the right derivatives (DiCE, Foerster et al. 2018):

    □_t = exp(c_t − stop_gradient(c_t)),   c_t = Σ_{u ≤ t} log σ'(x, a_u) + log σ'(y, b_u)   (of the drawn actions)

As p·∇ⁿ□ = ∇ⁿp for a trajectory of probability p, derivatives of all orders are unbiased, also ∇²_yy g and
∇²_xy g. A product of two estimates is unbiased only if they are independent: hence `batches="independent"`.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from matplotlib.figure import Figure

import bilevel as bl
from bilevel.applications.base import Application, Outcome
from bilevel.applications.parts import run_all
from bilevel.applications.table import spread
from bilevel.plot.style import BLACK, BLUE, PURPLE, VERMILION

LEVELS, PERIODS = 3, 6
TAU = 0.5  # the plant's temperature
SAMPLES = 500  # trajectories for each estimate


class Game(NamedTuple):
    """Tables by state, action of the leader and action of the follower; 1 is to inspect or to pollute."""

    P: Any  # (states, 2, 2, states)
    leader: Any  # (states, 2, 2)
    follower: Any  # (states, 2, 2)


def game(seed: int) -> Game:
    rng = np.random.default_rng(seed)
    fine, cost = rng.uniform(1.5, 2.5), rng.uniform(0.3, 0.5)
    worse, better = rng.uniform(0.7, 0.9), rng.uniform(0.4, 0.6)
    s, a, b = np.meshgrid(np.arange(LEVELS), [0, 1], [0, 1], indexing="ij")
    flows = (b == 1) & (a == 0)
    moved = np.where(flows, np.minimum(s + 1, LEVELS - 1), np.maximum(s - 1, 0))
    chance = np.where(flows, worse, better)[..., None]
    P = chance * np.eye(LEVELS)[moved] + (1 - chance) * np.eye(LEVELS)[s]
    parts = P, -s - cost * a, np.where(b == 1, np.where(a == 1, -fine, 1.0), 0.0)
    return Game(*(part.astype(np.float32) for part in parts))


def log_chance(logit: Any, action: Any) -> Any:
    """Return log σ(logit) for action 1, log σ(−logit) for action 0."""
    return jax.nn.log_sigmoid(jnp.where(action == 1, logit, -logit))


def entropy(logit: Any) -> Any:
    p = jax.nn.sigmoid(logit)
    return -p * log_chance(logit, 1) - (1 - p) * log_chance(logit, 0)


class Played(NamedTuple):
    """States and actions, each (periods, trajectories)."""

    s: Any
    a: Any
    b: Any


def play(x: Any, y: Any, game: Game, key: Any, samples: int = SAMPLES) -> Played:
    """Draw trajectories from random initial states. A draw has no derivative."""
    x, y = lax.stop_gradient((x, y))
    draw = jax.random.uniform(key, (len(y) + 1, 3, samples), x.dtype)

    def period(s, t):
        of_leader, of_follower, of_river = draw[t + 1]
        a = (of_leader < jax.nn.sigmoid(x[s])).astype(jnp.int32)
        b = (of_follower < jax.nn.sigmoid(y[t, s])).astype(jnp.int32)
        below = jnp.cumsum(game.P[s, a, b], axis=-1)[:, :-1]
        return jnp.sum(of_river[:, None] > below, axis=-1, dtype=jnp.int32), Played(s, a, b)

    first = jnp.floor(len(x) * draw[0, 0]).astype(jnp.int32)
    return lax.scan(period, first, jnp.arange(len(y)))[1]


def box(c: Any) -> Any:
    return jnp.exp(c - lax.stop_gradient(c))


def first_order_box(c: Any) -> Any:
    """Return the usual score function: 1 with the right gradient, without the second derivative ∇c∇cᵀ."""
    return 1 + c - lax.stop_gradient(c)


def dice(x: Any, y: Any, game: Game, played: Played, box: Any = box) -> tuple[Any, Any]:
    """Return both players' returns of each trajectory, with the derivatives of their expectations in x and y.

    A reward depends on the actions up to its own period, the entropy of a state on the actions before it.
    """
    s, a, b = played
    own = jnp.take_along_axis(y, s, axis=1)
    chances = log_chance(x[s], a) + log_chance(own, b)
    so_far = jnp.cumsum(chances, axis=0)
    now, before = box(so_far), box(so_far - chances)
    leader, follower = now * game.leader[s, a, b], now * game.follower[s, a, b]
    return jnp.sum(leader, axis=0), jnp.sum(follower + TAU * before * entropy(own), axis=0)


def inner(x: Any, y: Any, game: Game, *, key: Any, box: Any = box) -> Any:
    return -jnp.mean(dice(x, y, game, play(x, y, game, key), box)[1])


def outer(x: Any, y: Any, game: Game, *, key: Any, box: Any = box) -> Any:
    return -jnp.mean(dice(x, y, game, play(x, y, game, key), box)[0])


PROBLEM = bl.Problem(inner=inner, outer=outer)
FIRST_ORDER = bl.Problem(inner=partial(inner, box=first_order_box), outer=partial(outer, box=first_order_box))

# The exact solution of this small game, for comparison


def returns(x: Any, y: Any, game: Game) -> tuple[Any, Any]:
    """Return the exact expectations, from the distribution of the states."""
    inspect = jnp.stack([jax.nn.sigmoid(-x), jax.nn.sigmoid(x)], axis=1)

    def period(at, logits):
        pollute = jnp.stack([jax.nn.sigmoid(-logits), jax.nn.sigmoid(logits)], axis=1)
        joint = jnp.einsum("s,sa,sb->sab", at, inspect, pollute)
        leader, follower = jnp.sum(joint * game.leader), jnp.sum(joint * game.follower)
        return jnp.einsum("sab,sabz->z", joint, game.P), (leader, follower + TAU * at @ entropy(logits))

    leader, follower = lax.scan(period, jnp.full_like(x, 1 / len(x)), y)[1]
    return jnp.sum(leader), jnp.sum(follower)


def best_response(x: Any, game: Game, periods: int = PERIODS) -> Any:
    """Return y*(x) by backward induction: the logit is the advantage of polluting over τ."""
    inspect = jnp.stack([jax.nn.sigmoid(-x), jax.nn.sigmoid(x)], axis=1)

    def period(value, _):
        q = jnp.einsum("sa,sab->sb", inspect, game.follower + game.P @ value)
        return TAU * jax.nn.logsumexp(q / TAU, axis=1), (q[:, 1] - q[:, 0]) / TAU

    return lax.scan(period, jnp.zeros_like(x), None, length=periods, reverse=True)[1]


def committed(x: Any, game: Game) -> Any:
    """Return Φ(x), the loss of the leader if the follower responds optimally."""
    return -returns(x, best_response(x, game), game)[0]


EXACT = bl.Problem(
    inner=lambda x, y, game: -returns(x, y, game)[1], outer=lambda x, y, game: -returns(x, y, game)[0]
)


def task(seed: int) -> bl.problems.Instance:
    here = jax.tree.map(jnp.asarray, game(seed))
    x0, y0 = jnp.zeros(LEVELS, jnp.float32), jnp.zeros((PERIODS, LEVELS), jnp.float32)
    data, loss = bl.Batch(inner=here, outer=here), partial(committed, game=here)
    label = "loss of the leader if the follower responds optimally"
    return bl.problems.Instance("policy-game", PROBLEM, x0, y0, data, 0.3, loss, label)


def brute_force(game: Game, points: int = 41) -> np.ndarray:
    """Return the best x on a grid of probabilities, refined twice."""
    value = jax.jit(jax.vmap(partial(committed, game=game)))
    best, reach = np.full(LEVELS, 0.5), 0.5
    for _ in range(3):
        sides = [np.clip(np.linspace(p - reach, p + reach, points), 1e-3, 1 - 1e-3) for p in best]
        grid = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, LEVELS)
        logits = np.log(grid / (1 - grid)).astype(game.P.dtype)
        best, reach = grid[np.argmin(value(logits))], 2 * reach / (points - 1)
    return np.log(best / (1 - best)).astype(game.P.dtype)


LENGTHS = dict(inner=3.0, outer=0.3)  # step sizes: the curvature of g is about τ·p(1 − p)·(share of visits)


def methods() -> dict[str, bl.Solver]:
    aid = partial(bl.aid, adjoint=3.0, batches="independent", **LENGTHS)
    return {
        "AID": aid(PROBLEM),
        "AID, no second-order terms": aid(FIRST_ORDER),
        "AID, exact expectations": aid(EXACT),
        "simultaneous play": bl.solvers.darts_first_order(PROBLEM, **LENGTHS),
        "simultaneous, exact expectations": bl.solvers.darts_first_order(EXACT, **LENGTHS),
    }


def trial(seed: int, steps: int, progress: bool) -> Outcome:
    this = task(seed)
    here = this.data.inner
    value = jax.jit(jax.vmap(lambda x: -committed(x, here)))
    played = jax.jit(jax.vmap(lambda x, y: returns(x, y, here)[0]))
    optimum = brute_force(here, points=41 if steps > 100 else 11)
    best = float(value(optimum[None])[0])
    scores: dict[str, dict[str, float]] = {}
    seen: dict[str, Any] = {"brute force": (optimum, None)}
    keep = lambda state, info: {"x": state.x, "y": state.y}
    for name, run in run_all(methods(), this, steps, progress, seed=seed, record=keep).items():
        values, late = value(run.trace["x"]), slice(steps // -4, None)
        as_played = float(jnp.mean(played(run.trace["x"][late], run.trace["y"][late])))
        scores[name] = score(float(jnp.mean(values[late])), as_played, best)
        seen[name] = np.asarray(run.x), best - np.asarray(values)
    for name, logit in {"always inspect": 20.0, "every second time": 0.0, "never inspect": -20.0}.items():
        fixed = float(value(jnp.full((1, LEVELS), logit, jnp.float32))[0])
        scores[name] = score(fixed, fixed, best)
    return Outcome(scores | {"brute force": score(best, best, best)}, seen)


def score(committed: float, as_played: float, best: float) -> dict[str, float]:
    """Return means over the last quarter of a run, against the best response and the actual follower."""
    return {"return": committed, "as played": as_played, "short of the best": best - committed}


def draw(figure: Figure, outcomes: list[Outcome]) -> None:
    figure.set_size_inches(9, 3.5)
    course, choice = figure.subplots(1, 2, width_ratios=(1.2, 1))
    looks = {"AID": BLUE, "AID, no second-order terms": PURPLE, "simultaneous play": VERMILION}
    for name, color in looks.items():
        for outcome in outcomes:
            course.semilogy(np.maximum(outcome.seen[name][1], 1e-5), color=color, lw=0.9, alpha=0.8)
    course.set(xlabel="step", title="short of the best return there is", ylim=(1e-4, None))
    looks = {"brute force": BLACK, **looks}
    for i, (name, color) in enumerate(looks.items()):
        chances = np.asarray(jax.nn.sigmoid(np.stack([outcome.seen[name][0] for outcome in outcomes])))
        at = np.arange(LEVELS) + 0.2 * (i - 1.5)
        choice.bar(at, chances.mean(axis=0), 0.18, yerr=spread(chances), color=color, label=name)
    choice.set_xticks(range(LEVELS), ["clean river", "polluted", "badly polluted"])
    choice.set(title="frequency of inspections", ylim=(0, 1))
    figure.legend(*choice.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    for axes in (course, choice):
        axes.spines[["top", "right"]].set_visible(False)


TITLE = "an inspector who commits, a plant that responds: a Stackelberg game from sampled trajectories"
SOURCE = "made from the seed"
BETTER = ("return", "as played")
APPLICATION = Application("policy-game", TITLE, task, 1000, trial, draw, better=BETTER, source=SOURCE)
