"""Implicit MAML: adapt under a tie to the start, and differentiate the solution instead of the path."""

from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
from optax import tree

from bilevel.solvers.adjoints.base import Adjoint, with_damping
from bilevel.solvers.adjoints.krylov import cg
from bilevel.solvers.fixed_points import check_plain
from bilevel.solvers.kit import Batch, Info, Problem
from bilevel.solvers.options import Rule, factory, field, positive
from bilevel.solvers.parts.tasks import MetaLearner, MetaState, Tasks, by_task
from bilevel.solvers.parts.trees import scaled
from bilevel.solvers.rules import ValueFunction
from bilevel.types import Number, PyTree, StepSize
from bilevel.words import shown


class IMAML(MetaLearner):
    adjoint: Adjoint
    proximal_weight: Number = field(converter=positive("proximal weight"))
    name: ClassVar[str] = "iMAML"
    solves: ClassVar[bool] = True

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | None = None) -> MetaState:
        state = super().init(x0, y0, batch)
        check_plain(self, state.x)
        return state

    def task_problem(self, x: PyTree, batch: Batch) -> tuple[Callable[[PyTree], PyTree], ValueFunction]:
        """Return the gradient and the value of ĝ(x, ·) = g(x, ·) + (λ/2)‖· − x‖²."""
        gradient, value = super().task_problem(x, batch)
        tie = lambda y: scaled(0.5 * self.proximal_weight, tree.norm(tree.sub(y, x), squared=True))
        tied_gradient = lambda y: tree.add(gradient(y), scaled(self.proximal_weight, tree.sub(y, x)))
        return tied_gradient, lambda y: value(y) + tie(y)

    def step(self, state: MetaState, batch: Batch | None = None) -> tuple[MetaState, Info]:
        x, problem, oracles, tasks = state.x, self.problem, self.problem.oracles, by_task(batch, self.name)

        def one_task(batch):
            y, _, inner_gradient, *_ = self.descend_task(x, batch)
            g, f = oracles.curvature(x, y, batch), oracles.outer_gradients(x, y, batch)
            cross = lambda v: tree.sub(g.cross(v), scaled(self.proximal_weight, v))
            g_hat = with_damping(g, self.proximal_weight)._replace(cross=cross)
            zero = tree.zeros_like(y)
            v, _, metrics = self.adjoint.solve(g_hat, f.y, zero, self.adjoint.init(zero))
            hypergradient = tree.sub(f.x, g_hat.cross(v))
            return Tasks(y, inner_gradient, f.value, hypergradient, metrics), v

        def value_of_task(to, y, v, batch):  # the Lagrangian of "∇_y ĝ = 0"
            gradient, _ = self.task_problem(to, batch)
            return problem.f(to, y, batch) - tree.vdot(v, gradient(y))

        found, v = jax.vmap(one_task)(tasks)
        found = found._replace(metrics=jax.tree.map(jnp.max, found.metrics))
        return self.arrive(state, found, value_of_task, found.y, v, tasks)


@factory(strength="proximal_weight")
def imaml(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    proximal_weight: Number,
    inner_steps: int = 10,
    adjoint: Adjoint | None = None,
) -> IMAML:
    """Tie every task's inner problem to x, ĝ_i(x, y) = g(x, y; S_i) + (λ/2)‖y − x‖², and start it there:

        y_i     = x_k after N steps of the inner rule on ĝ_i(x_k, ·)                    for every task i
        v_i:      (∇²_yy g(x_k, y_i; S_i) + λI) v_i = ∇_y f(x_k, y_i; Q_i)             by conjugate gradients
        x_{k+1} = x_k − β mean_i (∇_x f(x_k, y_i; Q_i) − ∇²_xy g(x_k, y_i; S_i) v_i + λ v_i)

    If the losses ignore x, as in plain meta-learning, the estimate is (I + ∇²g/λ)⁻¹∇f, exact once y_i solves its
    problem. It depends only on the solution, not on the path: nothing of the inner loop is stored, and any inner rule
    works. λ has to outweigh the negative curvature of g (or use `adjoints.gauss_newton`, which has none), and the inner
    step size has to suit L + λ. Adaptation keeps the tie: `adapt` takes its steps on ĝ_i. A. Rajeswaran, C. Finn, S.
    Kakade, S. Levine, "Meta-learning with implicit gradients", NeurIPS 2019. The authors' code differs from their
    publication: its inner loop descends g itself, with a single step on the tie at its end, and it takes five steps of
    conjugate gradients on 2I + ∇²g/(λ + 10).

    "adjoint_residual" and "adjoint_steps" in the trace are the largest over the tasks. Problem and data are the same as
    in `bl.maml`.

    Args:
        problem: the two objectives of one task; x and y have the same tree.
        inner: α as a float, or any optax transformation, with a new memory for every task.
        outer: β as a float, or any optax transformation.
        proximal_weight: λ, how strongly y is tied to x.
        inner_steps: N, the number of adaptation steps; enough of them to come near the solution. As they solve one
            problem, all see the key and the model state of the step.
        adjoint: how to work on the system of v, a `bl.Adjoint` that starts from zero; the default is
            `adjoints.cg(max_steps=10)`.
    """
    if adjoint is not None and not isinstance(adjoint, Adjoint):
        raise TypeError(
            f"adjoint must be one of bl.adjoints, not {shown(adjoint)}: pass e.g. bl.adjoints.cg(1e-6)"
        )
    adjoint = cg(max_steps=10) if adjoint is None else adjoint
    return IMAML(problem, inner, outer, inner_steps, adjoint, proximal_weight)
