"""Runs that the bounds for minibatches cover; all others raise, with the reason and the fix."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.loop.data.samplers import Blocks, Independent, Shuffled
from bilevel.loop.data.streams import FullBatch, Minibatches, as_stream
from bilevel.solvers.adjoints.base import OneStep
from bilevel.solvers.algorithms.aid import AID
from bilevel.solvers.algorithms.soba import SOBA
from bilevel.solvers.base import Solver
from bilevel.solvers.optax_rules import Transformation
from bilevel.solvers.rules import Descent, Settled

TRIED = 8  # steps for testing an optax rule


class NotCovered(ValueError):
    """Error for a run with draws or updates that the theorem does not cover."""


def check(solver: Solver, data: Any = None) -> None:
    """Raise `bl.theory.stochastic.NotCovered` unless the theorem covers this solver on these draws.

    * AID needs separate draws for y, v and x; SOBA has either kind of draws;
    * plain steps, one each for y and v, with a size that depends only on the step's number;
    * draws that are independent from step to step.

    An optax rule is tested for a few steps. You have to make sure that a batch's loss is unbiased (a mean
    over its rows, not a sum).
    """
    check_solver(solver)
    check_draws(data)


def check_solver(solver: Solver) -> None:
    if not isinstance(solver, AID | SOBA) or type(solver) not in (AID, SOBA):
        raise NotCovered(
            f"there is no bound for {getattr(solver, 'name', type(solver).__name__)} on minibatches: use "
            'the solver bl.aid(..., batches="independent") or bl.soba(...)'
        )
    if isinstance(solver, AID) and solver.batches == "shared":
        raise NotCovered(
            "AID with shared batches is biased: ŷ_k depends on the batch of the products at ŷ_k, and v̂_k on the batch "
            'of its cross product; pass batches="independent", or use bl.soba, which takes all directions at the '
            "old point"
        )
    if isinstance(solver, AID) and solver.inner_steps != 1:
        raise NotCovered(
            f"inner_steps = {solver.inner_steps}, but the bound is for one step on y per step on x: use one inner "
            "step, on a batch as many times larger"
        )
    if not isinstance(solver.adjoint, OneStep):
        raise NotCovered(
            f"the adjoint ingredient {solver.adjoint.name!r} uses one batch's curvature several times, so its "
            "result is biased; pass a step size for one step on the adjoint"
        )
    if solver.problem.prox is not None:
        raise NotCovered("the bound is for smooth problems: replace the proximal term by a smooth one in g")
    if "state" in solver.problem.wants:
        raise NotCovered(
            "objectives with a `state` (batch norm) see earlier batches, so a step's directions are biased: fix the "
            "statistics, or use a normalization that does not depend on the batch"
        )
    for level, rule in (("inner", solver.inner), ("adjoint", solver.adjoint.rule), ("outer", solver.outer)):
        if isinstance(rule, Settled):
            raise NotCovered(
                f"the {level} rule is projected, but the bound is for steps without projection: pass a step size"
            )
        if not isinstance(rule, Descent) and not (isinstance(rule, Transformation) and _is_plain(rule)):
            raise NotCovered(
                f"the {level} rule is not a plain step with a size that depends only on the step's number (momentum, "
                "Adam, clipping and decay are not): pass a number, or optax.sgd(schedule)"
            )


def check_draws(data: Any) -> None:
    stream = as_stream(data) if data is None or hasattr(data, "inner") else data
    if isinstance(stream, FullBatch):  # the keys are its only noise, new for every draw and level
        return
    if not isinstance(stream, Minibatches):
        raise NotCovered(
            f"the draws of a {type(stream).__name__} are unknown: put the data in arrays and pass bl.iid(data, size), "
            "which draws with replacement"
        )
    for level, sampler in zip(("inner", "outer"), stream.samplers, strict=True):
        if isinstance(sampler, Shuffled | Blocks):
            raise NotCovered(
                f"the {level} batches come in epochs without replacement: given the earlier ones of an epoch, the next "
                "is biased; pass bl.iid(data, size), which draws with replacement"
            )
        if sampler is not None and not isinstance(sampler, Independent):
            raise NotCovered(
                f"the {level} sampler {type(sampler).__name__} is unknown: pass bl.iid(data, size)"
            )


def _is_plain(rule: Transformation) -> bool:
    """Return whether updates are −s_t·gradient, with one s_t for all points and earlier gradients."""
    rng, sizes = np.random.default_rng(0), []
    for scale in (1e-3, 1.0, 1e3):
        point = rng.normal(size=3) / scale
        gradients = scale * rng.normal(size=(TRIED, 3)) * rng.uniform(0.5, 2, size=(TRIED, 1))
        try:
            moves = _updates(rule, point, gradients)
        except Exception as error:  # a rule for trees of a certain shape, or one that needs values
            raise NotCovered(
                f"an optax rule could not be tested on a vector: pass a number, or optax.sgd(schedule) ({error})"
            ) from error
        size = -np.sum(moves * gradients, axis=1) / np.sum(gradients**2, axis=1)
        off = np.linalg.norm(moves + size[:, None] * gradients, axis=1)
        if not np.all(off <= 1e-5 * np.linalg.norm(moves, axis=1)):
            return False
        sizes.append(size)
    return bool(np.min(sizes) >= 0 and np.allclose(sizes, sizes[0], rtol=1e-5, atol=0))


def _updates(rule: Transformation, point: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    update, at, moves = rule.transformation.update, jnp.asarray(point), []
    with jax.numpy_dtype_promotion("standard"):  # a strict user setting must not make the rule fail
        memory = rule.init(at)
        for gradient in gradients:
            moved, memory = update(jnp.asarray(gradient), memory, at)
            moves.append(moved)
    return np.asarray(jnp.stack(moves), float)
