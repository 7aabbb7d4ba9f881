"""Reward shaping: bonuses and fines on a map that make a short-sighted agent serve a far-sighted designer.

An agent walks on a slippery grid. It follows the best policy of an entropy-regularized Markov decision
process with its discount γ, so a far goal hardly attracts it. The discount δ of the designer is closer to
one. The designer may put a bonus or a fine x_s on the cells within a budget: ‖x‖₁ ≤ B. A bonus is paid at
every visit, so a careless bonus teaches the agent to walk in circles.

y is the agent's value of each cell. For its best policy it is the fixed point of the soft Bellman operator.
This is the only minimizer and the only stationary point of g, because I − γP_π is never singular:

    (T_x y)_s = τ log (1/4) Σ_a exp(q_sa/τ),    q_sa = r_sa + Σ_s' P_sas' (x_s' + γ y_s'),    π_y(a|s) ∝ exp(q_sa/τ)

    g(x, y) = ½ ‖y − T_x y‖²        f(x, y) = −ρᵀ(I − δP_π)⁻¹ r_π,  the designer's return, without bonuses, under π_y

To adapt it, write another `world`. Everything else works with any P, r and ρ.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from matplotlib.figure import Figure

import bilevel as bl
from bilevel.applications.base import Application, Outcome
from bilevel.applications.table import spread
from bilevel.plot.style import BLUE, GREEN, ORANGE, VERMILION

SIDE, ACTIONS = 6, 4
GAMMA, DELTA, TAU = 0.8, 0.97, 0.05  # discounts of agent and designer, and temperature of the agent
BUDGET = 1.0  # the value of the goal
SLIP, MIRE = 0.2, -0.3  # probability of a random move, and cost of a step into the mire
RATE = 0.03  # of the outer level
SHARES = np.array([0.05, 0.1, 0.2, 0.5, 1.0], np.float32)  # of the budget: more is not always better
MOVES = {"↑": (-1, 0), "→": (0, 1), "↓": (1, 0), "←": (0, -1)}


class World(NamedTuple):
    """Transitions and rewards; the last cell is the goal, where a walk ends."""

    P: Any  # (cells, actions, cells): probabilities of the next cell; a move from the goal stays there
    r: Any  # (cells, actions): reward of a move without bonuses
    rho: Any  # (cells,): probabilities of the first cell
    paid: Any  # (cells,): 1 if a move from here earns the bonus of the next cell; 0 at the goal


def mire(seed: int) -> np.ndarray:
    wet = np.random.default_rng(seed).choice(np.arange(1, SIDE * SIDE - 1), SIDE * SIDE // 7, replace=False)
    return np.isin(np.arange(SIDE * SIDE), wet)


def world(seed: int) -> World:
    """Return a grid with a seventh of its cells in the mire; start and goal are the first and last cell."""
    cells = SIDE * SIDE
    into = np.where(mire(seed), MIRE, 0.0)
    into[-1] = 1.0
    there = np.zeros((cells, ACTIONS, cells))
    for s in range(cells - 1):
        for a, (down, right) in enumerate(MOVES.values()):
            row, column = np.clip((s // SIDE + down, s % SIDE + right), 0, SIDE - 1)
            there[s, a, row * SIDE + column] = 1.0
    P = (1 - SLIP) * there + SLIP * there.mean(axis=1, keepdims=True)
    r = P @ into
    P[-1, :, -1] = 1.0
    start, paid = np.eye(cells)[0], 1 - np.eye(cells)[-1]
    return World(*(part.astype(np.float32) for part in (P, r, start, paid)))


def action_values(x: Any, y: Any, world: World) -> Any:
    return world.r + world.paid[:, None] * (world.P @ x) + GAMMA * (world.P @ y)


def policy(x: Any, y: Any, world: World) -> Any:
    return jax.nn.softmax(action_values(x, y, world) / TAU, axis=1)


def bellman(x: Any, y: Any, world: World) -> Any:
    """Return T_x y. Entropy is relative to the uniform policy, so a cell without rewards has value 0."""
    return TAU * (jax.nn.logsumexp(action_values(x, y, world) / TAU, axis=1) - math.log(ACTIONS))


def inner(x: Any, y: Any, world: World) -> Any:
    return 0.5 * jnp.sum((y - bellman(x, y, world)) ** 2)


def outer(x: Any, y: Any, world: World) -> Any:
    return -true_return(policy(x, y, world), world)


def true_return(pi: Any, world: World) -> Any:
    P, r = jnp.einsum("sa,sat->st", pi, world.P), jnp.sum(pi * world.r, axis=1)
    return world.rho @ jnp.linalg.solve(jnp.eye(len(r), dtype=r.dtype) - DELTA * P, r)


PROBLEM = bl.Problem(inner=inner, outer=outer)


@jax.jit
def within_budget(x: Any) -> Any:
    """Project onto ‖x‖₁ ≤ B. All entries shrink by one threshold, which is 0 inside the ball."""
    sizes = jnp.sort(jnp.abs(x), descending=True)
    threshold = jnp.max((jnp.cumsum(sizes) - BUDGET) / jnp.arange(1, len(x) + 1, dtype=x.dtype))
    return jnp.sign(x) * jnp.maximum(jnp.abs(x) - jnp.maximum(threshold, 0), 0)


def soft_values(x: Any, world: World, sweeps: int = 100) -> Any:
    """Return y*(x) by soft value iteration. The error shrinks by γ in every sweep."""
    return lax.fori_loop(0, sweeps, lambda _, y: bellman(x, y, world), jnp.zeros_like(x))


def task(seed: int) -> bl.problems.Instance:
    here, zero = jax.tree.map(jnp.asarray, world(seed)), jnp.zeros(SIDE * SIDE, jnp.float32)
    data, loss = bl.Batch(inner=here, outer=here), lambda x: outer(x, soft_values(x, here), here)
    label = "minus the return of the designer"
    return bl.problems.Instance("reward-shaping", PROBLEM, zero, zero, data, (1 + GAMMA) ** 2, loss, label)


# The closed form: NumPy, double precision, no automatic differentiation


def closed_form(x: Any, world: World) -> tuple[float, np.ndarray]:
    """Return Φ(x) and ∇Φ(x) by the implicit function theorem.

    The fixed point gives dy = (I − γP_π)⁻¹ P_π dx, and the policy gives dπ = π (dq − Σ_b π_b dq_b)/τ. The
    policy gradient theorem gives dΦ = −Σ_s d_s Σ_a dπ_sa Q_sa, with d the designer's discounted visits and Q
    his own values.
    """
    P, r, rho, paid = (np.asarray(part, float) for part in world)
    x, y, weights = np.asarray(x, float), np.zeros(len(r)), np.ones_like(r)
    for _ in range(150):  # 0.8¹⁵⁰ < 10⁻¹⁴
        q = r + paid[:, None] * (P @ x) + GAMMA * (P @ y)
        best = q.max(axis=1)
        weights = np.exp((q - best[:, None]) / TAU)
        y = best + TAU * np.log(weights.mean(axis=1))
    pi = weights / weights.sum(axis=1, keepdims=True)
    mixed, eye = np.einsum("sa,sat->st", pi, P), np.eye(len(r))
    dy = np.linalg.solve(eye - GAMMA * mixed, paid[:, None] * mixed)
    dq = paid[:, None, None] * P + GAMMA * (P @ dy)
    dpi = pi[:, :, None] * (dq - np.einsum("sa,sax->sx", pi, dq)[:, None, :]) / TAU
    J = np.linalg.solve(eye - DELTA * mixed, np.sum(pi * r, axis=1))
    visits = np.linalg.solve((eye - DELTA * mixed).T, rho)
    return -float(rho @ J), -np.einsum("s,sax,sa->x", visits, dpi, r + DELTA * (P @ J))


def exact_descent(world: World, steps: int) -> np.ndarray:
    """Run projected gradient descent on Φ, with the steps of the methods above."""
    x = np.zeros(len(world.rho), np.float32)
    for _ in range(steps):
        x = np.asarray(within_budget((x - RATE * closed_form(x, world)[1]).astype(np.float32)))
    return x


# Baselines without derivatives, within the same budget


def toward_goal() -> np.ndarray:
    """Return bonuses that grow toward the goal, zero at the start."""
    near = np.add.outer(np.arange(SIDE), np.arange(SIDE)).ravel().astype(np.float32)
    return near / near.sum()


def hill_climbing(value: Callable[[Any], Any], x: Any, seed: int, tries: int) -> Any:
    """Keep Gaussian changes that are better; lengthen by half after a success, else shorten by a tenth."""

    def attempt(carry, key):
        x, best, length = carry
        other = within_budget(x + length * jax.random.normal(key, x.shape, x.dtype))
        found = value(other)
        better = found < best
        keep = lambda new, old: jnp.where(better, new, old)
        return (keep(other, x), keep(found, best), length * jnp.where(better, 1.5, 0.9).astype(x.dtype)), None

    start = x, value(x), jnp.asarray(0.1, x.dtype)
    return lax.scan(attempt, start, jax.random.split(jax.random.key(seed), tries))[0][0]


@jax.jit
def reaches(x: Any, world: World) -> Any:
    """Return the probability that thirty moves reach the goal."""
    pi = policy(x, soft_values(x, world), world)
    P = jnp.einsum("sa,sat->st", pi, world.P)
    return lax.fori_loop(0, 30, lambda _, at: at @ P, world.rho)[-1]


def methods(problem: bl.Problem) -> dict[str, bl.Solver]:
    bounded = bl.projected(RATE, within_budget)
    return {
        "AID": bl.aid(problem, inner=0.3, adjoint=0.3, outer=bounded),  # 0.3 ≈ 1/L
        "ITD": bl.itd(problem, inner=0.3, outer=bounded),
        "tuning-free": bl.tuning_free(problem, project=within_budget),
    }


def trial(seed: int, steps: int, progress: bool) -> Outcome:
    this = task(seed)
    here, found = this.data.inner, {}
    for name, solver in methods(this.problem).items():
        count = max(1, steps // 20) if name == "tuning-free" else steps  # one of its steps does much more
        run = bl.run(solver, this.x0, this.y0, data=this.data, steps=count, progress=progress).check()
        found[name] = run.x
    value = jax.jit(lambda x: outer(x, soft_values(x, here), here))
    climb = jax.jit(lambda x: hill_climbing(value, x, seed, steps))
    best = lambda shape: min((jnp.asarray(share * shape) for share in SHARES), key=value)
    found |= {
        "exact derivatives": jnp.asarray(exact_descent(here, steps), jnp.float32),
        "hill climbing": climb(this.x0),
        "more toward the goal": best(toward_goal()),
        "all on the goal": best(np.asarray(1 - here.paid)),
        "no bonus": this.x0,
    }
    score = lambda x: {"return": -float(value(x)), "at the goal in 30 moves": float(reaches(x, here))}
    return Outcome({name: score(x) for name, x in found.items()}, (here, mire(seed), found))


def draw(figure: Figure, outcomes: list[Outcome]) -> None:
    """Draw two maps of the first seed, before and after, and the returns of all seeds."""
    figure.set_size_inches(9, 3.3)
    before, after, bars = figure.subplots(1, 3, width_ratios=(1, 1, 0.9))
    here, wet, found = outcomes[0].seen
    draw_map(before, found["no bonus"], here, wet).axes.set_title("no bonus", fontsize=10)
    image = draw_map(after, found["AID"], here, wet)
    after.set_title("bonuses found by AID", fontsize=10)
    figure.colorbar(image, ax=[before, after], shrink=0.75, label="bonus or fine")
    names = list(outcomes[0].scores)
    returns = np.array([[each.scores[name]["return"] for name in names] for each in outcomes])
    shade = [BLUE] * 3 + [GREEN] + ["#999999"] * (len(names) - 4)
    bars.barh(names, returns.mean(axis=0), xerr=spread(returns), color=shade)
    bars.invert_yaxis()
    bars.set_title("the designer's return", fontsize=10)
    bars.spines[["top", "right"]].set_visible(False)


def draw_map(axes: Any, x: Any, world: World, wet: np.ndarray) -> Any:
    """Draw bonuses as colors, mire as crosses, start as a dot, goal as a star, mean moves as arrows."""
    image = axes.imshow(np.reshape(x, (SIDE, SIDE)), cmap="RdBu", vmin=-0.25, vmax=0.25)
    pi = np.asarray(policy(x, soft_values(x, world), world))
    down, right = np.array(list(MOVES.values())).T @ pi.T
    rows, columns = np.divmod(np.arange(SIDE * SIDE), SIDE)
    walk = slice(0, -1)
    axes.quiver(
        columns[walk], rows[walk], right[walk], down[walk],
        angles="xy", scale_units="xy", scale=1.3, pivot="mid", width=0.012,
    )  # fmt: skip
    axes.plot(columns[wet], rows[wet], "x", color=VERMILION, markersize=15, alpha=0.5)
    axes.plot(0, 0, "o", color=GREEN, markersize=9)
    axes.plot(SIDE - 1, SIDE - 1, "*", color=ORANGE, markersize=16)
    axes.set(xticks=[], yticks=[])
    return image


TITLE = "bonuses on a map, within a budget, that lead a short-sighted agent to the goal"
BETTER = ("return", "at the goal in 30 moves")
SOURCE = "made from the seed"
APPLICATION = Application("reward-shaping", TITLE, task, 3000, trial, draw, better=BETTER, source=SOURCE)
