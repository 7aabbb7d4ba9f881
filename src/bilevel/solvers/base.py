"""Base classes of solvers: data with functions that start and that take a step."""

from abc import abstractmethod
from collections.abc import Callable
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, get_args, get_type_hints

import equinox as eqx
import jax
import numpy as np

from bilevel.batch import Batch, Draws, draws, each_own, first
from bilevel.checks import check_batch, check_kind, check_problem, prepare
from bilevel.checks.derivatives import explain
from bilevel.identity import by_identity
from bilevel.memory import Tracing
from bilevel.problem import Evaluated, Problem
from bilevel.solvers.adjoints.base import INDEFINITE
from bilevel.solvers.fixed_points import check_plain, check_rests, check_rests_at_minima
from bilevel.solvers.messages import Finding, sentence, solvers_with
from bilevel.solvers.optax_rules import flattened
from bilevel.solvers.options import rule_of
from bilevel.solvers.parts.inner import Carried, inner_rule, seen_by
from bilevel.solvers.rules import Descent, Rule, descend
from bilevel.solvers.traits import Traits
from bilevel.types import Metrics, PyTree, Scalar

CHECKS = {
    "differentiable": check_rests,
    "minimum": check_rests_at_minima,
    "plain": check_plain,
}  # of Traits.inner_rule


class Info(eqx.Module):
    """Results of one step for a reader: quantities at x_k, the point where the step started.

    `outer_value` and `hypergradient` belong together: f(x_k, ŷ_k), and the estimate of ∇Φ(x_k) at the same
    ŷ_k that moved x. `inner_gradient` is ∇_y g(x_k, ·) on the step's batch at `solver.sets_out(state)`, the
    start of the inner level. It measures how far that point is from stationary, whatever direction the step
    took. If the inner level has a proximal map, a projection or a weight decay, implicit methods report the
    residual of their fixed point instead.
    """

    outer_value: Scalar
    hypergradient: PyTree
    inner_gradient: PyTree
    metrics: Metrics  # further scalars of the method, by name; traced by default
    model: Carried | None = None  # the model's state, if several inner steps carried it along


class ExplicitState(NamedTuple):
    """State of methods that differentiate through their steps on y, or not at all."""

    x: PyTree  # x_{k+1}
    y: PyTree  # ŷ_k, the next warm start
    inner: PyTree  # memory of the inner rule
    outer: PyTree  # memory of the outer rule


class Solver(eqx.Module):
    """Bilevel algorithm: `init(x0, y0, batch) -> state` and `step(state, batch) -> (state, info)`, both pure.

    `batch` is a `Batch`, `Draws` if `draws` is more than one, or `None`.

    A solver is a pytree. Its step sizes are leaves, so new values compile nothing again, and `jax.vmap` maps
    over many solvers. Its problem, loop lengths and other functions are static. `variables` lists the state's
    iterates, which must stay finite. `draws` is the number of independent batches per step.
    """

    problem: Problem = eqx.field(static=True)
    name: ClassVar[str] = "solver"
    variables: ClassVar[tuple[str, ...]] = ("x", "y")
    traits: ClassVar[Traits] = Traits()
    if not TYPE_CHECKING:
        # Python's bound methods: Equinox would make a pytree at every access, which takes longer than the call.
        __getattribute__ = object.__getattribute__

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        for name in ("step", "warm_up"):
            if name in vars(cls):
                setattr(cls, name, _checked(vars(cls)[name]))

    def __check_init__(self) -> None:
        check_problem(self.problem)
        if self.problem.prox is None:
            return
        if not self.traits.supports_prox:
            raise ValueError(
                f"{self.name} cannot solve an inner problem with a proximal map: take one of "
                f"{solvers_with('supports_prox')}, or replace the term by a smooth one in g"
            )
        if not isinstance(self.rule("inner"), Descent):
            raise ValueError(
                "the inner level of a problem with a proximal map needs a step size, which the map depends on: pass a "
                "number such as 0.1 as the inner rule"
            )

    def __hash__(self) -> int:
        return hash(jax.tree.structure(self))  # arrays have no hash, and `jax.jit(solver.step)` needs one

    @property
    def draws(self) -> int:
        """Return the number of batches per step: one, unless the method has `batches="independent"`."""
        return self.independent_draws if self.part("batches") == "independent" else 1

    @property
    def independent_draws(self) -> int:
        """Return the number of batches per step with `batches="independent"`."""
        return self.inner_counts[0] + (self.part("products") or 0) + self.traits.extra_draws

    @property
    def wants(self) -> frozenset[str]:
        """Return the extras that a batch must have for the objectives and for the method."""
        return self.problem.wants

    @abstractmethod
    def init(self, x0: PyTree, y0: PyTree, batch: Any = None) -> Any: ...

    @abstractmethod
    def step(self, state: Any, batch: Any = None) -> tuple[Any, Info]: ...

    def prepare(self, x0: PyTree, y0: PyTree, batch: Any) -> tuple[PyTree, PyTree]:
        """Return x0 and y0 as floating arrays; raise if the problem, the data or the inner rule do not fit."""
        x, y = prepare(self.problem, x0, y0, batch)
        if check := CHECKS.get(self.traits.inner_rule):
            check(self, y)
        return x, y

    def warm_up(self, state: Any, batch: Any = None) -> Any:
        """Take one step of the rule `inner` on y with x fixed; `run(..., warmup=N)` takes N of them first."""
        check_state(self, state)
        check_kind(batch, Batch | Draws | None, "batch", "a bl.Batch", "pass bl.Batch(inner=..., outer=...)")
        batch, rule = first(batch), self.inner_at(state.x)
        gradient = self.problem.oracles.inner_gradient(state.x, state.y, batch)
        value = lambda y: self.problem.g(state.x, y, batch)
        y, memory = descend(rule, gradient, state.inner, state.y, value)
        return state._replace(y=y, inner=memory)

    @property
    def second_order(self) -> bool:
        """Return whether the method takes second derivatives of g: for v, or through its steps on y."""
        return self.traits.uses_hessian or "v" in self.variables

    def sets_out(self, state: Any) -> PyTree:
        """Return the point where the inner level starts a step."""
        return state.y

    def point(self, state: Any, batch: Any) -> tuple[PyTree, PyTree, Batch | None]:
        """Return x, y and the data of one evaluation in a step."""
        return state.x, state.y, first(batch)

    def observe(
        self, before: Any, after: Any, batch: Any, model: Carried | None = None
    ) -> tuple[Evaluated, Evaluated]:
        """Return all results of both objectives: of g where the step on y started, of f where it ended.

        `model` comes from the step's `Info`: f sees the state that the last inner step saw. (DARTS' virtual
        point and IAPTT's worst one are not part of the state. For these methods f is evaluated at y.)
        """
        drawn = draws(batch)
        inner = self.problem.g.evaluate(before.x, self.sets_out(before), drawn[0])
        y = before.y if self.traits.outer_at == "start" else after.y
        for_f = seen_by(model, drawn[self.traits.outer_draw % self.draws])
        return inner, self.problem.f.evaluate(before.x, y, for_f)

    def suspicion(self, state: Any, batch: Any = None) -> Finding | str | None:
        """Return a reason why a run may have diverged, measured at its last finite state; None if unknown."""
        return None

    def findings(self, trace: dict[str, Any]) -> list[Finding]:
        """Return facts about the end of a finite run that the user should know; most methods have none."""
        found = self.indefinite(trace)
        return [] if found is None else [found]

    def remark(self, trace: dict[str, Any]) -> str:
        """Return the findings as sentences for the status."""
        return "".join(f" {sentence(found)}" for found in self.findings(trace))

    def indefinite(self, trace: dict[str, Any]) -> Finding | None:
        """Report conjugate gradients that often met directions without positive curvature."""
        met = np.asarray(trace.get(INDEFINITE, ()))
        met = met[len(met) // 2 :]
        if not met.any() or met.mean() <= 0.5:
            return None
        numbers = {"share": met.mean(), "steps": len(met), "own_damping": self.part("adjoint") is None}
        return Finding("adjoint_indefinite", numbers)

    def compiled(self, function: Callable[..., Any], *static: Any) -> Callable[..., Any]:
        """Return `function(solver, *static, ...)` compiled, once for solvers that differ only in numbers."""
        return compiled(self.problem, self, function, *static)

    def part(self, name: str) -> Any:
        """Return the field of this name, such as the rule of a level, or `None` if the method has none."""
        return getattr(self, name, None)

    @property
    def inner_counts(self) -> tuple[int, int]:
        """Return the number of inner steps per step, and the number of differentiated ones."""
        lengths = self.part("lengths")
        if lengths is not None:
            return lengths.steps, lengths.differentiated
        steps = self.part("inner_steps") or 1
        return steps, steps

    def rule(self, level: str) -> Any:
        """Return the update rule of a level, or `None` if the method has none there."""
        rule = self.part(level)
        return rule if isinstance(rule, Rule) else None

    def inner_at(self, x: PyTree) -> Any:
        """Return the rule of the inner level at x: with the problem's proximal map, if it has one."""
        return inner_rule(self.problem, self.rule("inner"), x)


class ExplicitSolver(Solver):
    """Solver with one rule for y and one for x."""

    inner: Rule = eqx.field(converter=rule_of("inner"))
    outer: Rule = eqx.field(converter=rule_of("outer"))

    # A method with another state overrides this; hence `Any`.
    def init(self, x0: PyTree, y0: PyTree, batch: Any = None) -> ExplicitState | Any:
        x, y = self.prepare(x0, y0, batch)
        return ExplicitState(x, y, self.inner.init(y), self.outer.init(x))


def compiled(problem: Problem, tree: Any, function: Callable[..., Any], *static: Any) -> Callable[..., Any]:
    """Return `function(tree, *static, ...)` compiled, once for all such trees that differ only in their numbers."""
    leaves, structure, functions = flattened(tree)
    key = structure, *by_identity((function, *static))
    reads = functions, function, static
    on_leaves = lambda leaves, *arguments: function(structure.unflatten(leaves), *static, *arguments)
    call = problem.kept("compiled", key, reads, lambda: Tracing().jit_alone(on_leaves))
    return lambda *arguments: call(leaves, *arguments)


def without_numbers(structure: Any) -> Any:
    """Return the solver of this structure without its leaves: functions and settings that its programs read."""
    return structure.unflatten([None] * structure.num_leaves)


def check_solver(solver: Any) -> Any:
    """Return the solver; raise for anything else."""
    fix = "pass e.g. bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.1)"
    return check_kind(solver, Solver, "solver", "a solver", fix)


def check_state(solver: Solver, state: Any) -> Any:
    """Return the state; raise if its class or its fields do not fit this solver."""
    kind = _state_of(type(solver))
    fits = all(hasattr(state, name) for name in solver.variables) if kind is None else isinstance(state, kind)
    if not fits:
        name = "state" if kind is None else kind.__name__
        raise TypeError(
            f"state must be a {name} of {solver.name}, not {type(state).__name__}: pass what "
            "solver.init(x0, y0, batch) or bl.start(solver, x0, y0, data) returns"
        )
    return state


@cache
def _state_of(solver: type[Solver]) -> type | None:
    """Return the first class in the return annotation of `init`."""
    try:
        kind = get_type_hints(solver.init).get("return")
    except NameError:
        return None
    kind = next(iter(get_args(kind)), kind)
    return kind if isinstance(kind, type) and kind is not Any else None  # `Any` is a class from 3.11 on


def _checked(step: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method check its state and its batch, and use one batch for all draws of the step.

    A step of a base class gets its arguments unchanged.
    """

    @wraps(step)
    def checked(self, state: Any, batch: Any = None) -> Any:
        check_state(self, state)
        check_kind(batch, Batch | Draws | None, "batch", "a bl.Batch", "pass bl.Batch(inner=..., outer=...)")
        check_batch(self.problem, batch)
        try:
            return step(self, state, each_own(batch, self.draws) if type(self).step is checked else batch)
        except Exception as error:
            if (found := explained(error, self, state, batch)) is error:
                raise
            raise found from error

    return checked


def explained(error: Exception, solver: Solver, state: Any, batch: Any) -> Exception:
    """Return the error of a step; if an objective lacks a derivative, an error about that derivative."""
    return explain(error, solver.problem, *solver.point(state, batch), solver.traits.first_order)
