"""SABA: SOBA with the last directions of every fixed batch (Dagréou et al. 2022)."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from optax import tree

from bilevel.batch import Levels
from bilevel.oracles import Along
from bilevel.solvers.kit import Batch, ImplicitSolver, Info, Problem, Traits, descend
from bilevel.solvers.options import Rule, factory, field, rule_of
from bilevel.solvers.parts.estimates import Averages, average_of, corrected, leaning
from bilevel.solvers.parts.lagrangian import energy, lagrangian
from bilevel.solvers.parts.whole import each, place
from bilevel.types import PyTree, StepSize


class Outer(NamedTuple):
    """Gradients of f on a batch of outer data."""

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
    of_f: Averages  # of Outer, over the batches of outer data


class SABA(ImplicitSolver):
    adjoint: Rule = field(converter=rule_of("adjoint"))
    name: ClassVar[str] = "SABA"
    traits: ClassVar[Traits] = Traits(inner_rule="plain", outer_at="start")

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | None = None) -> SABAState:
        start = self.start(x0, y0, batch)
        counts = Levels(*(place(batch, level, self.name).of for level in Levels._fields))
        of_g, of_f = _first_epoch(self.problem, start.x, start.y, batch, counts)
        return SABAState(*start, average_of(of_g), average_of(of_f))

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


@factory()
def saba(
    problem: Problem, *, inner: StepSize | Rule, adjoint: StepSize | Rule, outer: StepSize | Rule
) -> SABA:
    """Run `bl.soba` with SAGA's correction of every term. For each term D of a direction

        d_k = D_i(x_k, y_k, v_k) − D_i^last + mean_l D_l^last          then D_i^last ← D_i(x_k, y_k, v_k)

    where i is the batch of the step and D_l^last the last value on batch l. The terms are ∇_y g, ∇²_yy g·v and ∇²_xy
    g·v over the inner batches, ∇_x f and ∇_y f over the outer ones, and

        y_{k+1} = y_k − α d(∇_y g)
        v_{k+1} = v_k − η (d(∇²_yy g·v) − d(∇_y f))
        x_{k+1} = x_k − β (d(∇_x f) − d(∇²_xy g·v))

    The noise vanishes as the iterates converge, so constant step sizes converge to the solution itself. The price is
    memory: three gradients per inner batch and two per outer batch. The batches are fixed ones, as in the authors'
    code: draw them with `bl.blocks`. On the full batch it is SOBA. M. Dagréou, P. Ablin, S. Vaiter, T. Moreau, "A
    framework for bilevel optimization that enables stochastic and global variance reduction algorithms", NeurIPS 2022,
    who store examples, drawn independently. `init` fills the memory by one pass over the data; the authors' code starts
    with zeros. Their v has the opposite sign.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        adjoint: η as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
    """
    return SABA(problem, inner, adjoint, outer)


def _first_epoch(
    problem: Problem, x: PyTree, y: PyTree, batch: Batch | None, counts: Levels
) -> tuple[Along, Outer]:
    """Return the terms of every batch at (x0, y0, 0), where both products are zero."""
    oracles = problem.oracles
    gradient = each(lambda part: oracles.inner_gradient(x, y, part), batch, "inner", counts.inner)
    of_f = each(lambda part: oracles.outer_gradients(x, y, part), batch, "outer", counts.outer)
    zeros = lambda point: jax.tree.map(lambda a: jnp.zeros((counts.inner, *a.shape), a.dtype), point)
    return Along(gradient, zeros(y), zeros(x)), Outer(of_f.x, of_f.y)
