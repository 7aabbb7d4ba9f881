"""Error system of AID and SOBA with noise as extra inputs, in mean squares.

All arrays have one entry per step. For a random vector write |·| = (E‖·‖²)^½. Split ŷ − y* = p + n and v̂ −
v* = q + m linearly. One part is driven by the movement of x and by the start, Z = (|p|, |q|) before an
update. The other part, (n, m), is a martingale:

    Z_{k+1} ≤ P_k Z_k + β_k (s, V)(|h_k| + σ_C B_k) + bias_k,      e_k ≤ o_k·Z_k + ν_k,      B_k ≤ o'_k·Z_k + ν'_k,

B_k = |v̂ − v*|; the noise of the cross product is a multiple of it. Proofs: documentation, "Minibatches".
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bilevel.theory.blocks import Blocks
from bilevel.theory.certificates.stochastic.noise import Noise

Numbers = Any  # arrays of float64, or numbers that broadcast against them


@dataclass(frozen=True)
class Method:
    """Constants of the problem, and the order and the draws of a step."""

    blocks: Blocks
    noise: Noise
    y_bend: float  # Lipschitz constant of the Jacobian of y*(x)
    v_bend: float  # and of v*(x); infinite if it is not assumed
    sequential: bool  # AID: v waits for ŷ, and x for both. SOBA: all at the old point
    shared: bool  # one draw for all directions of a step (only SOBA)

    @property
    def adjoint_noise(self) -> float:
        """Return the noise of ∇²_yy g·v* − ∇_y f, where ‖v*‖ ≤ M_y/μ."""
        return float(np.hypot(self.noise.adjoint, self.noise.hessian * self.blocks.M_y / self.blocks.mu))

    @property
    def outer_noise(self) -> float:
        """Return the noise of ∇_x f − ∇²_xy g·v*."""
        return float(np.hypot(self.noise.outer, self.noise.cross * self.blocks.M_y / self.blocks.mu))


@dataclass(frozen=True)
class Tracking:
    """Recursion by which y and v follow their targets with these step sizes; entries broadcast."""

    method: Method
    alpha: Numbers
    eta: Numbers
    beta: Numbers

    def contraction(self, step: Numbers) -> tuple[Numbers, Numbers]:
        """Return (r, r̄): the norms of I − step·H, and in mean square of I − step·H_B; r̄² = r² + step²σ_H²."""
        k = self.method.blocks
        r = np.maximum(np.abs(1 - step * k.mu), np.abs(1 - step * k.L_yy))
        return r, np.hypot(r, step * self.method.noise.hessian)

    @property
    def P(self) -> tuple[Numbers, Numbers, Numbers]:
        """Return (P₁₁, P₂₁, P₂₂).

        The inner error enters v at ηΛ_yy, after its update in AID and before it in SOBA.
        """
        _, r = self.contraction(self.alpha)
        _, t = self.contraction(self.eta)
        return r, self.eta * self.method.blocks.Lambda_yy * (r if self.method.sequential else 1.0), t

    @property
    def v_row(self) -> tuple[Numbers, Numbers]:
        """Return o', the row from Z to |v̂ − v*| at the outer direction."""
        _, coupling, t = self.P
        return (coupling, t) if self.method.sequential else (0 * coupling, 1 + 0 * t)

    @property
    def e_row(self) -> tuple[Numbers, Numbers]:
        """Return o, the row from Z to Λ_xy|ŷ − y*| + L_xy|v̂ − v*| at the outer direction."""
        k, (r, _, _), (row_a, row_b) = self.method.blocks, self.P, self.v_row
        a = r if self.method.sequential else 1.0
        return k.Lambda_xy * a + k.L_xy * row_a, k.L_xy * row_b

    def drift(self, slope: Numbers, bend: float, step: Numbers) -> tuple[Numbers, Numbers]:
        """Return (mean, deviation) of the movement of a target with Lipschitz constant `slope`.

        x has noise. If the target's Jacobian J is Lipschitz, the part −β·J·ω has mean zero, and the remainder
        is at most ½·bend·β²σ². Otherwise, or where that bound is larger, the whole movement counts as mean
        and none as deviation.
        """
        sigma, (r, _) = self.method.outer_noise, self.contraction(step)
        all_of_it = slope * self.beta * sigma
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = 0.5 * bend * (self.beta * sigma) ** 2
            mean = np.full_like(all_of_it, np.inf) if np.isinf(bend) else mean
            split = mean / (1 - r) + all_of_it / np.sqrt(1 - r * r) <= all_of_it / (1 - r)
        return np.where(split, mean, all_of_it), np.where(split, all_of_it, 0.0)

    @property
    def drifts(self) -> tuple[tuple[Numbers, Numbers], tuple[Numbers, Numbers]]:
        """Return the `drift` of y* and of v*."""
        k, m = self.method.blocks, self.method
        return self.drift(k.y_slope, m.y_bend, self.alpha), self.drift(k.v_slope, m.v_bend, self.eta)

    @property
    def certified(self) -> Any:
        """Return whether both updates contract in mean square, and β ≤ 1/L_Φ."""
        r, _, t = self.P
        return (r < 1) & (t < 1) & (self.beta * self.method.blocks.L_Phi <= 1)
