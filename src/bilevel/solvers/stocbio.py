"""stocBiO: a minibatch Neumann series with data of its own for every term (Ji, Yang & Liang 2021)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.checks import check_count, prepare
from bilevel.problem import Batch, Problem
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.inner import inner_step
from bilevel.solvers.rule import as_rule, check_positive, descend

PyTree = Any


class StocBiOState(NamedTuple):
    x: PyTree  # x_{k+1}
    y: PyTree  # ŷ_k, the next warm start
    inner: PyTree  # state of the inner rule
    outer: PyTree  # state of the outer rule


def stocbio(
    problem: Problem, inner: Any, eta: Any, outer: Any, *, products: int = 3, inner_steps: int = 1
) -> Solver:
    """N = `inner_steps` steps on y, Q = `products` factors of a Neumann series, one step on x:

        y_{t+1} = y_t − α ∇_y g(x_k, y_t; S_t)                                        t = 0, …, N − 1
        r_{i+1} = (I − η ∇²_yy g(x_k, ŷ_k; B_i)) r_i      r_0 = ∇_y f(x_k, ŷ_k)          i = 0, …, Q − 1
        x_{k+1} = x_k − β (∇_x f(x_k, ŷ_k) − ∇²_xy g(x_k, ŷ_k; D) η Σ_{i=0}^{Q} r_i)

    S_t, B_i and D are disjoint: the inner batch of the step is cut along its first axis into N + Q + 1 equal
    parts (fewer than that many examples may be left over, and go unused). Factors with independent data
    multiply to an unbiased estimate of the truncated series; the truncation itself leaves the bias
    (I − η∇²_yy g)^{Q+1} ∇_y f in the adjoint system. Feed it shuffled minibatches: `bl.epochs` or `bl.iid`.

    The publication lets the batches B_i shrink with i; here they have one size. An inner objective without
    data gives every term the same g, and the method is then `aid` with `adjoints.neumann(eta, products)`.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        eta: η as a float, at most 1/L.
        outer: β as a float, or any optax transformation.
        products: Q, Hessian products per step.
        inner_steps: N, steps on y per step on x.
    """
    inner_rule, outer_rule = as_rule(inner, "inner"), as_rule(outer, "outer")
    check_positive(eta, "Neumann step size eta")
    products = check_count(products, "products")
    inner_steps = check_count(inner_steps, "inner_steps")
    parts, oracles = inner_steps + products + 1, problem.oracles

    def init(x0: PyTree, y0: PyTree, batch: Batch | None = None) -> StocBiOState:
        x, y = prepare(problem, x0, y0, batch)
        jax.eval_shape(lambda batch: _split(batch, parts), batch)  # refuses a batch too small to be cut
        return StocBiOState(x, y, inner_rule.init(y), outer_rule.init(x))

    def step(state: StocBiOState, batch: Batch | None = None) -> tuple[StocBiOState, Info]:
        x, pieces = state.x, _split(batch, parts)
        take = lambda start, stop: jax.tree.map(lambda a: a[start:stop], pieces)

        def descend_inner(carry, piece):
            y, memory = carry
            gradient = oracles.inner_gradient(x, y, Batch(inner=piece))
            return descend(inner_rule, gradient, memory, y), gradient

        (y, inner_memory), gradients = lax.scan(
            descend_inner, (state.y, state.inner), take(0, inner_steps), length=inner_steps
        )
        f = oracles.outer_gradients(x, y, batch)

        def add_term(carry, piece):
            r, total = carry
            r = tree.add_scale(r, -eta, oracles.linearise(x, y, Batch(inner=piece)).hessian(r))
            return (r, tree.add(total, r)), None

        (_, total), _ = lax.scan(
            add_term, (f.y, f.y), take(inner_steps, inner_steps + products), length=products
        )
        last = Batch(inner=jax.tree.map(lambda a: a[-1], pieces))
        v = tree.scale(eta, total)
        hypergradient = tree.sub(f.x, oracles.linearise(x, y, last).cross(v))
        x, outer_memory = descend(outer_rule, hypergradient, state.outer, x)

        first = jax.tree.map(lambda a: a[0], gradients)
        return StocBiOState(x, y, inner_memory, outer_memory), Info(f.value, hypergradient, first, {})

    return Solver("stocBiO", problem, ("x", "y"), init, step, warm_up=inner_step(oracles, inner_rule))


def _split(batch: Batch | None, parts: int) -> PyTree:
    """The inner data as `parts` disjoint pieces, stacked along a new first axis; `None` if there are none."""
    if batch is None or batch.inner is None:
        return None
    shapes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(batch.inner)}
    if len(shapes) != 1 or () in shapes:
        raise ValueError(
            f"stocBiO cuts the inner batch along its first axis, but the arrays' first axes are "
            f"{sorted(shapes)}: give every inner array one row per example"
        )
    ((rows,),) = shapes
    if rows < parts:
        raise ValueError(
            f"stocBiO needs {parts} disjoint parts of the inner batch (inner_steps + products + 1), but it has "
            f"{rows} examples: use larger batches, or fewer products"
        )
    size = rows // parts
    return jax.tree.map(lambda a: jnp.reshape(a[: parts * size], (parts, size, *a.shape[1:])), batch.inner)
