"""The error system of AID and SOBA with noise as extra inputs, in mean squares. All arrays have one entry per step.

For a random vector write |·| = (E‖·‖²)^½. Split linearly ŷ − y* = p + n and v̂ − v* = q + m into a part that is driven
by the movement of x and by the start, Z = (|p|, |q|) before an update, and a martingale part (n, m):

    Z_{k+1} ≤ P_k Z_k + β_k (s, V)(|h_k| + σ_C B_k) + bias_k,      e_k ≤ o_k·Z_k + ν_k,      B_k ≤ o'_k·Z_k + ν'_k,

B_k = |v̂ − v*|, of which the noise of the cross product is a multiple. The documentation has the proof.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bilevel.theory.blocks import Blocks
from bilevel.theory.certificates.stochastic.noise import Noise

Numbers = Any  # arrays of float64, or numbers that broadcast against them


@dataclass(frozen=True)
class Method:
    """What is known of the problem, and in which order and with which draws a step is taken."""

    blocks: Blocks
    noise: Noise
    y_bend: float  # Lipschitz constant of the Jacobian of y*(x)
    v_bend: float  # and of v*(x); infinite if it is not assumed
    sequential: bool  # AID: v waits for ŷ, and x for both. SOBA: all at the old point
    shared: bool  # one draw for all directions of a step (SOBA alone)

    @property
    def adjoint_noise(self) -> float:
        """Of ∇²_yy g·v* − ∇_y f, where ‖v*‖ ≤ M_y/μ."""
        return float(np.hypot(self.noise.adjoint, self.noise.hessian * self.blocks.M_y / self.blocks.mu))

    @property
    def outer_noise(self) -> float:
        """Of ∇_x f − ∇²_xy g·v*."""
        return float(np.hypot(self.noise.outer, self.noise.cross * self.blocks.M_y / self.blocks.mu))


@dataclass(frozen=True)
class Tracking:
    """How y and v follow their targets with these step sizes; entries broadcast."""

    method: Method
    alpha: Numbers
    eta: Numbers
    beta: Numbers

    def contraction(self, step: Numbers) -> tuple[Numbers, Numbers]:
        """(r, r̄): of I − step·H, and in mean square of I − step·H_B, r̄² = r² + step²σ_H²."""
        k = self.method.blocks
        r = np.maximum(np.abs(1 - step * k.mu), np.abs(1 - step * k.L_yy))
        return r, np.hypot(r, step * self.method.noise.hessian)

    @property
    def P(self) -> tuple[Numbers, Numbers, Numbers]:
        """(P₁₁, P₂₁, P₂₂): the inner error is paid for in v at ηΛ_yy, after its update in AID and before in SOBA."""
        _, r = self.contraction(self.alpha)
        _, t = self.contraction(self.eta)
        return r, self.eta * self.method.blocks.Lambda_yy * (r if self.method.sequential else 1.0), t

    @property
    def v_row(self) -> tuple[Numbers, Numbers]:
        """o': |v̂ − v*| where the outer direction is taken, from Z."""
        _, coupling, t = self.P
        return (coupling, t) if self.method.sequential else (0 * coupling, 1 + 0 * t)

    @property
    def e_row(self) -> tuple[Numbers, Numbers]:
        """o: Λ_xy|ŷ − y*| + L_xy|v̂ − v*|, there."""
        k, (r, _, _), (row_a, row_b) = self.method.blocks, self.P, self.v_row
        a = r if self.method.sequential else 1.0
        return k.Lambda_xy * a + k.L_xy * row_a, k.L_xy * row_b

    def drift(self, slope: Numbers, bend: float, step: Numbers) -> tuple[Numbers, Numbers]:
        """How noise in x moves a target with Lipschitz constant `slope`: (its mean, the deviation around it).

        A target with a Lipschitz Jacobian moves by −β·J·ω on average not at all, and by at most ½·bend·β²σ² besides.
        Otherwise, or where that is more, all of it counts as movement and none as deviation.
        """
        sigma, (r, _) = self.method.outer_noise, self.contraction(step)
        all_of_it = slope * self.beta * sigma
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = (
                np.full_like(all_of_it, np.inf) if np.isinf(bend) else 0.5 * bend * (self.beta * sigma) ** 2
            )
            split = mean / (1 - r) + all_of_it / np.sqrt(1 - r * r) <= all_of_it / (1 - r)
        return np.where(split, mean, all_of_it), np.where(split, all_of_it, 0.0)

    @property
    def drifts(self) -> tuple[tuple[Numbers, Numbers], tuple[Numbers, Numbers]]:
        """Those of y* and of v*."""
        k, m = self.method.blocks, self.method
        y = self.drift(k.y_slope, m.y_bend, self.alpha)
        return y, self.drift(k.v_slope, m.v_bend, self.eta)

    @property
    def certified(self) -> Any:
        """Whether both updates contract in mean square, and β ≤ 1/L_Φ."""
        r, _, t = self.P
        return (r < 1) & (t < 1) & (self.beta * self.method.blocks.L_Phi <= 1)
