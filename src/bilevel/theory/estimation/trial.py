"""How steep the estimated hypergradient turns out to be along a short run of the method itself."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax.scipy.sparse.linalg import cg
from optax import tree

from bilevel.batch import Batch, Draws
from bilevel.loop.scan import scan
from bilevel.solvers.algorithms.aid import AID
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.parts.inner import Carried
from bilevel.theory.estimation.local import most_cg_steps
from bilevel.types import PyTree, Scalar

MOST_HALVINGS = 40


class Tried(NamedTuple):
    beta: float
    halvings: int
    passed: bool  # whether a trial was within the limit; if none was, `beta` is the proposal


def halved(beta: float, gain: Callable[[float], float], limit: float) -> Tried:
    """β halved until the loop's gain over a trial run is within `limit`."""
    for halvings in range(MOST_HALVINGS + 1):
        if gain(beta / 2**halvings) <= limit:
            return Tried(beta / 2**halvings, halvings, passed=True)
    return Tried(beta, MOST_HALVINGS, passed=False)


class Compared(NamedTuple):
    """A solver's state, and what it is compared with after the next step."""

    state: PyTree
    x: PyTree  # x_{k−1}
    estimate: PyTree  # ∇̂Φ(x_{k−1})


class SlopeReporting(Solver):
    """A solver that reports how much its estimate changed for the step that x took, as the metric "slope"."""

    solver: Solver

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | Draws | None = None) -> Compared:
        return self.begin(self.solver.init(x0, y0, batch), batch)

    def begin(self, state: PyTree, batch: Batch | Draws | None) -> Compared:
        """One step of the solver from a state of its own: the first slope needs two estimates."""
        after, info = self.solver.step(state, batch)
        return Compared(after, state.x, info.hypergradient)

    def step(self, state: Compared, batch: Batch | Draws | None = None) -> tuple[Compared, Info]:
        after, info = self.solver.step(state.state, batch)
        moved = tree.norm(tree.sub(state.state.x, state.x))
        changed = tree.norm(tree.sub(info.hypergradient, state.estimate))
        noise = 16 * jnp.finfo(changed.dtype).eps * tree.norm(state.estimate)
        slope = jnp.maximum(changed - noise, 0) / jnp.maximum(moved, jnp.finfo(moved.dtype).tiny)
        info = Info(
            info.outer_value,
            info.hypergradient,
            info.inner_gradient,
            info.metrics | {"slope": slope},
            info.model,
        )
        return Compared(after, state.state.x, info.hypergradient), info

    def observe(
        self, before: Compared, after: Compared, batch: Batch | Draws | None, model: Carried | None = None
    ):
        return self.solver.observe(before.state, after.state, batch, model)


def slope(solver: Solver, steps: int, x: PyTree, y: PyTree, data: Batch | None) -> Scalar:
    """The largest ‖∇̂Φ(x_{k+1}) − ∇̂Φ(x_k)‖/‖x_{k+1} − x_k‖ over `steps` steps; infinite if they diverge.

    AID starts from a solved adjoint system, and y should be y*(x): then the estimate changes because x moves, and not
    because y and v settle, which no β would change.
    """
    return solver.compiled(_slope, steps)(x, y, data)


def _slope(solver: Solver, steps: int, x: PyTree, y: PyTree, data: Batch | None) -> Scalar:
    oracles, state = solver.problem.oracles, solver.init(x, y, data)
    if isinstance(solver, AID):
        inner, f = oracles.linearize(x, y, data), oracles.outer_gradients(x, y, data)
        tolerance = 1e-10 if f.value.dtype == jnp.float64 else 1e-5
        state = state._replace(v=cg(inner.hessian, f.y, tol=tolerance, maxiter=most_cg_steps(y))[0])
    reporting = SlopeReporting(solver.problem, solver)
    record = lambda state, info: info.metrics["slope"]
    _, slopes = scan(reporting, reporting.begin(state, data), data, steps=steps, record=record)
    return jnp.where(jnp.all(jnp.isfinite(slopes)), jnp.max(slopes), jnp.inf)
