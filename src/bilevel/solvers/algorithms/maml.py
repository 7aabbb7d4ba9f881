"""MAML: learn the point from which a few gradient steps solve a new task."""

from typing import ClassVar

import jax
import numpy as np
from optax import tree

from bilevel.batch import each_own
from bilevel.solvers.kit import Batch, Info, Problem
from bilevel.solvers.options import Rule, factory, field
from bilevel.solvers.parts.inner import carried_state
from bilevel.solvers.parts.tasks import MetaLearner, MetaState, Tasks, by_task
from bilevel.solvers.parts.unroll import Lengths, follow, inner_field, lengths, state_gradient, unroll
from bilevel.types import StepSize


class MAML(MetaLearner):
    lengths: Lengths = field(static=True)
    name: ClassVar[str] = "MAML"

    def step(self, state: MetaState, batch: Batch | None = None) -> tuple[MetaState, Info]:
        x, problem, field, tasks = state.x, self.problem, inner_field(self.problem), by_task(batch, self.name)

        def one_task(batch):
            drawn = each_own(batch, self.inner_steps)
            adapted = unroll(field, self.inner, self.lengths, x, x, self.inner.init(x), drawn)
            y, last, model = adapted.y, adapted.last, adapted.model
            f = problem.oracles.outer_gradients(x, y, last)
            through_x, through_start = adapted.pull_back(f.y, state_gradient(problem, x, y, last, model))
            hypergradient = tree.add(f.x, tree.add(through_x, through_start()))
            return Tasks(y, adapted.gradient, f.value, hypergradient, {}, model)

        def value_of_task(x, batch):
            steps, drawn = self.inner_steps, each_own(batch, self.inner_steps)
            state = carried_state(problem, batch) if steps > 1 else None
            times = np.arange(steps, dtype=np.int32)
            return problem.f(x, *follow(field, self.inner, times, x, x, self.inner.init(x), state, drawn))

        return self.arrive(state, jax.vmap(one_task)(tasks), value_of_task, tasks)


@factory()
def maml(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    inner_steps: int = 1,
    checkpoint_every: int = 1,
) -> MAML:
    """Start the inner loop of every task from x itself, without a warm start (N = 1 is the classic form):

        y_i     = x_k − α ∇_y g(x_k, x_k; S_i)                              for every task i
        x_{k+1} = x_k − β mean_i d/dx f(x_k, y_i(x_k); Q_i)

    The problem describes *one* task: f is its loss on the query examples Q_i, g its loss on the support examples S_i.
    Both are functions of (x, y, examples), and plain MAML ignores x. The data hold many tasks:
    `bl.Batch(inner=supports, outer=queries)`, every array with one row per task. So `bl.iid(...)` and `bl.epochs(...)`
    draw minibatches of tasks, the same ones at both levels. Every task has its own random key and gets the same model
    state; the mean of their next states is kept. C. Finn, P. Abbeel, S. Levine, "Model-agnostic meta-learning for fast
    adaptation of deep networks", ICML 2017.

        loss = lambda x, y, examples: ...
        solver = bl.maml(bl.Problem(outer=loss, inner=loss), inner=0.1, outer=1e-3)
        result = bl.run(solver, x0, x0, data=bl.Batch(inner=supports, outer=queries), steps=1000)
        y = solver.adapt(result.x, bl.Batch(inner=new_supports))  # one row per new task

    Args:
        problem: the two objectives of one task; x and y have the same tree.
        inner: α as a float, or any optax transformation, with a new memory for every task.
        outer: β as a float, or any optax transformation.
        inner_steps: N, the number of adaptation steps, each with its own key.
        checkpoint_every: the distance between stored inner iterates, as in `bl.itd`.
    """
    loop = lengths(inner_steps, None, checkpoint_every)
    return MAML(problem, inner, outer, loop.steps, loop)
