"""First-order MAML and Reptile: meta-learning without second derivatives."""

from typing import ClassVar

import jax
from optax import tree

from bilevel.solvers.kit import Batch, Info, Problem, Traits
from bilevel.solvers.options import Rule, factory
from bilevel.solvers.parts.tasks import MetaLearner, MetaState, Tasks, by_task
from bilevel.types import StepSize


class FOMAML(MetaLearner):
    name: ClassVar[str] = "FOMAML"
    traits: ClassVar[Traits] = Traits(first_order=True, same_rows=True)

    def step(self, state: MetaState, batch: Batch | None = None) -> tuple[MetaState, Info]:
        x, problem, tasks = state.x, self.problem, by_task(batch, self.name)

        def one_task(batch):
            y, _, inner_gradient, last, model = self.adapt_one(x, batch)
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
            y, _, inner_gradient, last, model = self.adapt_one(x, batch)
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
