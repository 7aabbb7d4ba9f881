"""Base class of update rules, and plain gradient descent."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
from optax import tree

from bilevel.solvers.parts.trees import scaled
from bilevel.types import PyTree, Scalar

ValueFunction = Callable[[PyTree], Scalar]


class FixedPoint(NamedTuple):
    """Fixed point of an inner rule: ∇_y g + decay · y = 0 on the active entries; the others never move."""

    active: PyTree  # where the gradient has any influence; one bool may cover a leaf or all of y
    decay: PyTree | None  # None if the rule has to be differentiated at the current point
    plain: bool  # ∇_y g = 0, and all entries are active
    held: Any = None  # how to hold the preconditioner fixed (`fixed_points.preconditioner.Held`)


GRADIENT_ZERO = FixedPoint(active=True, decay=0.0, plain=True)


class Rule(eqx.Module):
    """`init(point) -> memory` and `update(gradient, memory, point, value) -> (point, memory)`.

    `gradient` is the gradient of the function `value` at `point`. Only rules that ask for `value` evaluate
    it.
    """

    constrained: ClassVar[bool] = False
    __getattribute__ = object.__getattribute__  # as in `Solver`

    @abstractmethod
    def init(self, point: PyTree) -> PyTree: ...

    @abstractmethod
    def update(
        self, gradient: PyTree, memory: PyTree, point: PyTree, value: ValueFunction | None = None
    ) -> tuple[PyTree, PyTree]: ...

    def fixed_point(self, point: PyTree) -> FixedPoint | None:
        """Return the fixed point of the rule on a tree like `point`; None if it has to be tried."""
        return None

    def gradient_mapping(self, point: PyTree, gradient: PyTree) -> PyTree:
        """Return a tree that is zero exactly at fixed points: the gradient, unless the rule is constrained."""
        return gradient

    def stationarity(self, point: PyTree, gradient: PyTree) -> Scalar:
        """Return the norm of the gradient mapping."""
        return tree.norm(self.gradient_mapping(point, gradient))


class Descent(Rule):
    """point ← point − step_size · gradient."""

    step_size: Any

    def init(self, point: PyTree) -> tuple[Any, ...]:
        return ()

    def update(
        self, gradient: PyTree, memory: PyTree, point: PyTree, value: ValueFunction | None = None
    ) -> tuple[PyTree, PyTree]:
        return tree.sub(point, scaled(self.step_size, gradient)), memory

    def fixed_point(self, point: PyTree) -> FixedPoint | None:
        return GRADIENT_ZERO
