"""A certificate that is an error system: `sharp`, `tight` and `star`, for AID, ITD and SOBA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bilevel.theory.certificates.certificate import GAP, SLACK, Certificate, Errors, allowance
from bilevel.theory.certificates.gain import ErrorSystem
from bilevel.theory.reals import Floats, Real, positive

# From ‖y₀ − y*(x₀)‖ and ‖v₀ − v*(x₀)‖ to the system's errors.
Start = Callable[[Floats, Floats | None], Errors]


@dataclass(frozen=True)
class SystemCertificate(Certificate):
    """Bounds for any admissible β. `weights` scale the two errors to the states of the system; ITD has only one."""

    system: ErrorSystem
    weights: tuple[Floats, Floats]
    start: Start
    inner_steps: int = 1
    adjoint_steps: int = 1

    @property
    def beta_max(self) -> Floats:
        return self.system.beta_max

    @property
    def C5(self) -> Floats:
        """The part of the hypergradient error that does not vanish with the errors."""
        return self.system.C5

    @property
    def inherent_error(self) -> Floats:
        """C₅²: what remains of the bound as K → ∞ and β → 0 with βK → ∞."""
        return self.C5**2

    def limit(self, beta: Real) -> Floats:
        """What remains as K → ∞ with β fixed; infinite where β is not certified."""
        return self.bound_from(2.0**60, 0.0, (0.0, 0.0), beta)

    def errors(self, y_error: Floats, v_error: Floats | None) -> Errors:
        return self.start(y_error, v_error)

    def bound_from(
        self, steps: Real, gap: Real, errors: tuple[Real, Real], beta: Real | None = None
    ) -> Floats:
        steps, gap, errors, given = self._numbers(steps, gap, errors, beta)
        at = self.best_beta_from(steps, gap, errors, 0.0) if given is None else given
        bound = self.system.bound(at, steps, gap, *self._states(errors))
        return np.where(np.isinf(errors[0]) | np.isinf(errors[1]), np.inf, bound)[()]

    def best_beta_from(
        self, steps: Real, gap: Real, errors: tuple[Real, Real], slack: Real = SLACK
    ) -> Floats:
        positive(gap, "gap", GAP)
        slack = allowance(slack)
        steps, gap, errors, _ = self._numbers(steps, gap, errors, slack=slack)
        return self.system.best_beta(steps, gap, *self._states(errors), slack=slack)

    def _states(self, errors: tuple[Real, Real]) -> Errors:
        # An infinite error marks a start that the analysis does not cover.
        covered = np.where(np.isinf(errors[0]), 0.0, errors[0])[()]
        with np.errstate(over="ignore"):
            states = (
                self.weights[0] * covered,
                self.weights[1] * np.where(np.isinf(errors[1]), 0.0, errors[1]),
            )
        return states[0], states[1][()]
