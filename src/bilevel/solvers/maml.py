"""MAML: learn the point from which a few gradient steps solve a new task."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from optax import tree

from bilevel.checks import prepare
from bilevel.problem import Batch, Problem
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.rule import as_rule, descend
from bilevel.solvers.unroll import inner_field, unroll

PyTree = Any


class MAMLState(NamedTuple):
    x: PyTree  # the initialisation
    y: PyTree  # the parameters adapted to each task of the last batch, stacked
    outer: PyTree  # state of the outer rule


def maml(problem: Problem, inner: Any, outer: Any, inner_steps: int = 1, checkpoint_every: int = 1) -> Solver:
    """The inner loop of every task starts from x itself; there is no warm start (N = 1 is the classic form):

        y_i     = x_k − α ∇_y g(x_k, x_k; S_i)                              for every task i
        x_{k+1} = x_k − β mean_i d/dx f(x_k, y_i(x_k); Q_i)

    The problem is that of *one* task: f its loss on the query examples Q_i, g its loss on the support examples S_i,
    both functions of (x, y, examples), of which plain MAML ignores x. The data hold many tasks:
    `bl.Batch(inner=supports, outer=queries)`, every array with one row per task. So `bl.iid(...)` and
    `bl.epochs(...)` draw minibatches of tasks. C. Finn, P. Abbeel, S. Levine, "Model-agnostic meta-learning for
    fast adaptation of deep networks", ICML 2017.

        loss = lambda x, y, examples: ...
        solver = bl.maml(bl.Problem(outer=loss, inner=loss), inner=0.1, outer=1e-3)
        result = bl.run(solver, x0, x0, data=bl.Batch(inner=supports, outer=queries), steps=1000)

    Args:
        problem: the two objectives of one task; x and y have the same tree.
        inner: α as a float, or any optax transformation, whose memory begins anew for every task.
        outer: β as a float, or any optax transformation.
        inner_steps: N, the adaptation steps.
        checkpoint_every: as in [`itd`][bilevel.itd].
    """
    inner_rule, outer_rule = as_rule(inner, "inner"), as_rule(outer, "outer")
    oracles = problem.oracles
    adapt = unroll(inner_field(oracles), inner_rule, inner_steps, None, checkpoint_every)

    def init(x0: PyTree, y0: PyTree, batch: Batch | None = None) -> MAMLState:
        tasks = _tasks(batch)
        x, y = prepare(problem, x0, y0, jax.tree.map(lambda rows: rows[0], batch))
        if jax.tree.map(lambda a: (a.shape, a.dtype), x) != jax.tree.map(lambda a: (a.shape, a.dtype), y):
            raise ValueError("in MAML y starts from x, so both have the same tree and shapes: pass y0=x0")
        return MAMLState(x, jax.tree.map(lambda a: jnp.stack([a] * tasks), x), outer_rule.init(x))

    def step(state: MAMLState, batch: Batch | None = None) -> tuple[MAMLState, Info]:
        x = state.x

        def one_task(batch):
            y, _, gradient, pull_back = adapt(x, x, inner_rule.init(x), batch)
            f = oracles.outer_gradients(x, y, batch)
            through_x, through_start = pull_back(f.y)
            return y, gradient, f.value, tree.add(f.x, tree.add(through_x, through_start()))

        y, gradients, values, hypergradients = jax.vmap(one_task)(batch)
        hypergradient = jax.tree.map(lambda a: jnp.mean(a, axis=0), hypergradients)
        x, outer_memory = descend(outer_rule, hypergradient, state.outer, x)
        return MAMLState(x, y, outer_memory), Info(jnp.mean(values), hypergradient, gradients, {})

    def warm_up(state: MAMLState, batch: Batch | None = None) -> MAMLState:
        return state  # nothing carries over from one step to the next but x

    return Solver("MAML", problem, ("x", "y"), init, step, warm_up)


def _tasks(batch: Batch | None) -> int:
    """How many tasks the data hold: the length of every array in them."""
    rows = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(batch)}
    if len(rows) != 1 or () in rows:
        found = sorted(shape[0] if shape else "none" for shape in rows) if rows else "no arrays"
        raise ValueError(
            f"MAML needs data of many tasks, every array with one row per task, but the numbers of rows are {found}: "
            "pass data=bl.Batch(inner=supports, outer=queries), each stacked over the tasks"
        )
    return rows.pop()[0]
