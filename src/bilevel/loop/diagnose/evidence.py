"""Evidence for findings: facts about a run, and the medians of its later looks."""

from dataclasses import dataclass

import numpy as np

from bilevel.loop.diagnose.standstill import FALLEN
from bilevel.solvers.adjoints.base import Adjoint
from bilevel.solvers.base import Solver

Looks = dict[str, np.ndarray]  # columns by name, one row per look


@dataclass(frozen=True)
class Facts:
    """Facts for the findings, in addition to the looks."""

    solver: Solver
    steps: int  # of the run that was looked at
    began: int  # the step before its first
    noisy: bool  # minibatches, or objectives with random keys
    largest: float  # stationarity measure of any step
    blind: bool = False  # whether the hypergradient was exactly zero at every step
    rise: tuple[float, float] | None = None  # of f, from where to where, if it has blown up
    broke: tuple[str, tuple[str, ...]] | None = None  # of a run that diverged: the cause, and the levels
    idle: tuple[str, ...] = ()  # the arrays of x whose hypergradient was exactly zero at every look
    scaled: tuple[str, ...] = ()  # the arrays of x that only scale g, under a rule that is scale-free
    small: float = FALLEN  # the share of `largest` below which x has converged

    @property
    def has_v(self) -> bool:
        return "v" in self.solver.variables

    @property
    def taken(self) -> int:
        """Return the number of steps, also in earlier calls."""
        return self.began + self.steps

    @property
    def adjoint(self) -> Adjoint | None:
        part = self.solver.part("adjoint")
        return part if isinstance(part, Adjoint) else None


class Late(dict[str, float]):
    """Medians of the second half of the looks; NaN if nothing was measured.

    A secant is a lower bound, so it is the largest one of that half, or of all looks if the half has none.
    """

    def __init__(self, looks: Looks):
        for name, values in looks.items():
            secants, fine = name == "outer_curvature", values[len(values) // 2 :]
            fine = values if secants and not np.isfinite(fine).any() else fine
            fine = fine[np.isfinite(fine)]
            typical = np.max if secants else np.median
            self[name] = float(typical(fine)) if len(fine) else np.nan

    def __missing__(self, name: str) -> float:
        return np.nan

    def is_too_large(self, level: str) -> bool:
        return self[f"{level}_step"] * self["largest_curvature"] > 2
