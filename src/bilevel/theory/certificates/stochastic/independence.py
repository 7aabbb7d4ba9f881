"""Which runs the bounds for minibatches are about; all others are refused, with the reason and the fix."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.loop.data.streams import Blocks, FullBatch, Independent, Minibatches, Shuffled, as_stream
from bilevel.solvers.adjoints.gradient_steps import OneStep
from bilevel.solvers.algorithms.aid import AID
from bilevel.solvers.algorithms.soba import SOBA
from bilevel.solvers.base import Solver
from bilevel.solvers.rules import Descent, Rule, Settled, Transformation

TRIED = 8  # steps of an optax rule


class NotCovered(ValueError):
    """A run whose draws or updates are not those of the theorem."""


def check(solver: Solver, data: Any = None) -> None:
    """Raises `bl.theory.stochastic.NotCovered` unless the theorem covers this solver on these draws.

    It asks for AID with a draw each for y, v and x, or SOBA with either kind of draws; plain steps of a size that
    depends on the number of the step alone, one each for y and v; draws that are independent from step to step.
    An optax rule is tried for a few steps. That a batch's loss is unbiased (a mean over its rows, not a sum) is yours
    to see to.
    """
    check_solver(solver)
    check_draws(data)


def check_solver(solver: Solver) -> None:
    if not isinstance(solver, AID | SOBA) or type(solver) not in (AID, SOBA):
        raise NotCovered(
            f"there is no bound for {getattr(solver, 'name', type(solver).__name__)} on minibatches here: take the "
            'solver bl.aid(..., batches="independent") or bl.soba(...)'
        )
    if isinstance(solver, AID) and solver.batches == "shared":
        raise NotCovered(
            "AID with shared batches is biased: ŷ_k was made by the batch on which the products at ŷ_k are then taken, "
            'and v̂_k by that on which its cross product is; pass batches="independent", or take bl.soba, whose '
            "directions are all at the old point"
        )
    if isinstance(solver, AID) and solver.inner_steps != 1:
        raise NotCovered(
            f"inner_steps = {solver.inner_steps}, and the bound is for one step on y per step on x: take one inner "
            "step, on a batch as many times larger"
        )
    if not isinstance(solver.adjoint, OneStep):
        raise NotCovered(
            f"the adjoint ingredient {solver.adjoint.name!r} uses one batch's curvature several times, so that its "
            "result is not linear in it and biased; pass a step size for one step on the adjoint"
        )
    if solver.problem.prox is not None:
        raise NotCovered("the bound is for smooth problems: replace the proximal term by a smooth one in g")
    if "state" in solver.problem.wants:
        raise NotCovered(
            "objectives with a `state` (batch norm) see earlier batches, so that a step's directions are not unbiased: "
            "hold the statistics fixed, or normalize by something that does not depend on the batch"
        )
    for level, rule in (("inner", solver.inner), ("adjoint", solver.adjoint.rule), ("outer", solver.outer)):
        check_rule(rule, level)


def check_rule(rule: Rule, level: str) -> None:
    if isinstance(rule, Descent):
        return
    if isinstance(rule, Settled):
        raise NotCovered(
            f"the {level} rule is projected, and the bound is for steps that are not: leave it out"
        )
    if isinstance(rule, Transformation) and _plain(rule):
        return
    raise NotCovered(
        f"the {level} rule is not a step along the direction by a size that follows from the step's number (momentum, "
        "Adam, clipping and decay are not): pass a number, or optax.sgd(schedule)"
    )


def check_draws(data: Any) -> None:
    stream = as_stream(data) if data is None or hasattr(data, "inner") else data
    if isinstance(stream, FullBatch):  # no noise but that of keys, new for every draw and level
        return
    if not isinstance(stream, Minibatches):
        raise NotCovered(
            f"nothing is known of the draws of a {type(stream).__name__}: put the data in arrays and pass "
            "bl.iid(data, size), which draws with replacement"
        )
    for level, sampler in zip(("inner", "outer"), stream.samplers, strict=True):
        if isinstance(sampler, Shuffled | Blocks):
            raise NotCovered(
                f"the {level} batches come in epochs without replacement: given the earlier ones of an epoch, the next "
                "is not unbiased; pass bl.iid(data, size), which draws with replacement"
            )
        if sampler is not None and not isinstance(sampler, Independent):
            raise NotCovered(
                f"nothing is known of the {level} sampler {type(sampler).__name__}: pass bl.iid(data, size)"
            )


def _plain(rule: Transformation) -> bool:
    """Whether its updates are −s_t·gradient, with one s_t for any gradients before, of any size, and any point."""
    rng, sizes = np.random.default_rng(0), []
    for scale in (1e-3, 1.0, 1e3):
        point = rng.normal(size=3) / scale
        gradients = scale * rng.normal(size=(TRIED, 3)) * rng.uniform(0.5, 2, size=(TRIED, 1))
        try:
            moves = _updates(rule, point, gradients)
        except Exception as error:  # a rule for trees of a certain shape, or one that asks for values
            raise NotCovered(
                f"an optax rule could not be tried on a vector: pass a number, or optax.sgd(schedule) ({error})"
            ) from error
        size = -np.sum(moves * gradients, axis=1) / np.sum(gradients**2, axis=1)
        off = np.linalg.norm(moves + size[:, None] * gradients, axis=1)
        if not np.all(off <= 1e-5 * np.linalg.norm(moves, axis=1)):
            return False
        sizes.append(size)
    return bool(np.min(sizes) >= 0 and np.allclose(sizes, sizes[0], rtol=1e-5, atol=0))


def _updates(rule: Transformation, point: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    update, at, moves = rule.transformation.update, jnp.asarray(point), []
    with jax.numpy_dtype_promotion("standard"):  # whatever the user's, it is not the rule that is at fault
        memory = rule.init(at)
        for gradient in gradients:
            moved, memory = update(jnp.asarray(gradient), memory, at)
            moves.append(moved)
    return np.asarray(jnp.stack(moves), float)
