"""Certificates that sum an error system: `sharp`, `tight` and `star`, for AID, ITD and SOBA."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bilevel.theory.certificates.certificate import Certificate, Errors
from bilevel.theory.certificates.gain import ErrorSystem
from bilevel.theory.reals import Floats, Real

# From ‖y₀ − y*(x₀)‖ and ‖v₀ − v*(x₀)‖ to the system's errors.
InitialErrors = Callable[[Floats, Floats | None], Errors]


@dataclass(frozen=True)
class SystemCertificate(Certificate):
    """Bounds for any admissible β. `weights` scale the two errors to the states; ITD has only one."""

    system: ErrorSystem
    weights: tuple[Floats, Floats]
    start: InitialErrors
    inner_steps: int = 1
    adjoint_steps: int = 1

    @property
    def beta_max(self) -> Floats:
        return self.system.beta_max

    @property
    def C5(self) -> Floats:
        """Return the part of the hypergradient error that does not vanish with the errors."""
        return self.system.C5

    @property
    def inherent_error(self) -> Floats:
        """Return C₅²: the limit of the bound as K → ∞ and β → 0 with βK → ∞."""
        return self.C5**2

    def limit(self, beta: Real) -> Floats:
        """Return the limit of the bound as K → ∞ with β fixed; infinite where β is not certified."""
        return self.bound_from(2.0**60, 0.0, (0.0, 0.0), beta)

    def _errors(self, y_error: Floats, v_error: Floats | None) -> Errors:
        return self.start(y_error, v_error)

    def _bound(self, steps: Floats, gap: Floats, errors: Errors, beta: Floats) -> Floats:
        bound = self.system.bound(beta, steps, gap, *self._states(errors))
        return np.where(np.isinf(errors[0]) | np.isinf(errors[1]), np.inf, bound)[()]

    def _best_beta(self, steps: Floats, gap: Floats, errors: Errors, slack: Floats) -> Floats:
        return self.system.best_beta(steps, gap, *self._states(errors), slack=slack)

    def _states(self, errors: Errors) -> Errors:
        # An infinite error marks a start that the analysis does not cover.
        y, v = (np.where(np.isinf(error), 0.0, error)[()] for error in errors)
        with np.errstate(over="ignore"):
            return self.weights[0] * y, np.asarray(self.weights[1] * v)[()]
