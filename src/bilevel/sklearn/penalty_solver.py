"""Bilevel solver for sparse estimators: inner problems with a proximal map, and no outer step size.

    y_k = argmin_y g(x_k, y) + h(x_k, y)          accelerated proximal steps of 1/L, restarted when they turn back
    v_k : conjugate gradients on the adjoint system at y_k
    d_k = ∇_x f − cross(v_k)                      the hypergradient, through the proximal map
    accepted if  Φ_k ≤ Φ + s + 10⁻⁴ ⟨d, x_k − x⟩   then x, Φ, d ← x_k, Φ_k, d_k and s ← 0.85 (s + Φ − Φ_k)
                 β ← ⟨Δx, Δd⟩/‖Δd‖², within a factor of 10 of β; otherwise β shrinks to a quarter
    x_{k+1} = P(x − βd)

This is the outer level of `bl.tuning_free` (spectral projected gradients with a non-monotone line search),
which needs a smooth inner level. x_k is the current trial; the trace has all trials.
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

import bilevel as bl
from bilevel.batch import first
from bilevel.checks import prepare
from bilevel.identity import Static
from bilevel.solvers.adjoints.krylov import conjugate_gradients
from bilevel.solvers.fixed_points import adjoint_system, residual
from bilevel.solvers.parts.trees import divide, dot, scaled, select
from bilevel.solvers.rules import Descent
from bilevel.solvers.traits import Traits

FIRST, SUFFICIENT, MEMORY, GROWTH = 0.1, 1e-4, 0.85, 10.0  # as in bl.tuning_free


class SpectralState(NamedTuple):
    x: Any  # the next trial
    y: Any  # at the last trial
    kept: tuple[Any, ...]  # (x, Φ, d) of the last accepted trial
    step_size: Any  # β; zero before the first accepted trial
    slack: Any  # s


class Spectral(bl.Solver):
    inner: Descent = eqx.field(converter=Descent)  # 1/L of g, the size of proximal steps
    project: Static = eqx.field(static=True, converter=Static)  # onto the domain of x
    tolerance: Any = (
        1e-4  # the largest gradient mapping of y of size 1, and the largest relative residual of v
    )
    max_inner_steps: int = eqx.field(static=True, default=1000)  # on y, and products for v, per step on x
    name: ClassVar[str] = "proximal, spectral steps"
    variables: ClassVar[tuple[str, ...]] = ("x", "y")
    traits: ClassVar[Traits] = Traits(supports_prox=True, uses_hessian=True)

    def init(self, x0: Any, y0: Any, batch: Any = None) -> SpectralState:
        x, y = prepare(self.problem, x0, y0, batch)
        zero = jnp.zeros((), tree.norm(x).dtype)
        return SpectralState(x, y, (x, zero, tree.zeros_like(x)), zero, zero)

    def step(self, state: SpectralState, batch: Any = None) -> tuple[SpectralState, bl.Info]:
        x, beta, slack, begins = state.x, state.step_size, state.slack, state.step_size == 0
        (kept_x, kept_value, kept_d), oracles, rule = state.kept, self.problem.oracles, self.inner_at(x)
        gradient = residual(self.problem, rule, (), state.y, oracles.inner_gradient(x, state.y, batch))
        y, taken = self._respond(x, state.y, batch)
        g, f = oracles.curvature(x, y, batch), oracles.outer_gradients(x, y, batch)
        system, b, _ = adjoint_system(self.problem, rule, (), x, y, g, f.y, batch)
        accuracy, most = self.tolerance * tree.norm(b), self.max_inner_steps
        system = system.shared()
        v, products, _ = conjugate_gradients(system, b, tree.zeros_like(y), accuracy, most)
        d = tree.sub(f.x, system.cross(v))

        move, bend, value = tree.sub(x, kept_x), tree.sub(d, kept_d), f.value.astype(beta.dtype)
        rise = value - kept_value
        accepted = begins | (rise <= slack + SUFFICIENT * dot(kept_d, move))
        along = dot(move, bend)
        spectral = jnp.where(along > 0, divide(along, tree.norm(bend, squared=True)), GROWTH * beta)
        longer = jnp.clip(spectral, beta / GROWTH, beta * GROWTH)
        begin = FIRST * divide(jnp.abs(value), tree.norm(d, squared=True))
        beta = jnp.where(begins, begin, jnp.where(accepted, longer, beta / 4))
        slack = jnp.where(accepted & ~begins, jnp.maximum(MEMORY * (slack - rise), 0), slack)
        kept = select(accepted, (x, value, d), state.kept)
        ahead = self.project.value(tree.sub(kept[0], scaled(beta, kept[2])))
        metrics = {"accepted": accepted.astype(beta.dtype), "inner_steps": taken, "adjoint_steps": products}
        return SpectralState(ahead, y, kept, beta, slack), bl.Info(f.value, d, gradient, metrics)

    def warm_up(self, state: SpectralState, batch: Any = None) -> SpectralState:
        return state._replace(y=self._respond(state.x, state.y, first(batch))[0])

    def _respond(self, x: Any, y: Any, batch: Any) -> tuple[Any, Any]:
        """Return y*(x) and the number of steps. Stop when a step is below the relative tolerance."""
        rule, oracles = self.inner_at(x), self.problem.oracles
        largest = lambda t: jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(t)]))

        def unfinished(carry):
            *_, moved, taken = carry
            return (moved > self.tolerance) & (taken < self.max_inner_steps)

        def advance(carry):
            y, ahead, t, _, taken = carry
            new, _ = rule.update(oracles.inner_gradient(x, ahead, batch), (), ahead)
            back, forth = tree.sub(ahead, new), tree.sub(new, y)
            t = jnp.where(dot(back, forth) > 0, 1.0, t)
            after = (1 + jnp.sqrt(1 + 4 * t * t)) / 2
            ahead = tree.add(new, scaled((t - 1) / after, forth))
            moved = largest(back) / (self.inner.step_size * jnp.maximum(largest(new), 1))
            return new, ahead, after, moved.astype(t.dtype), taken + 1

        one = jnp.ones((), tree.norm(y).dtype)
        y, _, _, _, taken = lax.while_loop(unfinished, advance, (y, y, one, one * jnp.inf, jnp.int32(0)))
        return y, taken
