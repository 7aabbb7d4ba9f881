"""The shape every solver has: data that knows how to begin and how to take a step."""

from abc import abstractmethod
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ClassVar, NamedTuple, get_type_hints

import equinox as eqx
import jax
import numpy as np

from bilevel.batch import Batch, Draws, draws, each_own, first
from bilevel.checks import check_batch, check_choice, check_kind, check_problem
from bilevel.checks.derivatives import explain
from bilevel.identity import by_identity
from bilevel.memory import Tracing
from bilevel.problem import Evaluated, Problem
from bilevel.solvers.adjoints.base import INDEFINITE
from bilevel.solvers.parts.inner import Carried, inner_rule, seen_by
from bilevel.solvers.rules import Descent, Rule, descend, flattened
from bilevel.solvers.traits import Traits
from bilevel.types import Metrics, PyTree, Scalar


class Info(eqx.Module):
    """What a reader wants to know of one step: quantities at x_k, the point the step started from.

    `outer_value` and `hypergradient` belong together: f(x_k, ŷ_k), and the estimate of ∇Φ(x_k) made at the same ŷ_k,
    which moved x. `inner_gradient` is ∇_y g(x_k, ·) of the step's batch at the point from which the inner level set out
    in this step, `solver.sets_out(state)`: how far from stationary it stood, whatever direction it then took. Where
    the inner level has a proximal map, a projection or a decay of its own, implicit methods report what is zero at rest
    in its place.
    """

    outer_value: Scalar
    hypergradient: PyTree
    inner_gradient: PyTree
    metrics: Metrics  # further scalars of the method, by name; traced by default
    model: Carried | None = None  # the model's state, where several inner steps carried it along


class ExplicitState(NamedTuple):
    """Of methods that differentiate through their steps on y, or not at all."""

    x: PyTree  # x_{k+1}
    y: PyTree  # ŷ_k, the next warm start
    inner: PyTree  # memory of the inner rule
    outer: PyTree  # memory of the outer rule


class ImplicitState(NamedTuple):
    """Of methods with an adjoint variable."""

    x: PyTree  # x_{k+1}
    y: PyTree  # ŷ_k, the next warm start
    v: PyTree  # v̂_k, the next warm start
    inner: PyTree  # memory of the inner rule
    adjoint: PyTree  # memory of the adjoint rule or ingredient
    outer: PyTree  # memory of the outer rule


class Solver(eqx.Module):
    """A bilevel algorithm: `init(x0, y0, batch) -> state` and `step(state, batch) -> (state, info)`, both pure.

    `batch` is a `Batch`, several as `Draws` where `draws` is more than one, or `None`.

    A solver is a pytree. Its step sizes are leaves, so a new one compiles nothing again and `jax.vmap` goes over many
    at once; its problem, loop lengths and other functions are static. `variables` names the state's iterates, those
    that must stay finite. `draws` is the number of independent batches that a step takes.
    """

    problem: Problem = eqx.field(static=True)
    name: ClassVar[str] = "solver"
    variables: ClassVar[tuple[str, ...]] = ("x", "y")
    traits: ClassVar[Traits] = Traits()

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
                f"{self.name} cannot solve an inner problem with a proximal map: take bl.aid, bl.soba, bl.hoag, "
                "bl.stocbio, bl.itd, bl.solvers.forward_itd or bl.rtho, or replace the term by a smooth one in g"
            )
        if not isinstance(self.rule("inner"), Descent):
            raise ValueError(
                "the inner level of a problem with a proximal map needs a step size, which the map depends on: pass a "
                "number such as 0.1 as the inner rule"
            )

    def __hash__(self) -> int:
        return hash(jax.tree.structure(self))  # arrays have no hash, and `jax.jit(solver.step)` asks for one

    @property
    def draws(self) -> int:
        """The number of batches that a step takes: one, unless the method has `batches="independent"`."""
        return self.traits.independent_draws if getattr(self, "batches", "shared") == "independent" else 1

    @property
    def wants(self) -> frozenset[str]:
        """What a step's batch must bring besides data: what the objectives ask for, and the method itself."""
        return self.problem.wants

    @abstractmethod
    def init(self, x0: PyTree, y0: PyTree, batch: Any = None) -> Any: ...

    @abstractmethod
    def step(self, state: Any, batch: Any = None) -> tuple[Any, Info]: ...

    def warm_up(self, state: Any, batch: Any = None) -> Any:
        """One step of the rule `inner` on y alone, x held fixed; `run(..., warmup=N)` takes N of them first."""
        check_state(self, state)
        check_kind(batch, Batch | Draws | None, "batch", "a bl.Batch", "pass bl.Batch(inner=..., outer=...)")
        batch, rule = first(batch), self.inner_at(state.x)
        gradient = self.problem.oracles.inner_gradient(state.x, state.y, batch)
        value = lambda y: self.problem.g(state.x, y, batch)
        y, memory = descend(rule, gradient, state.inner, state.y, value)
        return state._replace(y=y, inner=memory)

    @property
    def second_order(self) -> bool:
        """Whether it takes second derivatives of g: for v, or through its steps on y."""
        return self.traits.uses_hessian or "v" in self.variables

    def sets_out(self, state: Any) -> PyTree:
        """Where the inner level stands at the beginning of a step."""
        return state.y

    def point(self, state: Any, batch: Any) -> tuple[PyTree, PyTree, Batch | None]:
        """x, y and data such as a step evaluates the objectives at."""
        return state.x, state.y, first(batch)

    def suspicion(self, state: Any, batch: Any = None) -> str:
        """Why a run may have broken, with the remedy, as measured at its last finite state; "" if unknown."""
        return ""

    def observe(
        self, before: Any, after: Any, batch: Any, model: Carried | None = None
    ) -> tuple[Evaluated, Evaluated]:
        """What both objectives return besides their losses: g where the step on y set out, f where it arrived.

        `model` is that of the step's `Info`: f sees the state that the last inner step saw.
        `traits.outer_at` is "start" for methods whose f is not evaluated where y arrives, and `traits.outer_draw` is
        the draw on which it is. (DARTS' virtual point and IAPTT's worst one are not part of the state; there it is y.)
        """
        drawn = draws(batch)
        inner = self.problem.g.evaluate(before.x, self.sets_out(before), drawn[0])
        y = before.y if self.traits.outer_at == "start" else after.y
        for_f = seen_by(model, drawn[self.traits.outer_draw % self.draws])
        return inner, self.problem.f.evaluate(before.x, y, for_f)

    def remark(self, trace: dict[str, Any]) -> str:
        """What the method has to say about the end of a finite run, a sentence for its status; most have nothing."""
        return self.indefinite(trace) if INDEFINITE in trace else ""

    def indefinite(self, trace: dict[str, Any]) -> str:
        """That conjugate gradients kept meeting directions without positive curvature, so that v solves nothing."""
        met = np.asarray(trace.get(INDEFINITE, ()))
        met = met[len(met) // 2 :]
        if not met.any() or met.mean() <= 0.5:
            return ""
        cure = (
            "Take bl.adjoints.minres(), or bl.adjoints.damped(bl.adjoints.cg(), damping) with a larger damping"
            if hasattr(self, "adjoint")
            else "Pass a larger damping="
        )
        return (
            f" Conjugate gradients met a direction along which g does not curve upwards, in {met.mean():.0%} of the "
            f"last {len(met)} steps, and ended there: ∇²_yy g is not positive definite, and v solves no adjoint "
            f"system. {cure}, or add a ridge to g."
        )

    def compiled(self, function: Callable[..., Any], *static: Any) -> Callable[..., Any]:
        """Return `function(solver, *static, ...)` compiled, once for all solvers that differ in their numbers only."""
        return compiled(self.problem, self, function, *static)

    def part(self, level: str) -> Any:
        """Return the rule, adjoint or step size of a level, or `None` if the method has none there."""
        return getattr(self, level, None)

    @property
    def inner_counts(self) -> tuple[int, int]:
        """The number of inner steps per step, and of those that the method differentiates."""
        lengths = self.part("lengths")
        if lengths is not None:
            return lengths.steps, lengths.differentiated
        steps = getattr(self, "inner_steps", 1)
        return steps, steps

    def rule(self, level: str) -> Any:
        """Return the update rule of a level, or `None` if the method has none there."""
        rule = self.part(level)
        return rule if isinstance(rule, Rule) else None

    def inner_at(self, x: PyTree) -> Any:
        """The rule of the inner level at x: with the problem's proximal map, if it has one."""
        return inner_rule(self.problem, self.rule("inner"), x)


def compiled(problem: Problem, tree: Any, function: Callable[..., Any], *static: Any) -> Callable[..., Any]:
    """Return `function(tree, *static, ...)` compiled, once for all such trees that differ in their numbers only."""
    leaves, structure, functions = flattened(tree)
    key = structure, *by_identity((function, *static))
    reads = functions, function, static
    on_leaves = lambda leaves, *arguments: function(structure.unflatten(leaves), *static, *arguments)
    call = problem.kept("compiled", key, reads, lambda: Tracing().jit_alone(on_leaves))
    return lambda *arguments: call(leaves, *arguments)


def without_numbers(structure: Any) -> Any:
    """Return the solver of this structure without its leaves: the functions and settings that its programs read."""
    return structure.unflatten([None] * structure.num_leaves)


def check_solver(solver: Any) -> Any:
    return check_kind(
        solver, Solver, "solver", "a solver", "pass e.g. bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.1)"
    )


def check_state(solver: Solver, state: Any) -> Any:
    """A state of this solver, as far as its class tells."""
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
    """What its `init` says that it returns."""
    try:
        kind = get_type_hints(solver.init).get("return")
    except NameError:
        return None
    return kind if isinstance(kind, type) and kind is not Any else None  # which is a class, from 3.11 on


def _checked(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step by hand begins with a state of this solver and a batch, which serves for all of the step's draws.

    A step of a class that this one derives from takes what it is given.
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
    """Return what a step raised, or where an objective lacks a derivative, an error that says so."""
    return explain(error, solver.problem, *solver.point(state, batch), solver.traits.first_order)


def check_batches(batches: str) -> str:
    """Whether the terms of a step share one draw of the data or have one each."""
    return check_choice(batches, "batches", ("shared", "independent"))
