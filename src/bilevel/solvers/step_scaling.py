"""Solvers with smaller steps: all step sizes times one factor, in the same structure for every factor."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

from optax import tree

from bilevel.solvers.adjoints.base import NeumannSeries
from bilevel.solvers.base import Solver
from bilevel.solvers.fixed_points.preconditioner import FixedPreconditioner
from bilevel.solvers.optax_rules import Transformation
from bilevel.solvers.parts.trees import scaled
from bilevel.solvers.rules import Around, Descent, Rule, Settled, ValueFunction
from bilevel.types import PyTree


class Shortened(Around):
    """User's rule with shorter steps in the same direction."""

    factor: Any

    def update(
        self, gradient: PyTree, memory: PyTree, point: PyTree, value: ValueFunction | None = None
    ) -> tuple[PyTree, PyTree]:
        after, memory = super().update(gradient, memory, point, value)
        return tree.add(point, scaled(self.factor, tree.sub(after, point))), memory

    def gradient_mapping(self, point: PyTree, gradient: PyTree) -> PyTree:
        return self.rule.gradient_mapping(point, gradient)


def with_smaller_steps(solver: Solver, lower: float, outer: float) -> Any:
    """Return the solver with the step sizes of the lower levels times `lower` and the outer one times `outer`.

    For an optax transformation the factor multiplies the updates. Solvers with different factors differ only
    in their numbers, so they share one compiled program.
    """
    parts = {name: shorter(part, outer if name == "outer" else lower) for name, part in _parts(solver)}
    if _has_series(solver):
        parts["adjoint"] = getattr(solver, "adjoint") * lower  # noqa: B009
    return replace(solver, **parts)


def shorter(part: Any, factor: float) -> Any:
    """Return a rule or adjoint with steps `factor` times as long; η of a Neumann series is a step too."""
    if isinstance(part, Descent):
        return replace(part, step_size=part.step_size * factor)
    if isinstance(part, Transformation):
        return replace(part, scale=factor)
    if isinstance(part, Settled | FixedPreconditioner):
        return replace(part, rule=shorter(part.rule, factor))
    if isinstance(part, Rule):
        return Shortened(part, factor)
    if isinstance(part, NeumannSeries):
        return replace(part, eta=part.eta * factor)
    return replace(part, **{name: shorter(value, factor) for name, value in _parts(part)})


def has_steps(part: Any) -> bool:
    """Return whether the rule or adjoint has a step size."""
    if isinstance(part, Rule | NeumannSeries):
        return True
    return _has_series(part) or any(has_steps(value) for _, value in _parts(part))


def _parts(part: Any) -> list[tuple[str, Any]]:
    """Return the rules and adjoints of the solver, by field name."""
    names = [field.name for field in fields(part) if not field.metadata.get("static")]
    return [(name, getattr(part, name)) for name in names if is_dataclass(getattr(part, name))]


def _has_series(part: Any) -> bool:
    """Return whether the solver has η for a Neumann series, as stocBiO does."""
    adjoint = getattr(part, "adjoint", None)
    return isinstance(part, Solver) and adjoint is not None and not is_dataclass(adjoint)
