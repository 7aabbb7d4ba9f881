"""How noisy the directions of a step are: what a certificate for minibatches asks for besides the constants."""

from __future__ import annotations

from dataclasses import dataclass

from bilevel.checks import MANY, check_count
from bilevel.theory.reals import Real, nonnegative, one


@dataclass(frozen=True, init=False)
class Noise:
    """Standard deviations of the oracles of one draw, which are unbiased: σ² bounds a mean squared norm.

    * `inner`, σ_y: of ∇_y g at the solution y*(x);
    * `adjoint`, σ_f: of ∇_y f;
    * `outer`, σ_x: of ∇_x f;
    * `hessian`, σ_H: E‖(∇²_yy g_B − ∇²_yy g)u‖² ≤ σ_H²‖u‖² for every u;
    * `cross`, σ_C: E‖(∇²_xy g_B − ∇²_xy g)u‖² ≤ σ_C²‖u‖² for every u.

    The last two are zero where g's data enter linearly in y. They multiply v̂ and ŷ − y*, which nobody bounds
    beforehand; the certificate bounds them through its own system. A batch of m rows, drawn with replacement, has 1/√m
    of the deviations of one row: `noise.of_batches(m)`.
    """

    inner: float
    adjoint: float
    outer: float
    hessian: float
    cross: float

    def __init__(
        self, inner: Real, adjoint: Real, outer: Real, hessian: Real = 0.0, cross: Real = 0.0
    ) -> None:
        given = {"inner": inner, "adjoint": adjoint, "outer": outer, "hessian": hessian, "cross": cross}
        for name, value in given.items():
            deviation = nonnegative(value, name, "it is a standard deviation, zero for an exact oracle")
            object.__setattr__(self, name, one(deviation, name))

    def of_batches(self, rows: int, outer_rows: int | None = None) -> Noise:
        """The noise of means over `rows` independent draws of g's data and `outer_rows` of f's (as many by default)."""
        outer_rows = rows if outer_rows is None else outer_rows
        g, f = _rows(rows, "rows") ** 0.5, _rows(outer_rows, "outer_rows") ** 0.5
        return Noise(self.inner / g, self.adjoint / f, self.outer / f, self.hessian / g, self.cross / g)


def _rows(count: int, name: str) -> float:
    if isinstance(count, int) and count < 1:
        raise ValueError(f"a batch has at least one row, got {name} = {count}")
    return one(nonnegative(check_count(count, name, most=MANY), name, "it is a number of rows"), name)
