"""First-order MAML: MAML without its second derivatives."""

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
            y, inner_gradient, last, model = self.adapt_one(x, batch)
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
