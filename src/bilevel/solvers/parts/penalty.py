"""Penalized problem, a part of the first-order methods.

The constraint "y minimizes g(x, ·)" becomes a price λ on g(x, y) − min_z g(x, z):

    L_λ(x) = min_y f(x, y) + λ (g(x, y) − min_z g(x, z)),    ∇L_λ(x) = ∇_x f(x, y) + λ (∇_x g(x, y) − ∇_x g(x, z))

at the two minimizers y = y_λ(x) and z = y*(x). No second derivative appears, and ∇L_λ = ∇Φ + O(1/λ).

f + λg must be strongly convex in y. If f is not convex, this needs a large enough λ. If g is μ-strongly
convex and the curvature of f in y is nowhere below −ℓ, any λ > ℓ/μ is enough (publications ask for 2ℓ/μ).
`Penalized.suspicion` checks this for a run that diverges, or that ends with an outer value far from its
start.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int
from optax import tree

from bilevel.batch import first, with_state
from bilevel.checks import check_positive, check_schedule
from bilevel.identity import Static
from bilevel.solvers.kit import Batch, Draws, ExplicitSolver, Problem, Traits, descend, draws
from bilevel.solvers.messages import Finding
from bilevel.solvers.parts.inner import Carried, carried, carried_state, next_state
from bilevel.solvers.parts.trees import scaled, select
from bilevel.types import Number, PyTree, Scalar, Schedule


class Penalty(eqx.Module):
    """λ as a function of the step number: constant, or a schedule."""

    value: Number | None = None
    schedule: Static | None = eqx.field(static=True, default=None)

    def __call__(self, k: Int[Array, ""]) -> jax.Array:
        return jnp.asarray(self.value if self.schedule is None else self.schedule.value(k))


def as_penalty(penalty: Number | Schedule | Penalty) -> Penalty:
    """Return a penalty: constant for a number, a schedule for a function of the step number."""
    if isinstance(penalty, Penalty):
        return penalty
    if callable(penalty):
        positive = lambda value: check_positive(value, "penalty at step 0")
        return Penalty(schedule=Static(check_schedule(penalty, jnp.int32(0), positive, "penalty")))
    function = "or a function of the step such as optax.linear_schedule(1.0, 100.0, 1000)"
    check_positive(penalty, "penalty", function)
    return Penalty(penalty)


class PenaltyState(NamedTuple):
    x: PyTree  # x_{k+1}
    y: PyTree  # tracks y_λ(x), the minimizer of f + λg
    z: PyTree  # tracks y*(x), the minimizer of g
    inner: tuple[PyTree, PyTree]  # memories of the inner rule, of y and of z
    outer: PyTree  # memory of the outer rule
    k: Int[Array, ""]


class Copies(NamedTuple):
    """Two inner variables, each with a separate memory of the inner rule."""

    y: PyTree  # tracks y_λ(x)
    z: PyTree  # tracks y*(x)
    y_memory: PyTree
    z_memory: PyTree


class Tracked(NamedTuple):
    copies: Copies
    gradient: PyTree  # ∇_y g at the initial z
    model: Carried | None  # the model's state, carried along with z


class Penalized(ExplicitSolver):
    """Base of methods with two copies of the inner variable."""

    penalty: Penalty = eqx.field(converter=as_penalty)
    variables: ClassVar[tuple[str, ...]] = ("x", "y", "z")
    traits: ClassVar[Traits] = Traits(first_order=True, penalized=True, inner_rule="minimum")

    def sets_out(self, state: Any) -> PyTree:
        return state.z

    def init(self, x0: PyTree, y0: PyTree, batch: Any = None) -> PenaltyState | Any:
        x, y = self.prepare(x0, y0, batch)
        memories = self.inner.init(y), self.inner.init(y)
        return PenaltyState(x, y, y, memories, self.outer.init(x), jnp.int32(0))

    def warm_up(self, state: Any, batch: Any = None) -> Any:
        y, z, *memories = self.track(state, self.penalty(state.k), 1, first(batch)).copies
        return state._replace(y=y, z=z, inner=tuple(memories))

    def track(
        self, state: Any, penalty: jax.Array, steps: int, batch: Batch | Draws | None, apart: bool = False
    ) -> Tracked:
        """Take `steps` steps on both copies at x:

            z ← rule(z, ∇_y g(x, z))        y ← rule(y, ∇_y g(x, y) + ∇_y f(x, y)/λ)

        The second is a step on f + λg with 1/λ of the step size, the largest that its smoothness allows for
        large λ. With several draws, step t takes number t for both. With `apart` it takes number 2t for z and
        2t + 1 for y.
        """
        x, problem, oracles, drawn = state.x, self.problem, self.problem.oracles, draws(batch)
        model = carried_state(problem, batch) if steps > 1 else None

        def step(carry, t):
            (y, z, y_memory, z_memory), first, (_, model) = carry
            pair = (2 * t, 2 * t + 1) if apart else (t, t)
            for_z, for_y = (with_state(drawn[i], model) for i in pair)
            models = model, next_state(problem, x, z, for_z, model)
            at_z = oracles.inner_gradient(x, z, for_z)
            at_y = oracles.inner_gradient(x, y, for_y)
            at_y = tree.add(at_y, scaled(1 / penalty, oracles.outer_gradients(x, y, for_y).y))
            z, z_memory = descend(self.inner, at_z, z_memory, z, lambda z: problem.g(x, z, for_z))
            y, y_memory = descend(self.inner, at_y, y_memory, y, mixture(problem, x, penalty, for_y))
            return (Copies(y, z, y_memory, z_memory), select(t == 0, at_z, first), models), None

        carry = Copies(state.y, state.z, *state.inner), tree.zeros_like(state.z), (model, model)
        (copies, gradient, models), _ = lax.scan(step, carry, jnp.arange(steps, dtype=jnp.int32))
        return Tracked(copies, gradient, carried(*models))

    def suspicion(self, state: Any, batch: Any = None) -> Finding | None:
        """Report that f + λg is not convex in y, if it curves downwards between z and y."""
        call = self.problem.compiled(curvatures)
        of_f, of_g = (float(c) for c in call(state.x, state.y, state.z, first(batch)))
        return not_convex(of_f, of_g, float(self.penalty(state.k)))


def estimate(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    z: PyTree,
    penalty: jax.Array,
    at_y: Batch | None,
    at_z: Batch | None,
) -> tuple[Scalar, PyTree]:
    """Return f(x, y), and ∇_x f(x, y) + λ(∇_x g(x, y) − ∇_x g(x, z)), the estimate of ∇L_λ(x)."""
    oracles = problem.oracles
    f = oracles.outer_gradients(x, y, at_y)
    gap = tree.sub(oracles.inner_gradients(x, y, at_y).x, oracles.inner_gradients(x, z, at_z).x)
    return f.value, tree.add(f.x, scaled(penalty, gap))


def mixture(
    problem: Problem, x: PyTree, penalty: jax.Array, batch: Batch | None
) -> Callable[[PyTree], Scalar]:
    """Return y ↦ g(x, y) + f(x, y)/λ, which y descends."""
    return lambda y: problem.g(x, y, batch) + scaled(1 / penalty, problem.f(x, y, batch))


def penalized(
    problem: Problem, y: PyTree, z: PyTree, penalty: jax.Array, at_y: Batch | None, at_z: Batch | None
) -> Callable[[PyTree], Scalar]:
    """Return x ↦ f(x, y) + λ (g(x, y) − g(x, z)), with the gradient of `estimate`."""
    return lambda x: problem.f(x, y, at_y) + scaled(penalty, problem.g(x, y, at_y) - problem.g(x, z, at_z))


def curvatures(
    problem: Problem, x: PyTree, y: PyTree, z: PyTree, batch: Batch | None
) -> tuple[Scalar, Scalar]:
    """Return the mean curvatures of f(x, ·) and g(x, ·) from z toward y: ⟨∇(y) − ∇(z), y − z⟩/‖y − z‖².

    They cover the first 64th of the way, so that gradients do not overflow if y has diverged.
    """
    apart = tree.sub(y, z)
    size = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)).astype(float) for leaf in jax.tree.leaves(apart)]))
    over = lambda tree, by: jax.tree.map(lambda leaf: leaf / by.astype(leaf.dtype), tree)
    reach, along = size / 64, over(apart, size)
    y = tree.add(z, scaled(reach, along))

    def mean(gradient: Callable[[PyTree], PyTree]) -> Scalar:
        change = over(tree.sub(gradient(y), gradient(z)), reach)
        return jnp.asarray(tree.vdot(change, along) / tree.vdot(along, along))

    oracles = problem.oracles
    of_f = mean(lambda y: oracles.outer_gradients(x, y, batch).y)
    return of_f, mean(lambda y: oracles.inner_gradient(x, y, batch))


def not_convex(of_f: float, of_g: float, penalty: float, share: int = 1) -> Finding | None:
    """Report the curvatures of f and g if share · f + λg curves downwards."""
    if not -math.inf < share * of_f + penalty * of_g < 0:
        return None
    return Finding("not_convex", {"share": share, "penalty": penalty, "of_f": of_f, "of_g": of_g})
