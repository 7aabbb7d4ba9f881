"""Methods of the comparison, each with its settings derived from the smoothness L of the inner problem.

The outer step size is not a setting: every method gets the best one of the same grid. Loop lengths,
tolerances and penalties are chosen once for all tasks, here.

Two kinds of methods are left out. Meta-learners need many tasks, and x is the start of y in their problem.
Methods for small batches are equal to others in the table on full batches.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from bilevel import solvers
from bilevel.batch import Batch, Levels
from bilevel.loop.data.streams import epochs
from bilevel.problem import Problem
from bilevel.solvers import adjoints
from bilevel.solvers.base import Solver

IMPLICIT, ITERATIVE = "implicit differentiation", "iterative differentiation"
SHORTCUT, PENALTY, TUNING_FREE, YOURS = "first-order shortcuts", "penalty methods", "no step sizes", "yours"
FAMILIES = (IMPLICIT, ITERATIVE, PENALTY, SHORTCUT, TUNING_FREE, YOURS)

LOOP = 5  # steps of inner loops, and of loops on the adjoint system
CG_TOLERANCE, CG_STEPS = 1e-3, 10


def growing(k: Any) -> Any:
    """Return a penalty that grows slowly without bound, so that the bias vanishes, as the theory requires."""
    return 10.0 * (jnp.asarray(k, float) + 1) ** 0.25


@dataclass(frozen=True, eq=False)
class Method:
    """Method of the comparison.

    `make(problem, L, outer)` builds the solver; `outer` is a step size or an optax rule.
    """

    name: str
    family: str
    make: Callable[[Problem, float, Any], Solver]
    varies: bool = False  # the cost of a step depends on the run
    small_x: bool = False  # carries a copy of y for every entry of x
    quick: bool = False  # represents its family in a quick comparison
    data: Callable[[Any], Any] = field(default=lambda data: data)  # the stream it draws from


def fifths(data: Any) -> Any:
    """Return a fifth of the inner examples at a time, in shuffled epochs, for five batches per step."""
    if not isinstance(data, Batch):
        return data
    lengths = {leaf.shape[0] if leaf.ndim else 0 for leaf in jax.tree.leaves(data.inner)}
    if len(lengths) != 1 or max(lengths) < 5:  # not examples
        return data
    return epochs(data, Levels(inner=lengths.pop() // 5, outer=None))


def make(
    factory: Callable[..., Solver], adjoint: Callable[[float], Any] | None = None, **options: Any
) -> Any:
    """Return a function (problem, L, outer) that builds the solver, with inner steps of 1/L."""

    def build(problem: Problem, L: float, outer: Any) -> Solver:
        given = {} if adjoint is None else {"adjoint": adjoint(L)}
        return factory(problem, inner=1 / L, outer=outer, **given, **options)

    return build


def make_meha(problem: Problem, L: float, outer: Any) -> Solver:
    return solvers.meha(problem, inner=0.5 / L, outer=outer, penalty=growing, proximal_step=10 / L)


def make_darts(problem: Problem, L: float, outer: Any) -> Solver:
    return solvers.darts(problem, inner=1 / L, outer=outer, virtual_step=1 / L)


OfL = Callable[[float], Any]  # an adjoint for the Lipschitz constant L
step: OfL = lambda L: 1 / L
steps: OfL = lambda L: adjoints.steps(1 / L, LOOP)
neumann: OfL = lambda L: adjoints.neumann(1 / L, LOOP)
cg: OfL = lambda L: adjoints.cg(CG_TOLERANCE, CG_STEPS)
minres: OfL = lambda L: adjoints.minres(CG_TOLERANCE, CG_STEPS)
quasi_newton: OfL = lambda L: adjoints.quasi_newton(steps=1, memory=LOOP)
METHODS = (
    Method("AID", IMPLICIT, make(solvers.aid, step), quick=True),
    Method("AID, 5 + 5 steps", IMPLICIT, make(solvers.aid, steps, inner_steps=LOOP)),
    Method("AID, Neumann", IMPLICIT, make(solvers.aid, neumann)),
    Method("AID, CG", IMPLICIT, make(solvers.aid, cg, inner_steps=LOOP), varies=True),
    Method("AID, MINRES", IMPLICIT, make(solvers.aid, minres, inner_steps=LOOP), varies=True),
    Method("AID, quasi-Newton", IMPLICIT, make(solvers.aid, quasi_newton)),
    Method("qNBO", IMPLICIT, make(solvers.qnbo, memory=LOOP)),
    Method("SOBA", IMPLICIT, make(solvers.soba, step), quick=True),
    Method(
        "HOAG", IMPLICIT, make(solvers.hoag, max_inner_steps=100, max_adjoint_steps=CG_STEPS), varies=True
    ),
    Method("stocBiO", IMPLICIT, make(solvers.stocbio, step, products=3), data=fifths),
    Method("ITD", ITERATIVE, make(solvers.itd), quick=True),
    Method("ITD, 5 steps", ITERATIVE, make(solvers.itd, inner_steps=LOOP), quick=True),
    Method("ITD, last 2 of 5", ITERATIVE, make(solvers.itd, inner_steps=LOOP, truncate=2)),
    Method(
        "ITD, forward mode", ITERATIVE, make(solvers.forward_itd, inner_steps=LOOP), varies=True, small_x=True
    ),
    Method("BDA, 5 steps", ITERATIVE, make(solvers.bda, inner_steps=LOOP)),
    Method("IAPTT, 5 steps", ITERATIVE, make(solvers.iaptt, inner_steps=LOOP), varies=True),
    Method("RTHO", ITERATIVE, make(solvers.rtho), varies=True, small_x=True),
    Method("F2SA", PENALTY, make(solvers.f2sa, penalty=growing), quick=True),
    Method("F3SA", PENALTY, make(solvers.f3sa, penalty=growing)),
    Method("F2BA", PENALTY, make(solvers.f2ba, penalty=100.0, inner_steps=LOOP)),
    Method("F2SA-p, p = 2", PENALTY, make(solvers.f2sa_p, penalty=100.0, inner_steps=LOOP)),
    Method("V-PBGD", PENALTY, make(solvers.v_pbgd, penalty=growing)),
    Method("BOME", PENALTY, make(solvers.bome, inner_steps=LOOP)),
    Method("MEHA", PENALTY, make_meha),
    Method("PZOBO, 5 steps", SHORTCUT, make(solvers.pzobo, inner_steps=LOOP)),
    Method("DARTS", SHORTCUT, make_darts, quick=True),
    Method("DARTS, first order", SHORTCUT, make(solvers.darts_first_order)),
    Method("SAMA", SHORTCUT, make(solvers.sama), quick=True),
    Method("tuning-free", TUNING_FREE, lambda p, L, outer: solvers.tuning_free(p), varies=True, quick=True),
    Method("S-TFBO", TUNING_FREE, lambda p, L, outer: solvers.s_tfbo(p)),
    Method("D-TFBO", TUNING_FREE, lambda p, L, outer: solvers.d_tfbo(p)),
)
