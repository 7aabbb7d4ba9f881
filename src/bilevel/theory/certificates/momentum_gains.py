"""Lag of a momentum method behind a moving quadratic: exact ℓ₂ gains of `optax.sgd(..., momentum=m)`.

One coordinate of y in the eigenbasis of a constant ∇²_yy g, with eigenvalue h, D = αh and q = z⁻¹:

    residual rₖ = h(yₖ₋₁ − y*ₖ) − φₖ,    trace tₖ = rₖ + m tₖ₋₁,    yₖ = yₖ₋₁ − α(rₖ + m tₖ)   (Nesterov)
                                                                   yₖ = yₖ₋₁ − αtₖ            (heavy ball)

With n = 1 + m − mq (Nesterov) or n = 1 (heavy ball) the error e = y − y* responds to the drift δₖ = y*ₖ −
y*ₖ₋₁ and the force φ by

    e = −((1 − mq) − Dn)/E · δ + αn/E · φ,    E = (1 − q)(1 − mq) + Dqn.

On the unit circle, with u = 1 − cos ω, |numerator|² is linear and |E|² quadratic in u: its peak is a closed form.
"""

from dataclasses import dataclass

import numpy as np

Array = np.ndarray
# Coefficients of 1, u, u², and the value at u = 2, which they may lose to rounding.
Parabola = tuple[Array, Array, Array, Array]

EXCESS = 1e-6  # relative width of the enclosure of `drift`²
CELLS = 64
MOST_CELLS = 300_000  # in at most 100 rounds; more are needed only next to instability


@dataclass(frozen=True)
class MomentumLoop:
    """Rule with step size `alpha` and momentum `m`, for eigenvalues h from `mu` to `L`."""

    alpha: float
    m: float
    mu: float
    L: float
    nesterov: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.m < 1:
            raise ValueError(
                f"the momentum must be at least 0 and below 1, not {self.m}: it is the trace's decay"
            )
        if not 0 < self.alpha * self.L < self.limit * (1 - 1e-9):  # a margin for rounding
            raise ValueError(
                f"step size {self.alpha} with momentum {self.m} is not stable for curvature {self.L}: take one below "
                f"{self.limit / self.L:.6g}"
            )

    @property
    def limit(self) -> float:
        """Return the smallest αL for which the fastest mode is unstable."""
        return 2 * (1 + self.m) / (1 + 2 * self.m if self.nesterov else 1)

    @property
    def ends(self) -> Array:
        return self.alpha * np.array([self.mu, self.L])

    @property
    def drift(self) -> float:
        """Return Γ, the sup over h and ω of |e/δ|/h, from above to a relative 10⁻⁶, by halving cells of D."""
        edges = np.geomspace(self.ends[0], self.ends[1], CELLS + 1)
        low, high = edges[:-1], edges[1:]
        best = np.max(_peak(self._lag(edges), self._loop(edges)) / edges**2)
        seen = 0
        while True:
            most = self._over_cell(low, high)
            above = most > best * (1 + EXCESS)
            low, high = low[above], high[above]
            seen += low.size + MOST_CELLS // 100
            if not low.size or seen > MOST_CELLS:  # the remaining cells are enclosed too, but less closely
                wide = high > low * (1 + 1e-13)  # a narrower cell is one point, which was evaluated
                largest = np.max(most[above][wide], initial=best * (1 + EXCESS))
                return float(self.alpha * np.sqrt(largest))
            middle = np.sqrt(low * high)
            best = max(best, np.max(_peak(self._lag(middle), self._loop(middle)) / middle**2))
            low, high = np.concatenate([low, middle]), np.concatenate([middle, high])

    @property
    def force(self) -> float:
        """Return Γ_w: sup over h and ω of |e/φ|. It is attained at an end of the spectrum."""
        flat = np.ones(2), np.full(2, self._n)
        return float(self.alpha * np.sqrt(np.max(_peak(flat, self._loop(self.ends)))))

    @property
    def free(self) -> float:
        """Return the ℓ₂ norm of e₀, e₁, … after a start with error one and no memory.

        Such a start is a drift of −1, so this is sup over h of the H₂ norm of e/δ, attained at an end.
        """
        m, D = self.m, self.ends
        c = 1 - D
        if self.nesterov:
            squared = (1 + m**2 - m * (1 + 2 * m - m**2) * c) / (D * (1 - m * c) * (1 + (1 + 2 * m) * c)) - 1
        else:
            squared = ((1 - m) * c**2 - 2 * m**2 * c + m**2 * (1 + m)) / ((1 - m) * D * (2 * (1 + m) - D))
        return float(np.sqrt(np.max(np.maximum(squared, 0))))  # rounding may give −0 where one step is exact

    @property
    def _n(self) -> float:
        """Return n₁ in |n|² = 1 + n₁u."""
        return 2 * self.m * (1 + self.m) if self.nesterov else 0.0

    def _lag(self, D: Array) -> tuple[Array, Array]:
        """Return |1 − mq − Dn|²."""
        m = self.m
        cross = m * (2 + m) if self.nesterov else m  # Re((1 − mq)n̄) = 1 − m + cross·u
        return (1 - m - D) ** 2, 2 * m - 2 * cross * D + self._n * D**2

    def _loop(self, D: Array) -> Parabola:
        """Return |E|²."""
        m, end = self.m, self._at_end(D) ** 2
        if self.nesterov:
            return D**2, 2 * (1 - D) * ((1 - m) ** 2 - m * (1 + m) * D), 4 * m * (1 - D), end
        return D**2, 2 * ((1 - m) ** 2 - (1 + m) * D), np.full_like(D, 4 * m), end

    def _loop_slope(self, D: Array) -> Parabola:
        """Return d|E|²/dD; |E|² is convex in D."""
        m, end = self.m, -2 * (1 + 2 * self.m if self.nesterov else 1) * self._at_end(D)
        if self.nesterov:
            linear = -2 * (1 - m + 2 * m**2) + 2 * self._n * D
            return 2 * D, linear, np.full_like(D, -4 * m), end
        return 2 * D, np.full_like(D, -2 * (1 + m)), np.zeros_like(D), end

    def _at_end(self, D: Array) -> Array:
        """Return E at u = 2, where it vanishes at the largest stable D."""
        return 2 * (1 + self.m) - D * (1 + 2 * self.m if self.nesterov else 1)

    def _over_cell(self, low: Array, high: Array) -> Array:
        """Return an upper bound on |e/δ|²/D² between two D, by convexity and tangents."""
        middle, radius = (low + high) / 2, (high - low) / 2
        (e0, e1, e2, e3), (s0, s1, s2, s3) = self._loop(middle), self._loop_slope(middle)
        tangents = [(e0 + r * s0, e1 + r * s1, e2 + r * s2, e3 + r * s3) for r in (-radius, radius)]
        lags = [self._lag(low), self._lag(high)]
        return np.max([_peak(lag, tangent) for lag in lags for tangent in tangents], axis=0) / low**2


def _peak(line: tuple[Array, Array], parabola: Parabola) -> Array:
    """Return sup over 0 ≤ u ≤ 2 of line/parabola; infinite where the parabola is not positive."""
    (n0, n1), (e0, e1, e2, end) = line, parabola
    below = lambda u: ((2 - u) ** 2 * e0 + 2 * u * (2 - u) * (e0 + e1) + u**2 * end) / 4
    with np.errstate(divide="ignore", invalid="ignore"):
        # n1·e2·u² + 2n0·e2·u + n0·e1 − n1·e0 = 0 at the stationary points, −e1/2e2 at the parabola's vertex
        root = np.sqrt((n0 * e2) ** 2 - n1 * e2 * (n0 * e1 - n1 * e0))
        sum_ = -(n0 * e2 + np.copysign(root, n0 * e2))
        inside = [sum_ / (n1 * e2), (n0 * e1 - n1 * e0) / sum_, -e1 / (2 * e2)]
        points = [np.clip(np.nan_to_num(u, nan=0.0), 0.0, 2.0) for u in [np.zeros_like(e0), *inside]]
        points.append(np.full_like(e0, 2.0))
        values = np.max([(n0 + n1 * u) / below(u) for u in points], axis=0)
        positive = np.min([below(u) for u in points], axis=0) > 0
    return np.where(positive, values, np.inf)
