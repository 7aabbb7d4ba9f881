"""MAML, which learns the point from which a few gradient steps solve a new task; first-order MAML and Reptile."""

from typing import ClassVar

import jax
import numpy as np
from optax import tree

from bilevel.batch import each_own
from bilevel.solvers.kit import Batch, Info, Problem, Traits
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
        y = solver.adapt_one(result.x, bl.Batch(inner=support))  # a single task, without an axis of tasks

    Args:
        problem: the two objectives of one task; x and y have the same tree.
        inner: α as a float, or any optax transformation, with a new memory for every task.
        outer: β as a float, or any optax transformation.
        inner_steps: N, the number of adaptation steps, each with its own key.
        checkpoint_every: the distance between stored inner iterates, as in `bl.itd`.
    """
    loop = lengths(inner_steps, None, checkpoint_every)
    return MAML(problem, inner, outer, loop.steps, loop)


class FOMAML(MetaLearner):
    name: ClassVar[str] = "FOMAML"
    traits: ClassVar[Traits] = Traits(first_order=True, same_rows=True)

    def step(self, state: MetaState, batch: Batch | None = None) -> tuple[MetaState, Info]:
        x, problem, tasks = state.x, self.problem, by_task(batch, self.name)

        def one_task(batch):
            y, _, inner_gradient, last, model = self.descend_task(x, batch)
            f = problem.oracles.outer_gradients(x, y, last)
            return Tasks(y, inner_gradient, f.value, tree.add(f.x, f.y), {}, model), last

        def value_of_task(to, y, last):  # y moves as x does
            return problem.f(to, tree.add(y, tree.sub(to, x)), last)

        found, last = jax.vmap(one_task)(tasks)
        return self.arrive(state, found, value_of_task, found.y, last)


@factory()
def fomaml(
    problem: Problem, *, inner: StepSize | Rule, outer: StepSize | Rule, inner_steps: int = 1
) -> FOMAML:
    """Run `bl.maml` with the identity in place of dy_i/dx:

        y_i     = x_k after N steps of the inner rule on g(x_k, ·; S_i)     for every task i
        x_{k+1} = x_k − β mean_i (∇_x f(x_k, y_i; Q_i) + ∇_y f(x_k, y_i; Q_i))

    With gradient descent dy_i/dx = Π_t (I − α∇²_yy g) − …; this method drops every second derivative of g in it. The
    estimate is off by O(αN), and a step costs as much as training: no Hessian or cross product, and no stored inner
    iterates. Problem, data and `adapt` are the same as in `bl.maml`. The method is in the same publication as MAML
    (Finn et al. 2017, section 5.2); the name comes from A. Nichol, J. Achiam, J. Schulman, "On first-order
    meta-learning algorithms", 2018.

    Args:
        problem: the two objectives of one task; x and y have the same tree.
        inner: α as a float, or any optax transformation, with a new memory for every task.
        outer: β as a float, or any optax transformation.
        inner_steps: N, the number of adaptation steps, each with its own key.
    """
    return FOMAML(problem, inner, outer, inner_steps)


class Reptile(MetaLearner):
    name: ClassVar[str] = "Reptile"
    traits: ClassVar[Traits] = Traits(first_order=True, same_rows=True)

    def step(self, state: MetaState, batch: Batch | None = None) -> tuple[MetaState, Info]:
        x, tasks = state.x, by_task(batch, self.name)

        def one_task(batch):
            y, _, inner_gradient, last, model = self.descend_task(x, batch)
            return Tasks(y, inner_gradient, self.problem.f(x, y, last), tree.sub(x, y), {}, model)

        def half_distance(to, y):  # with the gradient x − y
            return 0.5 * tree.norm(tree.sub(to, y), squared=True)

        found = jax.vmap(one_task)(tasks)
        return self.arrive(state, found, half_distance, found.y)


@factory()
def reptile(
    problem: Problem, *, inner: StepSize | Rule, outer: StepSize | Rule, inner_steps: int = 5
) -> Reptile:
    """Move the start part of the way to the mean of the adapted parameters:

        y_i     = x_k after N steps of the inner rule on g(x_k, ·; S_i)     for every task i
        x_{k+1} = x_k + β mean_i (y_i − x_k)

    It takes no derivative of f: f and the query examples only give the reported outer value. With one step of gradient
    descent (N = 1) this is gradient descent on the mean of the tasks' g, joint training. From two steps on it also
    favors points at which the gradients of a task's steps agree. A. Nichol, J. Achiam, J. Schulman, "On first-order
    meta-learning algorithms", 2018. The authors' code draws a minibatch of the task's examples for every inner step,
    and the memory of its inner rule continues from task to task. Here every step sees all support examples, and every
    task has a new memory. Problem, data and `adapt` are the same as in `bl.maml`.

    Args:
        problem: the two objectives of one task; x and y have the same tree.
        inner: α as a float, or any optax transformation, with a new memory for every task.
        outer: β as a float, at most 1, or any optax transformation, for which x − mean_i y_i is the gradient.
        inner_steps: N, the number of adaptation steps, each with its own key.
    """
    return Reptile(problem, inner, outer, inner_steps)
