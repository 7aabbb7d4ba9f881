"""Many tasks that share a starting point: the base of all meta-learners.

`bl.maml` describes the problem and the data. y starts from x in every task, so both have the same tree.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, cast

import jax
import jax.numpy as jnp

from bilevel.arrays import as_arrays
from bilevel.batch import Levels, each_own
from bilevel.checks import check_count, check_kind, prepare, prepare_inner, signature, variables
from bilevel.problem import Evaluated
from bilevel.solvers.kit import Batch, Draws, ExplicitSolver, Info, Traits, descend, draws
from bilevel.solvers.options import count, field
from bilevel.solvers.parts.inner import Carried, InnerLoop, carried_state, seen_by, take_steps
from bilevel.solvers.rules import ValueFunction
from bilevel.types import Metrics, PyTree


class MetaState(NamedTuple):
    """State of meta-learners: only x and the memory of its rule carry over from step to step."""

    x: PyTree  # the initialization, x_{k+1}
    y: PyTree  # the parameters adapted to each task of the last batch, stacked
    outer: PyTree  # memory of the outer rule


class Tasks(NamedTuple):
    """Results of a step's tasks, stacked."""

    y: PyTree  # adapted
    inner_gradient: PyTree  # ∇_y g at x
    value: Any  # f
    hypergradient: PyTree
    metrics: Metrics
    model: Carried | None = None  # of each task


class MetaLearner(ExplicitSolver):
    """Solver that learns a start for the adaptation to a task, and can adapt to new tasks.

    Every adaptation step has its own key and carries the model's state along, unless the steps solve one
    problem.
    """

    inner_steps: int = field(static=True, converter=count("inner_steps"))
    traits: ClassVar[Traits] = Traits(same_rows=True)
    solves: ClassVar[bool] = False  # whether adaptation solves a problem, with one key and one state

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | None = None) -> MetaState:
        tasks = by_task(batch, self.name)
        x, y = variables(x0, y0)
        if signature(x) != signature(y):
            raise ValueError(
                f"in {self.name} y starts from x, so both have the same tree and shapes: pass y0=x0"
            )
        prepare(self.problem, x, y, first_task(tasks))
        many = number_of_tasks(batch, self.name)
        return MetaState(x, jax.tree.map(lambda a: jnp.stack([a] * many), x), self.outer.init(x))

    def point(self, state: MetaState, batch: Batch | None) -> tuple[PyTree, PyTree, Batch]:
        return state.x, state.x, first_task(by_task(batch, self.name))

    def task_problem(self, x: PyTree, batch: Batch) -> tuple[Callable[[PyTree], PyTree], ValueFunction]:
        """Return the gradient and the value, as functions of y, that adaptation to one task descends."""
        problem = self.problem
        return lambda y: problem.oracles.inner_gradient(x, y, batch), lambda y: problem.g(x, y, batch)

    def descend_task(self, x: PyTree, batch: Batch, steps: int | None = None) -> InnerLoop:
        """Take N steps of the inner rule from x, on one task."""
        steps, rule, trains = self.inner_steps if steps is None else steps, self.inner, not self.solves
        drawn = draws(each_own(batch, steps) if trains else batch)
        state = carried_state(self.problem, batch) if trains and steps > 1 else None
        descended = lambda seen: self.task_problem(x, seen)
        return take_steps(self.problem, rule, steps, x, x, rule.init(x), drawn, state, descended)

    def adapt(self, x: PyTree, data: Batch, *, steps: int | None = None) -> PyTree:
        """Return the parameters adapted to new tasks from x, one row per task:

            result = bl.run(solver, x0, x0, data=..., steps=1000)
            y = solver.adapt(result.x, bl.Batch(inner=supports))

        Args:
            x: the initialization, usually the x of a result.
            data: the new tasks' support examples as `bl.Batch(inner=...)`, every array with one row per task;
                `outer` is ignored. Objectives that ask for `key` or `state` find them in the batch.
            steps: the number of adaptation steps, if not the solver's own.
        """
        if isinstance(data, Batch):
            inner = as_arrays(data.inner, "data.inner")
            data = replace(data, inner=inner, outer=None, rows=Levels(inner=data.rows.inner))
        tasks = by_task(data, f"adaptation by {self.name}")
        try:
            x = prepare_inner(self.problem, x, first_task(tasks))
        except (TypeError, KeyError, AttributeError, IndexError) as error:
            shown = jax.tree.map(lambda leaf: list(jnp.shape(leaf)), x)
            raise TypeError(
                f"the inner objective cannot be evaluated at this x, {shown}, and these tasks: pass an x like x0, and "
                f"tasks like those of the run, or one task to adapt_one ({type(error).__name__}: {error})"
            ) from error
        steps = self.inner_steps if steps is None else check_count(steps, "steps")
        return self.compiled(_adapt_all, steps)(x, tasks)

    def adapt_one(self, x: PyTree, data: Batch, *, steps: int | None = None) -> PyTree:
        """Return the parameters adapted to one new task from x:

            y = solver.adapt_one(result.x, bl.Batch(inner=support))

        It is `adapt` for a single task, whose arrays have no axis of tasks.

        Args:
            x: the initialization, usually the x of a result.
            data: the support examples of the task as `bl.Batch(inner=...)`; `outer` is ignored.
            steps: the number of adaptation steps, if not the solver's own.
        """
        check_kind(data, Batch, "data", "a bl.Batch", "pass bl.Batch(inner=support)")
        if not jax.tree.leaves(data.inner):
            raise ValueError(
                f"adaptation by {self.name} needs the support examples of the task, but data.inner has no arrays: pass "
                "bl.Batch(inner=support)"
            )
        stacked: Any = lambda tree: jax.tree.map(lambda a: a[None], as_arrays(tree, "data.inner"))
        one = replace(data, inner=stacked(data.inner), rows=Levels(stacked(data.rows.inner)))
        return jax.tree.map(lambda a: a[0], self.adapt(x, one, steps=steps))

    def arrive(
        self, state: MetaState, tasks: Tasks, value: Callable[..., Any], *arguments: Any
    ) -> tuple[MetaState, Info]:
        """Take the outer step along the mean estimate, the gradient of the mean of `value(x, *arguments)`."""
        hypergradient = mean(tasks.hypergradient)
        meta_value = lambda x: jnp.mean(jax.vmap(lambda *each: value(x, *each))(*arguments))
        x, outer_memory = descend(self.outer, hypergradient, state.outer, state.x, meta_value)
        model = tasks.model and Carried(tasks.model.seen, mean(tasks.model.after))
        info = Info(jnp.mean(tasks.value), hypergradient, tasks.inner_gradient, tasks.metrics, model)
        return MetaState(x, tasks.y, outer_memory), info

    def sets_out(self, state: MetaState) -> PyTree:
        """Return x, once for every task."""
        return jax.tree.map(lambda a, tasks: jnp.broadcast_to(a, tasks.shape), state.x, state.y)

    def warm_up(self, state: MetaState, batch: Batch | Draws | None = None) -> MetaState:
        return state  # no warm-up is needed

    def observe(
        self, before: MetaState, after: MetaState, batch: Batch | None, model: Carried | None = None
    ) -> tuple[Evaluated, Evaluated]:
        """Return the means over the tasks, also of the model's states."""
        tasks, x, steps = by_task(batch, self.name), before.x, 1 if self.solves else self.inner_steps
        at = lambda batch, t: draws(each_own(batch, steps))[t]
        inner = jax.vmap(lambda batch: self.problem.g.evaluate(x, x, at(batch, 0)))(tasks)
        for_f = cast(Batch, seen_by(model, tasks))
        outer = jax.vmap(lambda y, batch: self.problem.f.evaluate(x, y, at(batch, steps - 1)))(after.y, for_f)
        return Evaluated(*map(mean, inner)), Evaluated(*map(mean, outer))


def _adapt_all(solver: MetaLearner, steps: int, x: PyTree, tasks: Batch) -> PyTree:
    return jax.vmap(lambda batch: solver.descend_task(x, batch, steps).y)(tasks)


def number_of_tasks(batch: Batch | None, who: str) -> int:
    """Return the number of tasks in the data: the length of every array in them."""
    if batch is not None and not isinstance(batch, Batch):
        raise TypeError(f"data must be a bl.Batch, not {type(batch).__name__}: pass bl.Batch(inner=supports)")
    data = None if batch is None else (batch.inner, batch.outer)
    rows = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(data)}
    if len(rows) != 1 or () in rows:
        found = sorted((shape[0] if shape else "none" for shape in rows), key=str) if rows else "no arrays"
        raise ValueError(
            f"{who} needs data of many tasks, every array with one row per task, but the numbers of rows are {found}: "
            "pass bl.Batch(inner=supports, outer=queries), each stacked over the tasks"
        )
    (tasks,) = rows.pop()
    if tasks == 0:
        raise ValueError(f"{who} needs data of at least one task, but every array has 0 rows: pass some")
    return tasks


def by_task(batch: Any, who: str) -> Batch:
    """Return the batch with one row per task everywhere: a key and the model's state for each."""
    tasks = number_of_tasks(batch, who)
    key = None if batch.key is None else jax.random.split(batch.key, tasks)
    each = lambda part: jax.tree.map(lambda a: jnp.broadcast_to(a, (tasks, *jnp.shape(a))), part)
    state, shared = each(batch.state), each(batch.shared)
    return Batch(batch.inner, batch.outer, Levels(*batch.rows), key, state, shared=shared)


def first_task(tasks: Batch) -> Batch:
    return jax.tree.map(lambda rows: rows[0], tasks)


def mean(stacked: PyTree) -> PyTree:
    """Return the mean over the tasks; for counters and keys, the first task's value."""
    floating = lambda a: jnp.issubdtype(a.dtype, jnp.floating)
    return jax.tree.map(lambda a: jnp.mean(a, axis=0) if floating(a) else a[0], stacked)
