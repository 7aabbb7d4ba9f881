"""Interface of every certificate: certified step sizes, bounds, inherent errors and binding terms."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from bilevel.theory.constants import Blocks
from bilevel.theory.reals import Floats, Real, check_shapes, nonnegative, positive, step_count
from bilevel.words import shown

GAP = "it is Φ(x₀) − inf Φ; at 0 there is nothing left to descend and no step size is best"
SLACK = 0.1  # a larger step is preferred if its bound exceeds the lowest by at most this share
Errors = tuple[Floats, Floats]


class StepSizes(NamedTuple):
    """Step sizes with the argument names of `bl.aid` and `bl.itd`: `bl.aid(problem, **sizes._asdict())`."""

    inner: Any  # α
    adjoint: Any  # η
    outer: Any  # β


@dataclass(frozen=True)
class Certificate(ABC):
    """Bound on (1/K) Σ_{k<K} ‖∇Φ(x_k)‖² for every run of `method` with these constants, by one `analysis`.

    The start is described before the solver's first update: `gap` = Φ(x₀) − inf Φ, `y_error` = ‖y₀ − y*(x₀)‖
    and `v_error` = ‖v₀ − v*(x₀)‖, where v* is taken at y*. Without `v_error`, v₀ = 0 and its error is at most
    M/μ. Numbers may be arrays that broadcast against the constants.
    """

    analysis: str
    method: str
    constants: Any
    alpha: Floats
    eta: Any  # as α; ITD has none
    beta_terms: Mapping[str, Floats]  # the limits of β, by name

    @property
    def beta_max(self) -> Floats:
        """Return the supremum of the outer steps that are certified for every number of steps."""
        return smallest(self.beta_terms)[0]

    @property
    def binding(self) -> str | np.ndarray:
        """Return the name of the term that limits `beta_max`."""
        return smallest(self.beta_terms)[1]

    @property
    def inherent_error(self) -> Floats:
        """Return the part of the bound that remains for every K and every β; it is zero for AID and SOBA."""
        return 0.0

    def errors(self, y_error: Real, v_error: Real | None) -> Errors:
        """Return the analysis' own initial errors, from the errors of y₀ and v₀."""
        y_error = initial(y_error, "y_error")
        v_error = None if v_error is None else initial(v_error, "v_error")
        check_shapes(y_error=y_error, v_error=v_error, constants=self.beta_max)
        with np.errstate(over="ignore", invalid="ignore"):
            return self._errors(y_error, v_error)

    def bound(
        self,
        steps: Real,
        gap: Real,
        y_error: Real = 0.0,
        v_error: Real | None = None,
        beta: Real | None = None,
    ) -> Floats:
        """Return the bound after K steps with outer step β; without β the lowest bound of any certified β."""
        return self.bound_from(steps, gap, self._start(y_error, v_error), beta)

    def best_beta(
        self, steps: Real, gap: Real, y_error: Real = 0.0, v_error: Real | None = None, slack: Real = SLACK
    ) -> Floats:
        """Return the largest certified β whose bound after K steps is within `slack` of the lowest."""
        return self.best_beta_from(steps, gap, self._start(y_error, v_error), slack)

    def step_sizes(
        self, steps: Real, gap: Real, y_error: Real = 0.0, v_error: Real | None = None
    ) -> StepSizes:
        """Return α, η and the best β, for this start and this many steps."""
        return StepSizes(self.alpha, self.eta, self.best_beta(steps, gap, y_error, v_error))

    def bound_from(
        self, steps: Real, gap: Real, errors: tuple[Real, Real], beta: Real | None = None
    ) -> Floats:
        """Return `bound` from the analysis' own initial errors; infinite where β is not certified."""
        steps, gap, errors, beta = self._numbers(steps, gap, errors, beta)
        at = self._default_beta(steps, gap, errors) if beta is None else beta
        return self._bound(steps, gap, errors, at)

    def best_beta_from(
        self, steps: Real, gap: Real, errors: tuple[Real, Real], slack: Real = SLACK
    ) -> Floats:
        """Return `best_beta` from the analysis' own initial errors."""
        positive(gap, "gap", GAP)
        slack = nonnegative(slack, "slack")
        steps, gap, errors, _ = self._numbers(steps, gap, errors, slack=slack)
        return self._best_beta(steps, gap, errors, slack)

    def _errors(self, y_error: Floats, v_error: Floats | None) -> Errors:
        """Return `errors`, for checked numbers; by default the errors of y₀ and v₀ themselves."""
        k = Blocks.of(self.constants)
        return y_error, k.M_y / k.mu if v_error is None else v_error

    @abstractmethod
    def _bound(self, steps: Floats, gap: Floats, errors: Errors, beta: Floats) -> Floats:
        """Return `bound_from`, for checked numbers."""

    @abstractmethod
    def _best_beta(self, steps: Floats, gap: Floats, errors: Errors, slack: Floats) -> Floats:
        """Return `best_beta_from`, for checked numbers."""

    def _default_beta(self, steps: Floats, gap: Floats, errors: Errors) -> Floats:
        return self.best_beta_from(steps, gap, errors, 0.0)

    def _numbers(
        self, steps: Real, gap: Real, errors: Any, beta: Real | None = None, **others: Real
    ) -> tuple[Floats, Floats, Errors, Any]:
        """Return all arguments as numbers that broadcast against each other and the constants."""
        steps, gap = step_count(steps), nonnegative(gap, "gap")
        if not isinstance(errors, tuple) or len(errors) != 2:
            raise TypeError(
                f"errors must be a pair of numbers, of y and of v, got {shown(errors)}: pass e.g. (0.1, 0.0)"
            )
        names = "the first initial error", "the second initial error"
        y, v = (initial(error, name) for name, error in zip(names, errors, strict=True))
        beta = None if beta is None else positive(beta, "beta")
        start = {names[0]: y, names[1]: v}
        check_shapes(steps=steps, gap=gap, **start, beta=beta, **others, constants=self.beta_max)
        return steps, gap, (y, v), beta

    def _start(self, y_error: Real, v_error: Real | None) -> Errors:
        y_error = nonnegative(y_error, "y_error")
        return self.errors(y_error, None if v_error is None else nonnegative(v_error, "v_error"))


@dataclass(frozen=True)
class OneBeta(Certificate):
    """Analysis that fixes β; bounds exist for smaller β as well."""

    beta: Floats

    def at_beta(self, steps: Real, gap: Real, errors: tuple[Real, Real]) -> Floats:
        """Return the bound with `self.beta`."""
        steps, gap, errors, _ = self._numbers(steps, gap, errors)
        return self._at_beta(steps, gap, errors)

    @abstractmethod
    def _at_beta(self, steps: Floats, gap: Floats, errors: Errors) -> Floats:
        """Return `at_beta`, for checked numbers."""

    def _default_beta(self, steps: Floats, gap: Floats, errors: Errors) -> Floats:
        return self.beta

    def _bound(self, steps: Floats, gap: Floats, errors: Errors, beta: Floats) -> Floats:
        certified = np.less_equal(beta, self.beta_max * (1 + 1e-12))
        at = replace(self, beta=np.minimum(beta, self.beta_max))
        with np.errstate(over="ignore", invalid="ignore"):
            bound = np.asarray(at._at_beta(steps, gap, errors))
        return np.where(certified & ~np.isnan(bound), bound, np.inf)[()]

    def _best_beta(self, steps: Floats, gap: Floats, errors: Errors, slack: Floats) -> Floats:
        return self.beta


def initial(error: Real, name: str) -> Floats:
    """Return a distance; infinity means that the analysis does not cover the start."""
    array = isinstance(error, float | np.ndarray | np.floating) and not np.ma.isMaskedArray(error)
    infinite = np.isposinf(error) if array and np.asarray(error).dtype.kind == "f" else False
    if not np.any(infinite):
        return nonnegative(error, name, "it is a distance")
    finite = nonnegative(np.where(infinite, 0.0, error), name, "it is a distance")
    return np.where(infinite, np.inf, finite)[()]


def smallest(terms: Mapping[str, Floats]) -> tuple[Floats, str | np.ndarray]:
    """Return the minimum over the terms, and the name of the term that attains it."""
    names = np.array(list(terms))
    values = np.stack(np.broadcast_arrays(*terms.values()))
    binding = names[np.argmin(values, axis=0)]
    return values.min(axis=0)[()], str(binding) if np.ndim(binding) == 0 else binding


@np.errstate(divide="ignore", over="ignore")
def inverse(value: Floats) -> Floats:
    """Return 1/value, infinite for zero."""
    return (1 / np.asarray(value))[()]


def quotient(a: Floats, b: Floats, otherwise: float = 0.0) -> Floats:
    """Return a/b where b is positive, and `otherwise` elsewhere."""
    a, b = np.broadcast_arrays(a, b)
    return np.divide(a, b, out=np.full(b.shape, otherwise), where=b > 0)[()]
