"""The methods compared, each with its settings derived from the smoothness L of the inner problem.

The outer step size is not among them: every method gets the best one of the same grid. What remains are
choices of loop length, tolerance and penalty, made once for all tasks and written down here.

Left out: the meta-learners, whose problem has another form: x is where y starts, and there are many tasks; and methods
for small batches, which on all the data at once are others that are here.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from bilevel.batch import Batch, Levels
from bilevel.loop.data.streams import epochs
from bilevel.problem import Problem
from bilevel.solvers import adjoints
from bilevel.solvers.algorithms.aid import aid
from bilevel.solvers.algorithms.bda import bda
from bilevel.solvers.algorithms.bome import bome
from bilevel.solvers.algorithms.d_tfbo import d_tfbo
from bilevel.solvers.algorithms.darts import darts, darts_first_order
from bilevel.solvers.algorithms.f2ba import f2ba
from bilevel.solvers.algorithms.f2sa import f2sa
from bilevel.solvers.algorithms.f2sa_p import f2sa_p
from bilevel.solvers.algorithms.f3sa import f3sa
from bilevel.solvers.algorithms.forward_itd import forward_itd
from bilevel.solvers.algorithms.hoag import hoag
from bilevel.solvers.algorithms.iaptt import iaptt
from bilevel.solvers.algorithms.itd import itd
from bilevel.solvers.algorithms.meha import meha
from bilevel.solvers.algorithms.pbgd import v_pbgd
from bilevel.solvers.algorithms.pzobo import pzobo
from bilevel.solvers.algorithms.qnbo import qnbo
from bilevel.solvers.algorithms.rtho import rtho
from bilevel.solvers.algorithms.s_tfbo import s_tfbo
from bilevel.solvers.algorithms.sama import sama
from bilevel.solvers.algorithms.soba import soba
from bilevel.solvers.algorithms.stocbio import stocbio
from bilevel.solvers.algorithms.tuning_free import tuning_free
from bilevel.solvers.base import Solver

IMPLICIT, ITERATIVE, SHORTCUT = (
    "implicit differentiation",
    "iterative differentiation",
    "first-order shortcuts",
)
PENALTY, TUNING_FREE, YOURS = "penalty methods", "no step sizes", "yours"
FAMILIES = (IMPLICIT, ITERATIVE, PENALTY, SHORTCUT, TUNING_FREE, YOURS)

LOOP = 5  # steps of methods with an inner loop, and of those that work on the adjoint system for several
CG_TOLERANCE, CG_STEPS = 1e-3, 10


def growing(k: Any) -> Any:
    """A penalty without bound, so that the bias goes away; slowly, as theory asks."""
    return 10.0 * (jnp.asarray(k, float) + 1) ** 0.25


@dataclass(frozen=True, eq=False)
class Method:
    """`make(problem, L, outer)` builds the solver; `outer` is a step size or an optax rule."""

    name: str
    family: str
    make: Callable[[Problem, float, Any], Solver]
    varies: bool = False  # the cost of a step depends on how the run goes
    small_x: bool = False  # carries a copy of y for every entry of x
    quick: bool = False  # stands for its family in a quick comparison
    data: Callable[[Any], Any] = field(default=lambda data: data)  # the stream it draws from


def fifths(data: Any) -> Any:
    """A fifth of the inner examples at a time, in shuffled epochs, for a method that draws five batches a step."""
    if not isinstance(data, Batch):
        return data
    lengths = {leaf.shape[0] if leaf.ndim else 0 for leaf in jax.tree.leaves(data.inner)}
    if len(lengths) != 1 or max(lengths) < 5:  # not examples
        return data
    return epochs(data, Levels(inner=lengths.pop() // 5, outer=None))


METHODS = (
    Method("AID", IMPLICIT, lambda p, L, outer: aid(p, inner=1 / L, adjoint=1 / L, outer=outer), quick=True),
    Method(
        "AID, 5 + 5 steps",
        IMPLICIT,
        lambda p, L, outer: aid(
            p, inner=1 / L, adjoint=adjoints.steps(1 / L, LOOP), outer=outer, inner_steps=LOOP
        ),
    ),
    Method(
        "AID, Neumann",
        IMPLICIT,
        lambda p, L, outer: aid(p, inner=1 / L, adjoint=adjoints.neumann(1 / L, LOOP), outer=outer),
    ),
    Method(
        "AID, CG",
        IMPLICIT,
        lambda p, L, outer: aid(
            p, inner=1 / L, adjoint=adjoints.cg(CG_TOLERANCE, CG_STEPS), outer=outer, inner_steps=LOOP
        ),
        varies=True,
    ),
    Method(
        "AID, MINRES",
        IMPLICIT,
        lambda p, L, outer: aid(
            p, inner=1 / L, adjoint=adjoints.minres(CG_TOLERANCE, CG_STEPS), outer=outer, inner_steps=LOOP
        ),
        varies=True,
    ),
    Method(
        "AID, quasi-Newton",
        IMPLICIT,
        lambda p, L, outer: aid(
            p, inner=1 / L, adjoint=adjoints.quasi_newton(steps=1, memory=LOOP), outer=outer
        ),
    ),
    Method("qNBO", IMPLICIT, lambda p, L, outer: qnbo(p, inner=1 / L, outer=outer, memory=LOOP)),
    Method(
        "SOBA", IMPLICIT, lambda p, L, outer: soba(p, inner=1 / L, adjoint=1 / L, outer=outer), quick=True
    ),
    Method(
        "HOAG",
        IMPLICIT,
        lambda p, L, outer: hoag(
            p, inner=1 / L, outer=outer, max_inner_steps=100, max_adjoint_steps=CG_STEPS
        ),
        varies=True,
    ),
    Method(
        "stocBiO",
        IMPLICIT,
        lambda p, L, outer: stocbio(p, inner=1 / L, adjoint=1 / L, outer=outer, products=3),
        data=fifths,
    ),
    Method("ITD", ITERATIVE, lambda p, L, outer: itd(p, inner=1 / L, outer=outer), quick=True),
    Method(
        "ITD, 5 steps",
        ITERATIVE,
        lambda p, L, outer: itd(p, inner=1 / L, outer=outer, inner_steps=LOOP),
        quick=True,
    ),
    Method(
        "ITD, last 2 of 5",
        ITERATIVE,
        lambda p, L, outer: itd(p, inner=1 / L, outer=outer, inner_steps=LOOP, truncate=2),
    ),
    Method(
        "ITD, forward mode",
        ITERATIVE,
        lambda p, L, outer: forward_itd(p, inner=1 / L, outer=outer, inner_steps=LOOP),
        varies=True,
        small_x=True,
    ),
    Method("BDA, 5 steps", ITERATIVE, lambda p, L, outer: bda(p, inner=1 / L, outer=outer, inner_steps=LOOP)),
    Method(
        "IAPTT, 5 steps",
        ITERATIVE,
        lambda p, L, outer: iaptt(p, inner=1 / L, outer=outer, inner_steps=LOOP),
        varies=True,
    ),
    Method(
        "RTHO", ITERATIVE, lambda p, L, outer: rtho(p, inner=1 / L, outer=outer), varies=True, small_x=True
    ),
    Method(
        "F2SA", PENALTY, lambda p, L, outer: f2sa(p, inner=1 / L, outer=outer, penalty=growing), quick=True
    ),
    Method("F3SA", PENALTY, lambda p, L, outer: f3sa(p, inner=1 / L, outer=outer, penalty=growing)),
    Method(
        "F2BA",
        PENALTY,
        lambda p, L, outer: f2ba(p, inner=1 / L, outer=outer, penalty=100.0, inner_steps=LOOP),
    ),
    Method(
        "F2SA-p, p = 2",
        PENALTY,
        lambda p, L, outer: f2sa_p(p, inner=1 / L, outer=outer, penalty=100.0, inner_steps=LOOP),
    ),
    Method("V-PBGD", PENALTY, lambda p, L, outer: v_pbgd(p, inner=1 / L, outer=outer, penalty=growing)),
    Method("BOME", PENALTY, lambda p, L, outer: bome(p, inner=1 / L, outer=outer, inner_steps=LOOP)),
    Method(
        "MEHA",
        PENALTY,
        lambda p, L, outer: meha(p, inner=0.5 / L, outer=outer, penalty=growing, proximal=10 / L),
    ),
    Method(
        "PZOBO, 5 steps", SHORTCUT, lambda p, L, outer: pzobo(p, inner=1 / L, outer=outer, inner_steps=LOOP)
    ),
    Method("DARTS", SHORTCUT, lambda p, L, outer: darts(p, inner=1 / L, outer=outer, xi=1 / L), quick=True),
    Method(
        "DARTS, first order", SHORTCUT, lambda p, L, outer: darts_first_order(p, inner=1 / L, outer=outer)
    ),
    Method("SAMA", SHORTCUT, lambda p, L, outer: sama(p, inner=1 / L, outer=outer), quick=True),
    Method("tuning-free", TUNING_FREE, lambda p, L, outer: tuning_free(p), varies=True, quick=True),
    Method("S-TFBO", TUNING_FREE, lambda p, L, outer: s_tfbo(p)),
    Method("D-TFBO", TUNING_FREE, lambda p, L, outer: d_tfbo(p)),
)
