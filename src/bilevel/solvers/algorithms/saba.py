"""SABA: SOBA whose directions remember what every fixed batch said last (Dagréou et al. 2022)."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from optax import tree

from bilevel.batch import Batch, Levels
from bilevel.checks import check_problem, prepare
from bilevel.oracles import Along
from bilevel.problem import Problem
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.fixed_points import check_plain
from bilevel.solvers.parts.estimates import Averages, average_of, corrected, leaning
from bilevel.solvers.parts.lagrangian import energy, lagrangian
from bilevel.solvers.parts.whole import each, place
from bilevel.solvers.rules import Rule, as_rule, descend
from bilevel.solvers.traits import Traits
from bilevel.types import PyTree, StepSize


class Outer(NamedTuple):
    """What a batch of outer data says."""

    x: PyTree  # ∇_x f
    y: PyTree  # ∇_y f


class SABAState(NamedTuple):
    x: PyTree
    y: PyTree
    v: PyTree
    inner: PyTree  # memory of the inner rule
    adjoint: PyTree  # memory of the adjoint rule
    outer: PyTree  # memory of the outer rule
    of_g: Averages  # of Along, over the fixed batches of inner data
    of_f: Averages  # of Outer, over those of outer data


class SABA(Solver):
    inner: Rule
    adjoint: Rule
    outer: Rule
    name: ClassVar[str] = "SABA"
    variables: ClassVar[tuple[str, ...]] = ("x", "y", "v")
    traits: ClassVar[Traits] = Traits(outer_at="start")

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | None = None) -> SABAState:
        x, y = prepare(self.problem, x0, y0, batch)
        check_plain(self, y)
        v = tree.zeros_like(y)
        counts = Levels(*(place(batch, level, self.name).of for level in Levels._fields))
        of_g, of_f = _first_epoch(self.problem, x, y, batch, counts)
        memories = self.inner.init(y), self.adjoint.init(v), self.outer.init(x)
        return SABAState(x, y, v, *memories, average_of(of_g), average_of(of_f))

    def step(self, state: SABAState, batch: Batch | None = None) -> tuple[SABAState, Info]:
        x, y, v, problem, oracles = state.x, state.y, state.v, self.problem, self.problem.oracles
        i, j = (place(batch, level, self.name).number for level in Levels._fields)

        now, f = oracles.along(x, y, v, batch), oracles.outer_gradients(x, y, batch)
        g, of_g = corrected(state.of_g, now, i)
        b, of_f = corrected(state.of_f, Outer(f.x, f.y), j)
        residual, hypergradient = tree.sub(g.hessian, b.y), tree.sub(b.x, g.cross)

        for_y = leaning(lambda y: problem.g(x, y, batch), y, g.gradient)
        for_v = leaning(energy(oracles.curvature(x, y, batch), f.y), v, residual)
        for_x = leaning(lagrangian(problem, y, v, batch), x, hypergradient)
        y, inner_memory = descend(self.inner, g.gradient, state.inner, y, for_y)
        v, adjoint_memory = descend(self.adjoint, residual, state.adjoint, v, for_v)
        x, outer_memory = descend(self.outer, hypergradient, state.outer, x, for_x)

        state = SABAState(x, y, v, inner_memory, adjoint_memory, outer_memory, of_g, of_f)
        return state, Info(f.value, hypergradient, now.gradient, {"adjoint_residual": tree.norm(residual)})


def saba(problem: Problem, inner: StepSize | Rule, adjoint: StepSize | Rule, outer: StepSize | Rule) -> SABA:
    """`bl.soba` with SAGA's correction of every term. For each term D of a direction

        d_k = D_i(x_k, y_k, v_k) − D_i^last + mean_l D_l^last          then D_i^last ← D_i(x_k, y_k, v_k)

    where i is the batch of the step and D_l^last what batch l said when it was drawn last. The terms are
    ∇_y g, ∇²_yy g·v and ∇²_xy g·v over the inner batches, ∇_x f and ∇_y f over the outer ones, and

        y_{k+1} = y_k − α d(∇_y g)
        v_{k+1} = v_k − η (d(∇²_yy g·v) − d(∇_y f))
        x_{k+1} = x_k − β (d(∇_x f) − d(∇²_xy g·v))

    The noise vanishes as the iterates settle, so constant step sizes converge to the solution itself, at the price of
    memory: three gradients per inner batch and two per outer batch. The batches are fixed ones, as in the authors'
    code: draw them with `bl.blocks`. On the full batch it is SOBA. M. Dagréou, P. Ablin, S. Vaiter,
    T. Moreau, "A framework for bilevel optimization that enables stochastic and global variance reduction
    algorithms", NeurIPS 2022, who remember examples, drawn independently. `init` fills the memory by one pass over
    the data, the authors' code begins with zeros; their v has the opposite sign.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        adjoint: η as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
    """
    return SABA(
        check_problem(problem), as_rule(inner, "inner"), as_rule(adjoint, "adjoint"), as_rule(outer, "outer")
    )


def _first_epoch(
    problem: Problem, x: PyTree, y: PyTree, batch: Batch | None, counts: Levels
) -> tuple[Along, Outer]:
    """What every batch says at (x0, y0, 0), where both products are zero."""
    oracles = problem.oracles
    gradient = each(lambda part: oracles.inner_gradient(x, y, part), batch, "inner", counts.inner)
    of_f = each(lambda part: oracles.outer_gradients(x, y, part), batch, "outer", counts.outer)
    zeros = lambda point: jax.tree.map(lambda a: jnp.zeros((counts.inner, *a.shape), a.dtype), point)
    return Along(gradient, zeros(y), zeros(x)), Outer(of_f.x, of_f.y)
