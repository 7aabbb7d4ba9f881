"""MAML: learn the point from which a few gradient steps solve a new task."""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from optax import tree

from bilevel.batch import Batch, Draws, Levels
from bilevel.checks import prepare
from bilevel.problem import Evaluated, Problem
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.ingredients.unroll import Lengths, follow, inner_field, lengths, unroll
from bilevel.solvers.rules import Rule, as_rule, descend
from bilevel.types import PyTree, StepSize


class MAMLState(NamedTuple):
    x: PyTree  # the initialisation, x_{k+1}
    y: PyTree  # the parameters adapted to each task of the last batch, stacked
    outer: PyTree  # memory of the outer rule


class MAML(Solver):
    inner: Rule
    outer: Rule
    lengths: Lengths = eqx.field(static=True)
    name: ClassVar[str] = "MAML"

    def sets_out(self, state: MAMLState) -> PyTree:
        """x, once for every task."""
        return jax.tree.map(lambda a, tasks: jnp.broadcast_to(a, tasks.shape), state.x, state.y)

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | None = None) -> MAMLState:
        tasks = _count(batch)
        one_task = jax.tree.map(lambda rows: rows[0], _by_task(batch, tasks))
        x, y = prepare(self.problem, x0, y0, one_task)
        if jax.tree.map(lambda a: (a.shape, a.dtype), x) != jax.tree.map(lambda a: (a.shape, a.dtype), y):
            raise ValueError("in MAML y starts from x, so both have the same tree and shapes: pass y0=x0")
        return MAMLState(x, jax.tree.map(lambda a: jnp.stack([a] * tasks), x), self.outer.init(x))

    def step(self, state: MAMLState, batch: Batch | None = None) -> tuple[MAMLState, Info]:
        x, problem, field = state.x, self.problem, inner_field(self.problem)
        tasks = _by_task(batch, _count(batch))

        def one_task(batch):
            adapted = unroll(field, self.inner, self.lengths, x, x, self.inner.init(x), batch)
            f = problem.oracles.outer_gradients(x, adapted.y, batch)
            through_x, through_start = adapted.pull_back(f.y)
            hypergradient = tree.add(f.x, tree.add(through_x, through_start()))
            return adapted.y, adapted.gradient, f.value, hypergradient

        def value_of_task(x, batch):
            times = jnp.arange(self.lengths.steps, dtype=jnp.int32)
            return problem.f(x, follow(field, self.inner, times, x, x, self.inner.init(x), batch), batch)

        y, gradients, values, hypergradients = jax.vmap(one_task)(tasks)
        hypergradient = _mean(hypergradients)
        value = lambda x: jnp.mean(jax.vmap(value_of_task, (None, 0))(x, tasks))
        x, outer_memory = descend(self.outer, hypergradient, state.outer, x, value)
        return MAMLState(x, y, outer_memory), Info(jnp.mean(values), hypergradient, gradients, {})

    def warm_up(self, state: MAMLState, batch: Batch | Draws | None = None) -> MAMLState:
        return state  # nothing carries over from one step to the next but x

    def observe(
        self, before: MAMLState, after: MAMLState, batch: Batch | None
    ) -> tuple[Evaluated, Evaluated]:
        """The means over the tasks, of what a model carries along as well."""
        tasks, x = _by_task(batch, _count(batch)), before.x
        inner = jax.vmap(lambda batch: self.problem.g.evaluate(x, x, batch))(tasks)
        outer = jax.vmap(lambda y, batch: self.problem.f.evaluate(x, y, batch))(after.y, tasks)
        return Evaluated(*map(_mean, inner)), Evaluated(*map(_mean, outer))


def maml(
    problem: Problem,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    *,
    inner_steps: int = 1,
    checkpoint_every: int = 1,
) -> MAML:
    """The inner loop of every task starts from x itself; there is no warm start (N = 1 is the classic form):

        y_i     = x_k − α ∇_y g(x_k, x_k; S_i)                              for every task i
        x_{k+1} = x_k − β mean_i d/dx f(x_k, y_i(x_k); Q_i)

    The problem is that of *one* task: f its loss on the query examples Q_i, g its loss on the support examples S_i,
    both functions of (x, y, examples), of which plain MAML ignores x. The data hold many tasks:
    `bl.Batch(inner=supports, outer=queries)`, every array with one row per task. So `bl.iid(...)` and
    `bl.epochs(...)` draw minibatches of tasks. Every task has a random key of its own and is given the same model
    state, of whose successors the mean is kept. C. Finn, P. Abbeel, S. Levine, "Model-agnostic meta-learning for
    fast adaptation of deep networks", ICML 2017.

        loss = lambda x, y, examples: ...
        solver = bl.maml(bl.Problem(outer=loss, inner=loss), inner=0.1, outer=1e-3)
        result = bl.run(solver, x0, x0, data=bl.Batch(inner=supports, outer=queries), steps=1000)

    Args:
        problem: the two objectives of one task; x and y have the same tree.
        inner: α as a float, or any optax transformation, whose memory begins anew for every task.
        outer: β as a float, or any optax transformation.
        inner_steps: N, the number of adaptation steps.
        checkpoint_every: the distance between kept inner iterates, as in [`itd`][bilevel.itd].
    """
    return MAML(
        problem,
        as_rule(inner, "inner"),
        as_rule(outer, "outer"),
        lengths(inner_steps, None, checkpoint_every),
    )


def _count(batch: Batch | None) -> int:
    """The number of tasks in the data: the length of every array in them."""
    data = None if batch is None else (batch.inner, batch.outer)
    rows = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(data)}
    if len(rows) != 1 or () in rows:
        found = sorted(shape[0] if shape else "none" for shape in rows) if rows else "no arrays"
        raise ValueError(
            f"MAML needs data of many tasks, every array with one row per task, but the numbers of rows are {found}: "
            "pass data=bl.Batch(inner=supports, outer=queries), each stacked over the tasks"
        )
    return rows.pop()[0]


def _by_task(batch: Any, tasks: int) -> Batch:
    """The batch with one row per task everywhere: keys of their own, the model's state once for each."""
    key = None if batch.key is None else jax.random.split(batch.key, tasks)
    state = jax.tree.map(lambda a: jnp.broadcast_to(a, (tasks, *jnp.shape(a))), batch.state)
    return Batch(batch.inner, batch.outer, Levels(*batch.rows), key, state)


def _mean(stacked: PyTree) -> PyTree:
    """The mean over the tasks; of what has none, such as counters, the first task's."""
    floating = lambda a: jnp.issubdtype(a.dtype, jnp.floating)
    return jax.tree.map(lambda a: jnp.mean(a, axis=0) if floating(a) else a[0], stacked)
