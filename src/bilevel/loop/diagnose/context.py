"""What a run is judged by: the medians of its later looks, and what they do not show."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.solvers.base import Solver
from bilevel.types import PyTree

FALLEN = 1e-3  # of the largest hypergradient of the run: x is where it should be
ROUNDING = 16  # times the precision of x: likewise, where x has few bits


def small_share(x: PyTree) -> float:
    """Return the share of the largest hypergradient that is no more than rounding in x."""
    return max(FALLEN, ROUNDING * max(float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(x)))


@dataclass(frozen=True)
class Facts:
    """What the findings need to know besides the looks."""

    solver: Solver
    steps: int  # of the run that was looked at
    began: int  # the step before its first
    noisy: bool  # minibatches, or objectives with random keys
    largest: float  # stationarity measure of any step
    blind: bool = False  # whether the hypergradient was exactly zero at every step
    rise: tuple[float, float] | None = None  # of f, from where to where, if it has blown up
    broke: tuple[str, tuple[str, ...]] | None = (
        None  # of a run that diverged: its status' cause, and whose steps
    )
    idle: tuple[str, ...] = ()  # the arrays of x whose hypergradient was exactly zero at every look
    scaled: tuple[str, ...] = ()  # the arrays of x that only scale g, under a rule that is scale-free
    small: float = FALLEN  # the share of `largest` below which x is where it should be

    @property
    def has_v(self) -> bool:
        return "v" in self.solver.variables


class Late(dict[str, float]):
    """The medians of the second half of the looks, NaN for what was never measured.

    Of secants, which are at most what they stand for, the largest; that of the first half, where a run that grows
    leaves no other.
    """

    def __init__(self, looks: dict[str, np.ndarray]):
        for name, values in looks.items():
            secants, fine = name == "outer_curvature", values[len(values) // 2 :]
            fine = values if secants and not np.isfinite(fine).any() else fine
            fine = fine[np.isfinite(fine)]
            typical = np.max if secants else np.median
            self[name] = float(typical(fine)) if len(fine) else np.nan

    def __missing__(self, name: str) -> float:
        return np.nan
