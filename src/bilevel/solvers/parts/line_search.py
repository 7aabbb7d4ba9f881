"""Non-monotone line search (Zhang and Hager 2004) with spectral step sizes, for values of Φ that have errors."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from optax import tree

from bilevel.solvers.parts.trees import divide, dot
from bilevel.types import PyTree, Scalar

FIRST = 0.1  # the share of f that the first step would save if Φ were linear
SUFFICIENT = 1e-4  # of the predicted decrease: Armijo's constant
MEMORY = 0.85  # of past decreases, which a step may give back: Zhang and Hager's constant
GROWTH, NOISY_GROWTH = 10.0, 2.0  # the most that one step changes the next
PATIENCE = 10  # refused trials in a row, after which any finite one is accepted


class Change(NamedTuple):
    """Trial step from x to x + move, and its changes."""

    move: PyTree
    before: PyTree  # h at x
    after: PyTree  # h at x + move
    rise: Scalar  # Φ(x + move) − Φ(x)
    value: Scalar  # Φ(x + move)
    reliable: Any  # whether Φ(x + move) is accurate enough
    noisy: Any  # whether the batch is noise


class Decision(NamedTuple):
    """Answer to a trial step."""

    accepted: Any
    finite: Any
    step_size: Scalar  # β_{k+1}
    slack: Scalar  # the rise that the next step may use
    local: Scalar  # a local 1/L


def line_search(state: Any, trial: Change, gain: Scalar, rounding: Scalar, blur: float) -> Decision:
    """Accept the trial if Φ falls enough, and choose the next β: spectral, or shorter after a refusal.

    Args:
        state: x, the last `step_size`, `slack` and `local`, and the number of trials `refused` in a row.
        trial: the step.
        gain: γ, the share of β that the step took.
        rounding: a difference of values that may be rounding.
        blur: the relative length of a step that may be rounding.
    """
    move, rise, noisy, value = trial.move, trial.rise, trial.noisy, trial.value
    beta, begins, real = state.step_size, state.step_size == 0, state.step_size.dtype
    slope = dot(trial.before, move)
    finite = jnp.isfinite(rise) & jnp.isfinite(tree.norm(trial.after))
    lower = trial.reliable & (rise <= state.slack + SUFFICIENT * slope + rounding)
    accepted = finite & (begins | lower | (~noisy & (state.refused >= PATIENCE)))

    bend = tree.sub(trial.after, trial.before)
    along = dot(move, bend)
    growth = jnp.where(noisy, NOISY_GROWTH, GROWTH).astype(real)
    spectral = jnp.where(along > 0, divide(along, tree.norm(bend, squared=True)), growth * beta)
    longer = beta * jnp.clip(divide(spectral, beta), 1 / growth, growth) ** gain
    length, size = tree.norm(move), tree.norm(trial.before)
    stationary = (size == 0) | (beta * size > tree.norm(state.x))  # otherwise the step is too short to move x
    longer = jnp.where((length == 0) & stationary, beta, longer)
    shorter = beta * jnp.where(finite, jnp.clip(divide(-slope, 2 * (rise - slope)), 0.1, 0.5), 0.1)
    scale = jnp.where(value == 0, 1, jnp.abs(value))
    begin = FIRST * divide(scale, tree.norm(trial.after, squared=True))
    step_size = jnp.where(accepted, jnp.where(begins, begin, longer), shorter)

    kept = jnp.where(accepted, jnp.maximum(MEMORY * (state.slack - rise), 0), state.slack)
    slack = jnp.where(noisy | begins, 0, kept)
    bent = tree.norm(bend)
    curved = jnp.where(bent > 0, divide(length, bent), jnp.inf)
    moved = accepted & (length > blur * tree.norm(state.x))
    local = jnp.where(moved, jnp.minimum(curved, gain * beta), state.local)
    return Decision(accepted, finite, step_size, slack, local)
