"""What every certificate answers: which step sizes, for how good a bound, what is left for ever, and what binds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, NamedTuple

import numpy as np

from bilevel.theory.reals import Floats, Real, horizon, nonnegative, positive, together
from bilevel.words import shown

GAP = "it is Φ(x₀) − inf Φ; at 0 there is nothing left to descend and no step size is best"
SLACK = 0.1  # a step this much off the lowest bound is taken if it is larger
Errors = tuple[Floats, Floats]


class StepSizes(NamedTuple):
    """Step sizes, named like the arguments of `bl.aid` and `bl.itd`: `bl.aid(problem, **sizes._asdict())`."""

    inner: Any  # α
    adjoint: Any  # η
    outer: Any  # β


@dataclass(frozen=True)
class Certificate(ABC):
    """A bound on (1/K) Σ_{k<K} ‖∇Φ(x_k)‖² for every run of `method` with these constants, by one `analysis`.

    A start is described by what is passed to the solver, before its first update: `gap` = Φ(x₀) − inf Φ,
    `y_error` = ‖y₀ − y*(x₀)‖ and `v_error` = ‖v₀ − v*(x₀)‖, where v* is taken at y*. Left out, v₀ = 0 and the latter
    is at most M/μ. Numbers may be arrays that broadcast against the constants.
    """

    analysis: str
    method: str
    constants: Any
    alpha: Floats
    eta: Any  # as α; ITD has none
    beta_terms: Mapping[str, Floats]  # what limits β, by name

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        for name, checked in (("errors", _checked_errors), ("at_beta", _checked_at_beta)):
            if name in vars(cls):
                setattr(cls, name, checked(vars(cls)[name]))

    @property
    def beta_max(self) -> Floats:
        """Supremum of the outer steps that are certified for every number of steps."""
        return smallest(self.beta_terms)[0]

    @property
    def binding(self) -> str | np.ndarray:
        """What keeps `beta_max` from being larger."""
        return smallest(self.beta_terms)[1]

    @property
    def inherent_error(self) -> Floats:
        """The part of the bound that no number of steps removes, whatever β; zero for AID and SOBA."""
        return 0.0

    @abstractmethod
    def errors(self, y_error: Floats, v_error: Floats | None) -> Errors:
        """The analysis' own initial errors, from those of y₀ and v₀."""

    @abstractmethod
    def bound_from(
        self, steps: Real, gap: Real, errors: tuple[Real, Real], beta: Real | None = None
    ) -> Floats:
        """`bound` from the analysis' own initial errors; infinite where β is not certified."""

    @abstractmethod
    def best_beta_from(
        self, steps: Real, gap: Real, errors: tuple[Real, Real], slack: Real = SLACK
    ) -> Floats:
        """`best_beta` from the analysis' own initial errors."""

    def bound(
        self,
        steps: Real,
        gap: Real,
        y_error: Real = 0.0,
        v_error: Real | None = None,
        beta: Real | None = None,
    ) -> Floats:
        """The bound after K steps with outer step β; without β the lowest that any certified β has."""
        return self.bound_from(steps, gap, self._errors(y_error, v_error), beta)

    def best_beta(
        self,
        steps: Real,
        gap: Real,
        y_error: Real = 0.0,
        v_error: Real | None = None,
        slack: Real = SLACK,
    ) -> Floats:
        """The largest certified outer step whose bound after K steps is within `slack` of the lowest."""
        return self.best_beta_from(steps, gap, self._errors(y_error, v_error), slack)

    def step_sizes(
        self, steps: Real, gap: Real, y_error: Real = 0.0, v_error: Real | None = None
    ) -> StepSizes:
        """α, η and the best β, for this start and this many steps."""
        return StepSizes(self.alpha, self.eta, self.best_beta(steps, gap, y_error, v_error))

    def _numbers(
        self, steps: Real, gap: Real, errors: Any, beta: Real | None = None, **others: Real
    ) -> tuple[Floats, Floats, Errors, Any]:
        """All of them as numbers that fit together and fit the constants."""
        steps, gap = horizon(steps), nonnegative(gap, "gap", "it is Φ(x₀) − inf Φ")
        if not isinstance(errors, tuple) or len(errors) != 2:
            raise TypeError(
                f"errors must be a pair of numbers, of y and of v, got {shown(errors)}: pass e.g. (0.1, 0.0)"
            )
        errors = (
            initial(errors[0], "the first initial error"),
            initial(errors[1], "the second initial error"),
        )
        beta = None if beta is None else positive(beta, "beta", "it is the outer step size")
        start = {"the first initial error": errors[0], "the second": errors[1]}
        together(steps=steps, gap=gap, **start, beta=beta, **others, constants=self.beta_max)
        return steps, gap, errors, beta

    def _errors(self, y_error: Real, v_error: Real | None) -> Errors:
        y_error = nonnegative(y_error, "y_error", "it is the distance of y₀ from y*(x₀)")
        if v_error is not None:
            v_error = nonnegative(v_error, "v_error", "it is the distance of v₀ from v*(x₀)")
        together(y_error=y_error, v_error=v_error, constants=self.beta_max)
        with np.errstate(over="ignore", invalid="ignore"):
            return self.errors(y_error, v_error)


def _checked_errors(errors: Callable[..., Errors]) -> Callable[..., Errors]:
    """With both distances as numbers that fit the constants."""

    @wraps(errors)
    def checked(self: Certificate, y_error: Real, v_error: Real | None) -> Errors:
        y_error = initial(y_error, "y_error")
        v_error = None if v_error is None else initial(v_error, "v_error")
        together(y_error=y_error, v_error=v_error, constants=self.beta_max)
        return errors(self, y_error, v_error)

    return checked


def _checked_at_beta(at_beta: Callable[..., Floats]) -> Callable[..., Floats]:
    """With all of them as numbers that fit together."""

    @wraps(at_beta)
    def checked(self: Certificate, steps: Real, gap: Real, errors: Any) -> Floats:
        steps, gap, errors, _ = self._numbers(steps, gap, errors)
        return at_beta(self, steps, gap, errors)

    return checked


@dataclass(frozen=True)
class OneBeta(Certificate):
    """An analysis that fixes β; a smaller one may be asked about as well."""

    beta: Floats

    @abstractmethod
    def at_beta(self, steps: Floats, gap: Floats, errors: Errors) -> Floats:
        """The bound with `self.beta`."""

    def bound_from(
        self, steps: Real, gap: Real, errors: tuple[Real, Real], beta: Real | None = None
    ) -> Floats:
        steps, gap, errors, given = self._numbers(steps, gap, errors, beta)
        size = self.beta if given is None else given
        certified = np.less_equal(size, self.beta_max * (1 + 1e-12))
        at = replace(self, beta=np.minimum(size, self.beta_max))
        with np.errstate(over="ignore", invalid="ignore"):
            bound = np.asarray(at.at_beta(steps, gap, errors))
        return np.where(certified & ~np.isnan(bound), bound, np.inf)[()]

    def best_beta_from(
        self, steps: Real, gap: Real, errors: tuple[Real, Real], slack: Real = SLACK
    ) -> Floats:
        positive(gap, "gap", GAP)
        self._numbers(steps, gap, errors, slack=allowance(slack))
        return self.beta


def initial(error: Real, name: str) -> Floats:
    """A distance; infinite where the analysis does not cover the start."""
    array = isinstance(error, float | np.ndarray | np.floating) and not np.ma.isMaskedArray(error)
    if array and np.asarray(error).dtype.kind == "f" and np.any(np.isposinf(error)):
        error = np.asarray(error)
        finite = nonnegative(np.where(np.isposinf(error), 0.0, error), name, "it is a distance")
        return np.where(np.isposinf(error), np.inf, finite)[()]
    return nonnegative(error, name, "it is a distance")


def allowance(slack: Real) -> Floats:
    return nonnegative(slack, "slack", "it is what a larger step may cost, as a share of the lowest bound")


def smallest(terms: Mapping[str, Floats]) -> tuple[Floats, str | np.ndarray]:
    """The minimum over the terms, and the name of the term that attains it."""
    names = np.array(list(terms))
    values = np.stack(np.broadcast_arrays(*terms.values()))
    binding = names[np.argmin(values, axis=0)]
    return values.min(axis=0)[()], str(binding) if np.ndim(binding) == 0 else binding
